#!/usr/bin/env bash
# Build sandbox-init, static, and put it beside the other programs: target/release/sandbox-init.
#
# It is PID 1 in root file systems that may hold no C library, or another one, so it must bring its own. The musl
# target does that in 0.4 MiB. Where that target cannot be had, a static glibc build does as well; it is larger.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-$PWD/target}
machine=$(uname -m)
musl=$machine-unknown-linux-musl
gnu=$machine-unknown-linux-gnu

has_musl() { [ -d "$(rustc --print target-libdir --target "$musl" 2>/dev/null)" ]; }

if ! has_musl && command -v rustup >/dev/null; then
    rustup target add "$musl" || true
fi

if has_musl; then
    cargo build --locked --profile init --package sandbox-init --target "$musl"
    built=$target/$musl/init/sandbox-init
else
    printf '%s\n' "sandbox-init: THE TARGET $musl IS NOT INSTALLED and rustup cannot add it;" \
        "sandbox-init: building with a static glibc instead: it works the same and is larger" >&2
    # With --target these flags are the program's alone, not its build script's.
    RUSTFLAGS="-C target-feature=+crt-static" \
        cargo build --locked --profile init --package sandbox-init --target "$gnu"
    built=$target/$gnu/init/sandbox-init
fi

if [ "$(od -An -tx1 -N4 "$built" | tr -d ' ')" != 7f454c46 ] || readelf -l "$built" 2>/dev/null | grep -q INTERP; then
    echo "sandbox-init: $built is not a static program" >&2
    exit 1
fi
# A running sandbox may have the old one open: replace it, do not write into it.
mkdir -p "$target/release"
install -m 0755 "$built" "$target/release/sandbox-init.new"
mv "$target/release/sandbox-init.new" "$target/release/sandbox-init"
