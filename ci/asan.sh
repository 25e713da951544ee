#!/usr/bin/env bash
# Address sanitizer over what cargo is told to test, or over all packages that have unsafe code.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_nightly address
# Left out: tests that use up all mappings of their process, of which the sanitizer needs some itself.
[ $# -gt 0 ] || set -- --package gmm-os --package gmm-cpu --package gmm-hostxpu --package gmm-memory \
    -- --skip what_can_not_be_unmapped_is_a_signal_and_no_hang \
    --skip a_remote_page_comes_and_goes_once_there_is_room
run_sanitizer asan '-Zsanitizer=address' "$@"
