# Sourced: make a virtual environment for a list of pinned requirements, once.
#
# venv NAME FILE... -> the environment's directory in $venv, under target/, named by the lists' hash.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

venv() {
    local name=$1 hash
    shift
    hash=$(cat "$@" | sha256sum | cut -c1-16)
    venv=$target/venv/$name-$hash
    [ -e "$venv/.ready" ] && return
    rm -rf "$venv"
    python3 -m venv "$venv"
    local file args=()
    for file in "$@"; do args+=(-r "$file"); done
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${args[@]}" >&2
    touch "$venv/.ready"
}
