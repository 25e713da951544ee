#!/usr/bin/env bash
# Address sanitizer over what cargo is told to test, or over all packages that have unsafe code.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_nightly address
[ $# -gt 0 ] || set -- --package gmm-os --package gmm-cpu --package gmm-hostxpu --package gmm-memory \
    -- "${without_full_tables[@]}"
run_sanitizer asan '-Zsanitizer=address' "$@"
