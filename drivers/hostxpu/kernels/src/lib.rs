//! Sample kernels for the host XPU: a few small ones to learn and test with, those of a BERT encoder,
//! products of matrices, and a step of training.
//!
//! # The binary interface
//! A kernel is an exported `extern "C" fn(index, count, args)`. A launch of `count` work items calls
//! it once for each `index` in `0..count`, on any core, in any order, several at the same time.
//! `args` points at 64-bit words: an address as it is, an integer zero-extended, an `f32` as its bits
//! in the low half. Addresses are addresses of unified memory, so the same function called with the
//! same words on the CPU gives the same result: this crate is a Rust library too, and [`KERNELS`] is
//! its table.
//!
//! # What every kernel here guarantees
//! - A result never depends on `count`, on how many cores there are or on the order of the items: each
//!   output element is computed by one item, in one fixed order of operations.
//! - No operation depends on features of the machine: no fused multiply-add, no function of the C
//!   mathematics library ([`math`] has its own), no dispatch on the processor's model.
//! - No kernel allocates, locks or panics; bounds are the caller's promise, as on any accelerator.

#[macro_use]
mod abi;
pub mod attention;
pub mod embedding;
pub mod half;
pub mod linear;
pub mod math;
pub mod norm;
pub mod product;
pub mod samples;
pub mod stress;
pub mod tags;
pub mod train;

pub use abi::{Entry, Item, Kernel, Word};

export! {
    samples::square(data, len);
    samples::fill(data, len, value);
    samples::multiply(data, factors, len);
    samples::sum_list(head, out);
    samples::tree(root, keys, found, len);
    stress::count_pages(base, nr_pages, stride, rounds, slot, seed);
    stress::touch(base, len_bytes, write);
    stress::touch_part(base, len_bytes, write, first, nr_pieces);
    stress::touch_timed(base, len_bytes, times, order);
    stress::touch_paced(base, len_bytes, times, order, pause_us);
    stress::sweep(base, nr_pages, value, out);
    stress::wild(address, value);
    stress::spin(flag, max_spins, out);
    tags::tag_words(base, len_bytes, tag);
    tags::count_tagged(base, len_bytes, tag, count);
    embedding::embed(ids, words, positions, kind, gamma, beta, epsilon, out, nr_tokens, width);
    linear::linear(weight, bias, x, y, nr_tokens, nr_in, nr_out);
    linear::linear_gelu(weight, bias, x, y, nr_tokens, nr_in, nr_out);
    product::product(a, b, c, n, k, m);
    product::product_f16(a, b, c, n, k, m);
    attention::attention(query, key, value, context, nr_tokens, nr_heads, head_width);
    norm::add_norm(x, delta, gamma, beta, epsilon, nr_tokens, width);
    norm::mean_pool(x, out, nr_tokens, width);
    train::descend(weight, x, target, nr_in, nr_out, rate);
}
