# shellcheck shell=bash
# What the scripts in ci/ share. Sourced, never run. Every script that sources it works from the project's root.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# Where the servers are that tests start for themselves.
export WATCHLOCK_SERVERS=${WATCHLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/watchlock/servers}
case $WATCHLOCK_SERVERS in /*) ;; *) WATCHLOCK_SERVERS=$PWD/$WATCHLOCK_SERVERS ;; esac

# What is tested beside Redis 7.0 and Redisson 4.1.0: with WATCHLOCK_FULL=1 all other servers and versions; else one of them, in
# turn by the hash of the commit. WATCHLOCK_FAMILIES and WATCHLOCK_REDISSONS, where they are set, say it otherwise.
if [ "${WATCHLOCK_FULL:-}" != 1 ]; then
  turn=$(git -C "$PWD" rev-parse --short=7 HEAD 2>/dev/null || echo 0)
  case $((16#$turn % 3)) in
    0) turn='redis70,redis86 4.1.0' ;;
    1) turn='redis70,valkey9 4.1.0' ;;
    2) turn='redis70 4.1.0,3.52.0' ;;
  esac
  export WATCHLOCK_FAMILIES=${WATCHLOCK_FAMILIES:-${turn% *}} WATCHLOCK_REDISSONS=${WATCHLOCK_REDISSONS:-${turn#* }}
fi

die() { echo "${0##*/}: $*" >&2; exit 1; }

# modules prints the folder of each Go module, the root first. The tools have nothing to test.
modules() { find . -name go.mod -not -path './tools/*' -not -path '*/.*/*' -printf '%h\n' | sort; }

# apt_install installs Debian packages, as root or through sudo.
apt_install() {
  local as_root=(env DEBIAN_FRONTEND=noninteractive)
  command -v apt-get >/dev/null || die "no apt-get here: install by hand: $*"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "neither root nor sudo: install by hand: $*"
    as_root=(sudo "${as_root[@]}")
  fi
  echo "installing $*"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
