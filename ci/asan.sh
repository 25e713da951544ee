#!/usr/bin/env bash
# Address sanitizer over the packages named, or over all that have unsafe code. Needs a nightly toolchain.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- gmm-cpu gmm-hostxpu gmm-memory
run_sanitizer asan '-Zsanitizer=address' "$@"
