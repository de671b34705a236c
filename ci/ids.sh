#!/usr/bin/env bash
# Checks docs/proofs.md: every id that this library claims is in its table, and every test that it names exists.
# Usage: ci/ids.sh
set -euo pipefail
. "$(dirname "$0")/lib.sh"
required="
  RL-01 RL-02 RL-03 RL-05 RL-06 RL-07 RL-08 RL-09 RL-10 RL-12 RL-13 RL-14 RL-15 RL-16 RL-18 RL-19 RL-20 RL-21 RL-23
  RL-24 RL-25 WD-03 WD-04 FE-01
  S6 S7 S8 S9 S10 S11 S12 S13 S14 S15 S16 S17 S18 S19 S20 S24
  A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A23 A32 A42 A44 A45 A46 A47 A48 A52 A54 A55 A56
  C1 C2 C9 C13
  W1 W2 W3 W4 W5 W6 W7 W8 W9 W10 W11 W12 W13 W14 W15 W16 W17"
# Rows are: | id | what | `TestName` |, with more tests after a comma.
# shellcheck disable=SC2016
table=$(sed -nE 's/^\| *([A-Z]+-?[0-9]+) *\|.*\| *(`Test[^|]*`) *\|$/\1 \2/p' docs/proofs.md | tr -d '`,')
tests=$(find . -name '*_test.go' -exec sed -nE 's/^func (Test[A-Za-z0-9_]*)\(.*/\1/p' {} + | sort -u)
bad=0
complain() { echo "ids.sh: $*" >&2; bad=$((bad + 1)); }
for id in $required; do
  grep -q "^$id " <<<"$table" || complain "$id is not in docs/proofs.md"
done
while read -r id names; do
  for name in $names; do
    grep -qx "$name" <<<"$tests" || complain "$id names $name, which does not exist"
  done
done <<<"$table"
# Rows without an id name tests too.
# shellcheck disable=SC2016
for name in $(grep -oE '`Test[A-Za-z0-9_]+`' docs/proofs.md | tr -d '`' | sort -u); do
  grep -qx "$name" <<<"$tests" || [[ $name == *_ ]] || complain "docs/proofs.md names $name, which does not exist"
done
[ "$bad" = 0 ] || die "$bad faults"
echo "$(wc -l <<<"$table") ids, each with a test"
