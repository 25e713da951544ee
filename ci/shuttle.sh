#!/usr/bin/env bash
# The interleavings of the entry protocol, reclaim against fault and unmap against fault, under the
# shuttle scheduler, which replaces every lock of the core (cfg shuttle).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ -f crates/gmm-driver-tests/tests/interleavings.rs ] ||
    skip "crates/gmm-driver-tests/tests/interleavings.rs does not exist"
export RUSTFLAGS='--cfg shuttle'
export CARGO_TARGET_DIR="$target_dir/shuttle"
exec cargo test --package gmm-driver-tests --test interleavings "$@"
