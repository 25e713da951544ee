# Sourced by the scripts beside it. Not for running.
# A script that can't run here says why and exits with 77, which `cargo xtask test` reports as skipped.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target_dir=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')

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

# run_sanitizer NAME RUSTFLAGS PACKAGE...: builds the sample kernels and runs the packages' tests
# with a sanitizer, which only a nightly compiler offers.
run_sanitizer() {
    local name=$1 flags=$2
    shift 2
    cargo +nightly --version >/dev/null 2>&1 ||
        skip "the $name sanitizer needs a nightly toolchain: rustup toolchain install nightly"
    [ "$host" = x86_64-unknown-linux-gnu ] || skip "the $name sanitizer is tried on x86_64 Linux only"
    local packages=()
    for package in "$@"; do
        packages+=(--package "$package")
    done
    export RUSTFLAGS="$flags"
    export CARGO_TARGET_DIR="$target_dir/$name"
    cargo +nightly build --target "$host" --package gmm-kernels
    run_tests cargo +nightly -- --target "$host" "${packages[@]}"
}
