#!/usr/bin/env bash
# Installs and starts what the tests need and runs everything. Stops at the first failure.
# Usage: ci/test.sh [STEP...]
#   prepare   what a new Debian 12 machine with Go lacks: a C compiler, PostgreSQL, Redis 7.0 and 8.6, Valkey 9.1, a JDK,
#             Maven and Node; and the programs of internal/interop, which it builds
#   lint      go vet, golangci-lint, gofumpt and, where installed, shellcheck
#   unit      every other test under the race detector, those for all lock kinds once for each kind
#   interop   locks shared with Redisson on the JVM, NestJS and other programs
#   gates     allocations, commands and goroutines by number, and each benchmark for a moment
#   cover     coverage of the library and its parts, measured by unit
#   virtual   the tests in virtual time, 5 times
#   ids       the table of proofs names a test for each id
# Without a STEP: all of them, in this order. Each is a script of its own, ci/STEP.sh.
# On Redis 7.0 with Redisson 4.1.0, and one more of Redis 8.6, Valkey and Redisson 3.52.0 in turn (ci/lib.sh).
# WATCHLOCK_FULL=1 runs all of it on all of them, in full counts, which the tests read themselves: hours.
# WATCHLOCK_SERVERS=DIR names the folder of the servers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
steps=("$@")
[ $# -gt 0 ] || steps=(prepare lint unit interop gates cover virtual ids)
for step in "${steps[@]}"; do [ -x "ci/$step.sh" ] || die "no step $step"; done

log=() step=none began=0
report() {
  local status=$?
  [ $status = 0 ] || log+=("$(printf '%-8s %4d s  FAILED' "$step" $((SECONDS - began)))")
  printf '\nwall time:\n'
  printf '  %s\n' "${log[@]}" "$(printf '%-8s %4d s' all $SECONDS)"
}
trap report EXIT

for step in "${steps[@]}"; do
  printf '\n== %s\n' "$step"
  began=$SECONDS
  "ci/$step.sh" </dev/null
  log+=("$(printf '%-8s %4d s' "$step" $((SECONDS - began)))")
done
