#!/usr/bin/env bash
# Prints the coverage of the library and its parts as ci/unit.sh measured it. Fails under WATCHLOCK_COVER percent, 90 by default.
# Usage: ci/cover.sh
set -euo pipefail
. "$(dirname "$0")/lib.sh"
least=${WATCHLOCK_COVER:-90}
[ -e cover.out ] || die "no cover.out: run ci/unit.sh first"
total=$(go tool cover -func=cover.out | awk '/^total:/ { sub(/%/, "", $NF); print $NF }')
echo "coverage of the library: $total %"
awk -v total="$total" -v least="$least" 'BEGIN { exit !(total + 0 >= least + 0) }' || die "under $least %"
