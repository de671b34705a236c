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
measured() { # PROFILE, FLAG...: tests packages of the root's module under the race detector
  go test -race -count=1 -timeout "$timeout" -coverpkg="$library" -coverprofile="$@"
}
mapfile -t topics < <(go list ./tests/... | grep -v '/sentinel$')
mapfile -t rest < <(go list ./... | grep -vE '/tests/' ; go list ./tests/sentinel)
# Topics mostly wait, so two are tested at a time. The rest measures shorter times, and has the machine for itself.
go build -race -o /dev/null ./...
measured cover.topics.out -p 2 "$@" "${topics[@]}"
measured cover.rest.out -p 1 "$@" "${rest[@]}"
{ cat cover.topics.out; tail -n +2 cover.rest.out; } >cover.out
rm cover.topics.out cover.rest.out
for dir in $(modules); do
  case $dir in . | ./internal/interop) continue ;; esac
  (cd "$dir" && go build -race -o /dev/null ./... && go test -race -p 1 -count=1 -timeout "$timeout" "$@" ./...)
done

# The tests of these files take locks of whatever kind is asked for.
mapfile -t files < <(grep -lE '\b[nN]ewTestMutex\(' ./*_test.go tests/*/*_test.go | grep -vE '/(client|inside|helpers)_test.go')
names=$(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' "${files[@]}" | paste -sd '|')
mapfile -t packages < <(dirname "${files[@]}" | sed 's|^tests|./tests|' | sort -u)
[[ $names == Test* ]] || die "no test for all kinds is found"
kinds_on=redis70
[ "${WATCHLOCK_FULL:-}" != 1 ] || kinds_on=
again() { # variable=value: the same tests, otherwise
  echo "again with $1"
  env "$1" WATCHLOCK_FAMILIES="$kinds_on" go test -race -p 2 -count=1 -timeout "$timeout" -run "^($names)\$" "${@:2}" "${packages[@]}"
}
again WATCHLOCK_KIND=fenced "$@"
again WATCHLOCK_KIND=setnx "$@"
again WATCHLOCK_HANDOFF=0 "$@"
