#!/usr/bin/env bash
# Holds the root package to its counts of allocations, commands and goroutines, without the race detector, which
# allocates; then runs each benchmark for a moment, so that none of them breaks unseen.
# Usage: ci/gates.sh [FLAG...]   flags go to go test, say -v for the counts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
go test -count=1 -timeout 10m -run '^TestGate|^TestSixteenLocal' -bench . -benchtime 20x "$@" . ./tests/handoff
