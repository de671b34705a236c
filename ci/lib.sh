# shellcheck shell=bash
# What the scripts in ci/ share. Sourced, never run. Every script that sources it works from the project's root.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# Where the servers are that tests start for themselves.
export WATCHLOCK_SERVERS=${WATCHLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/watchlock/servers}
case $WATCHLOCK_SERVERS in /*) ;; *) WATCHLOCK_SERVERS=$PWD/$WATCHLOCK_SERVERS ;; esac

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
