#!/usr/bin/env bash
# Thread sanitizer over what cargo is told to test, or over the packages whose threads share memory
# inside one process. The host XPU is left out: its cores are another process, which the sanitizer
# does not see. The window lies elsewhere in such a build (cfg gmm_tsan): the sanitizer allows few
# address ranges.
#
# The standard library is built with the sanitizer as well. The one that comes with the compiler is
# not, so the sanitizer does not see how a lock that was waited for is handed over, and reports a race
# on all that such a lock guards. Built so, no report has to be suppressed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_nightly thread
source_of_std=$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/std
[ -d "$source_of_std" ] ||
    skip "the thread sanitizer needs the standard library's source: rustup component add rust-src --toolchain nightly"
# Left out: a test that looks for the window's addresses among the mappings of its process, which
# the sanitizer's own mappings cover; and those that take minutes each and run in one thread: two hold a
# guide to the code, one holds the core to a model.
[ $# -gt 0 ] || set -- --package gmm-core --package gmm-driver-tests --package gmm-cpu \
    -- --skip what_is_mapped_is_named_not_inherited_and_gone_after_the_drop \
    --skip the_guide_names_every_rule --skip the_example_passes_the_kit \
    --skip random_operations_where "${without_full_tables[@]}"
run_sanitizer tsan '-Zsanitizer=thread --cfg gmm_tsan -Cunsafe-allow-abi-mismatch=sanitizer' \
    -Zbuild-std "$@"
