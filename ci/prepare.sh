#!/usr/bin/env bash
# Installs what a new Debian 12 machine with Go lacks for the tests: a C compiler for the race detector,
# PostgreSQL for the example about fencing, the Redis and Valkey servers, a JDK, Maven and Node for the programs of
# internal/interop, which it builds.
# Usage: ci/prepare.sh   Takes no time when all is there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
command -v go >/dev/null || die "Go is not on the PATH (see the version in go.mod)"
missing=()
[ -n "$(command -v "$(go env CC)")" ] || missing+=(gcc libc6-dev)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
# The tests start the program itself, with data of their own. Any version will do.
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
ci/servers.sh
ci/peers.sh
