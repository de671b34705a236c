#!/usr/bin/env bash
# Vets and lints every module with golangci-lint (.golangci.yml) in the version that tools/go.mod pins.
# Usage: ci/lint.sh [FLAG...]   flags go to golangci-lint run, say --fix. The first run builds it, which takes minutes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
root=$PWD
lint=$(GOWORK=off go -C tools tool -n golangci-lint)
for dir in $(modules); do
  echo "lint $dir"
  (cd "$dir" && go vet ./... && "$lint" run --config "$root/.golangci.yml" "$@" ./...)
done
if command -v shellcheck >/dev/null; then shellcheck -x -P SCRIPTDIR ci/*.sh .ci/run; fi
