//! Matrix products: `C = A B`, in single and in half precision. Sums are of single precision in both.
//!
//! B lies column by column: a launch reads each column once, in order, and uses it for all rows of A
//! while it is in cache. So give a launch about one item for each [`COLUMNS_AT_ONCE`] columns.

use crate::Item;
use crate::half::F16;
use crate::linear::{ROWS_AT_ONCE, Shape};

/// How many columns of B an item works on at a time.
pub const COLUMNS_AT_ONCE: usize = ROWS_AT_ONCE;

/// `c[i][j] = sum over l of a[i][l] * b[l][j]`. Shapes: `a` (`n`, `k`) and `c` (`n`, `m`) row by row,
/// `b` (`k`, `m`) column by column. The items share the columns.
///
/// # Safety
/// The inputs are readable and not written during the launch; `c` is writable, does not overlap them
/// and nobody else uses it during the launch.
pub unsafe fn product(
    item: Item,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    n: usize,
    k: usize,
    m: usize,
) {
    let shape = Shape { weight: b, x: a, y: c, nr_tokens: n, nr_in: k, nr_out: m };
    // SAFETY: promised by the caller.
    unsafe { shape.run(item, |_, sum| sum) };
}

/// [`product`] of numbers of half precision, each given as its bits (see [`F16`]). An element of C is
/// rounded once.
///
/// # Safety
/// As [`product`].
pub unsafe fn product_f16(
    item: Item,
    a: *const u16,
    b: *const u16,
    c: *mut u16,
    n: usize,
    k: usize,
    m: usize,
) {
    let (x, weight, y) = (a.cast::<F16>(), b.cast::<F16>(), c.cast::<F16>());
    let shape = Shape { weight, x, y, nr_tokens: n, nr_in: k, nr_out: m };
    // SAFETY: promised by the caller; a half is its bits.
    unsafe { shape.run(item, |_, sum| F16::from(sum)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::norm::test_numbers;

    #[test]
    fn products_agree_with_doubles_in_both_precisions() {
        for (n, k, m) in [(1, 8, 1), (3, 37, 35), (2, 384, 64), (5, 3, 17)] {
            let halves = |seed, len| -> Vec<u16> {
                test_numbers(seed, len).iter().map(|&x| F16::from(x).0).collect()
            };
            let (a, b) = (halves(1, n * k), halves(2, k * m));
            let singles =
                |halves: &[u16]| -> Vec<f32> { halves.iter().map(|&h| F16(h).into()).collect() };
            let (a_single, b_single) = (singles(&a), singles(&b));
            for count in [1, 2, 16, 100] {
                let (mut c, mut c_single) = (vec![0; n * m], vec![0.0; n * m]);
                for item in (0..count).map(|index| Item::new(index, count)) {
                    let (a, b) = (a.as_ptr(), b.as_ptr());
                    // SAFETY: matrices of these shapes.
                    unsafe { product_f16(item, a, b, c.as_mut_ptr(), n, k, m) };
                    let (a, b) = (a_single.as_ptr(), b_single.as_ptr());
                    // SAFETY: matrices of these shapes.
                    unsafe { product(item, a, b, c_single.as_mut_ptr(), n, k, m) };
                }
                for (place, (&half, &single)) in c.iter().zip(&c_single).enumerate() {
                    let (i, j) = (place / m, place % m);
                    let terms = (0..k)
                        .map(|l| f64::from(a_single[i * k + l]) * f64::from(b_single[j * k + l]));
                    let exact: f64 = terms.sum();
                    let bound = 1e-6 * (k as f64).sqrt();
                    assert!((f64::from(single) - exact).abs() < bound, "row {i}, column {j}");
                    // The sums are the same, and rounded once.
                    assert_eq!(F16(half), F16::from(single), "row {i}, column {j}");
                }
            }
        }
    }
}
