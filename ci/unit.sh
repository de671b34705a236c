#!/usr/bin/env bash
# Runs every test of every module once, under the race detector. Leaves cover.out for ci/cover.sh.
# Usage: ci/unit.sh [FLAG...]   flags go to go test, say -run TestName.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
timeout=30m
[ "${WATCHLOCK_FULL:-}" != 1 ] || timeout=6h
for dir in $(modules); do
  flags=(-race -count=1 -timeout "$timeout")
  [ "$dir" != . ] || flags+=(-coverpkg=. -coverprofile=cover.out)
  # The packages are built side by side and tested one after another: some tests measure waiting times.
  (cd "$dir" && go build -race -o /dev/null ./... && go test -p 1 "${flags[@]}" "$@" ./...)
done
