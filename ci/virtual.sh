#!/usr/bin/env bash
# Runs the tests in virtual time 5 times over, 20 times with WATCHLOCK_FULL=1: a test that leans on real time fails here
# sooner or later.
# These are the tests in virtual*_test.go, and all whose names begin with TestVirtual.
# Usage: ci/virtual.sh   WATCHLOCK_VIRTUAL is another pattern of names, WATCHLOCK_COUNT another count.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
names=$(find . tests -maxdepth 2 -name 'virtual*_test.go' -exec sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' {} + | paste -sd '|')
pattern=${WATCHLOCK_VIRTUAL:-^(TestVirtual.*${names:+|$names})\$}
found=$(go test -list "$pattern" . ./tests/...)
[[ $found == Test* ]] || die "no test matches $pattern"
count=5
[ "${WATCHLOCK_FULL:-}" != 1 ] || count=20
go test -p 1 -count="${WATCHLOCK_COUNT:-$count}" -timeout 30m -run "$pattern" . ./tests/...
