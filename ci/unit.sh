#!/usr/bin/env bash
# Runs every test of every module once, under the race detector, but those of ci/interop.sh. Leaves cover.out for
# ci/cover.sh. Then runs again, on Redis 7.0, what has to hold for the other lock kinds, fenced and string, and without
# passing a lock on in memory.
# Usage: ci/unit.sh [FLAG...]   flags go to go test, say -run TestName.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
timeout=30m
# What is measured is the library and its parts, by all tests of its module.
library=$(printf './internal/%s,' bootclock transport wire pubsub orphans).
[ "${WATCHLOCK_FULL:-}" != 1 ] || timeout=6h
for dir in $(modules); do
  [ "$dir" != ./internal/interop ] || continue
  flags=(-race -count=1 -timeout "$timeout")
  [ "$dir" != . ] || flags+=(-coverpkg="$library" -coverprofile=cover.out)
  # The packages are built side by side and tested one after another: some tests measure waiting times.
  (cd "$dir" && go build -race -o /dev/null ./... && go test -p 1 "${flags[@]}" "$@" ./...)
done

# The tests of these files take locks of whatever kind is asked for.
mapfile -t files < <(grep -l 'newTestMutex(' ./*_test.go | grep -v /client_test.go)
names=$(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' "${files[@]}" | paste -sd '|')
[[ $names == Test* ]] || die "no test for all kinds is found"
kinds_on=redis70
[ "${WATCHLOCK_FULL:-}" != 1 ] || kinds_on=
again() { # variable=value: the same tests, otherwise
  echo "again with $1"
  env "$1" WATCHLOCK_FAMILIES="$kinds_on" go test -race -count=1 -timeout "$timeout" -run "^($names)\$" "${@:2}" .
}
again WATCHLOCK_KIND=fenced "$@"
again WATCHLOCK_KIND=setnx "$@"
again WATCHLOCK_HANDOFF=0 "$@"
