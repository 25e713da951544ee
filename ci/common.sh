# Sourced by the scripts beside it. Not for running.
# A script that can't run here says why and exits with 77, which `cargo xtask test` reports as skipped.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target_dir=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')

# Tests that use up all mappings of their process, of which a sanitizer needs some itself.
without_full_tables=(
    --skip what_can_not_be_unmapped_is_a_signal_and_no_hang
    --skip a_remote_page_comes_and_goes_once_there_is_room
)

skip() {
    echo "SKIPPED: $*" >&2
    exit 77
}

# run_tests PREFIX... -- ARGS...: nextest where it is installed (a process for each test), else
# cargo's own runner. PREFIX is the cargo to use, such as `cargo +nightly`.
run_tests() {
    local cargo=()
    while [ "$1" != -- ]; do
        cargo+=("$1")
        shift
    done
    shift
    if cargo nextest --version >/dev/null 2>&1; then
        "${cargo[@]}" nextest run --no-fail-fast "$@"
    else
        "${cargo[@]}" test --no-fail-fast --lib --bins --tests "$@"
    fi
}

# need_nightly NAME: sanitizers are for nightly compilers only.
need_nightly() {
    cargo +nightly --version >/dev/null 2>&1 ||
        skip "the $1 sanitizer needs a nightly toolchain: rustup toolchain install nightly"
    [ "$host" = x86_64-unknown-linux-gnu ] || skip "the $1 sanitizer is tried on x86_64 Linux only"
}

# run_sanitizer NAME RUSTFLAGS ARGS...: runs tests with a sanitizer. ARGS go to cargo: packages, and
# what else is to be built. The sample kernels are built without it: a worker loads them, and a program
# does not export the sanitizer's runtime to what it loads.
run_sanitizer() {
    local name=$1 flags=$2
    shift 2
    local plain=$target_dir/$name/plain
    CARGO_TARGET_DIR=$plain cargo +nightly build --package gmm-kernels
    GMM_KERNEL_PATH=$(realpath "$plain/debug")
    export GMM_KERNEL_PATH
    export RUSTFLAGS="$flags"
    export CARGO_TARGET_DIR="$target_dir/$name"
    run_tests cargo +nightly -- --target "$host" "$@"
}
