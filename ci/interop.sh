#!/usr/bin/env bash
# Tests locks that are shared with other programs: Redisson on the JVM in up to two versions (ci/lib.sh), a NestJS service on ioredis, other
# Go libraries. Builds those programs first (ci/peers.sh), and prints a table of all conversations at the end.
# Usage: ci/interop.sh [FLAG...]   flags go to go test, say -run TestName.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
ci/servers.sh
ci/peers.sh
cd internal/interop
WATCHLOCK_TABLE=$(mktemp); export WATCHLOCK_TABLE
trap 'cat "$WATCHLOCK_TABLE"; rm -f "$WATCHLOCK_TABLE"' EXIT
go build -race -o /dev/null ./...
go test -race -count=1 -timeout 20m "$@" ./...
