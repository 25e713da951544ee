#!/usr/bin/env bash
# Thread sanitizer over the packages named, or over all that have threads. Needs a nightly toolchain.
# The window lies elsewhere in such a build (cfg gmm_tsan): the sanitizer allows few address ranges.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export TSAN_OPTIONS="suppressions=$PWD/ci/tsan.supp ${TSAN_OPTIONS:-}"
[ $# -gt 0 ] || set -- gmm-core gmm-driver-tests gmm-cpu gmm-hostxpu gmm-memory
run_sanitizer tsan '-Zsanitizer=thread --cfg gmm_tsan -Cunsafe-allow-abi-mismatch=sanitizer' "$@"
