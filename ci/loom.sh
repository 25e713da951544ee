#!/usr/bin/env bash
# The trace's ring under every interleaving of its two threads, with every reordering that the memory
# model allows (cfg loom).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export RUSTFLAGS='--cfg loom'
export CARGO_TARGET_DIR="$target_dir/loom"
exec cargo test --package gmm-memory --test trace_ring "$@"
