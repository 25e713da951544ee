//! Matrix products: `y = x W^T + b`, with the weights as a model file has them, one row an output.
//!
//! Weights are far larger than activations, and XPU memory is scarce: every weight row is read once a
//! launch, in the order of the file, and used for all tokens while it is in cache. So give a launch
//! about one item for each [`ROWS_AT_ONCE`] rows, and the cores walk through the weights side by side.

use crate::Item;
use crate::math::{LANES, gelu, sum_lanes};

/// How many weight rows an item works on at a time.
pub const ROWS_AT_ONCE: usize = 16;

/// `y[t][o] = bias[o] + sum over i of x[t][i] * weight[o][i]`. Shapes, row-major: `weight` (`nr_out`,
/// `nr_in`), `bias` (`nr_out`), `x` (`nr_tokens`, `nr_in`), `y` (`nr_tokens`, `nr_out`). The items share
/// the outputs.
///
/// # Safety
/// The inputs are readable and not written during the launch; `y` is writable, does not overlap them
/// and nobody else uses it during the launch.
#[expect(clippy::too_many_arguments, reason = "a kernel takes a word for each")]
pub unsafe fn linear(
    item: Item,
    weight: *const f32,
    bias: *const f32,
    x: *const f32,
    y: *mut f32,
    nr_tokens: usize,
    nr_in: usize,
    nr_out: usize,
) {
    let shape = Shape { weight, x, y, nr_tokens, nr_in, nr_out };
    // SAFETY: promised by the caller; each output has a bias.
    unsafe { shape.run(item, |o, sum| sum + bias.add(o).read()) };
}

/// [`linear`] followed by the exact GELU of each element.
///
/// # Safety
/// As [`linear`].
#[expect(clippy::too_many_arguments, reason = "a kernel takes a word for each")]
pub unsafe fn linear_gelu(
    item: Item,
    weight: *const f32,
    bias: *const f32,
    x: *const f32,
    y: *mut f32,
    nr_tokens: usize,
    nr_in: usize,
    nr_out: usize,
) {
    let shape = Shape { weight, x, y, nr_tokens, nr_in, nr_out };
    // SAFETY: promised by the caller; each output has a bias.
    unsafe { shape.run(item, |o, sum| gelu(sum + bias.add(o).read())) };
}

/// A product of matrices of `N`: that of [`linear`] before the bias.
pub(crate) struct Shape<N> {
    pub(crate) weight: *const N,
    pub(crate) x: *const N,
    pub(crate) y: *mut N,
    pub(crate) nr_tokens: usize,
    pub(crate) nr_in: usize,
    pub(crate) nr_out: usize,
}

impl<N: Copy> Shape<N>
where
    f32: From<N>,
{
    /// Computes this item's outputs, of which `finish` makes what is stored, given an output's number
    /// and its sum.
    ///
    /// # Safety
    /// As [`linear`].
    pub(crate) unsafe fn run(&self, item: Item, finish: impl Fn(usize, f32) -> N + Copy) {
        let share = item.share(self.nr_out);
        for first in share.clone().step_by(ROWS_AT_ONCE) {
            let end = share.end.min(first + ROWS_AT_ONCE);
            let mut token = 0;
            while token < self.nr_tokens {
                // SAFETY: tokens and rows within the caller's shapes.
                unsafe {
                    if token + 2 <= self.nr_tokens {
                        self.tokens::<2>(token, first, end, finish);
                        token += 2;
                    } else {
                        self.tokens::<1>(token, first, end, finish);
                        token += 1;
                    }
                }
            }
        }
    }

    /// The outputs `first..end` of `T` tokens.
    ///
    /// # Safety
    /// As [`linear`], with `token + T` at most `nr_tokens` and `end` at most `nr_out`.
    unsafe fn tokens<const T: usize>(
        &self,
        token: usize,
        first: usize,
        end: usize,
        finish: impl Fn(usize, f32) -> N,
    ) {
        let x: [*const N; T] =
            core::array::from_fn(|t| self.x.wrapping_add((token + t) * self.nr_in));
        let row = |o: usize| self.weight.wrapping_add(o * self.nr_in);
        let mut o = first;
        // SAFETY: rows, tokens and outputs within the caller's shapes; y overlaps none of the inputs.
        unsafe {
            while o + 2 <= end {
                let sums = tile(x, [row(o), row(o + 1)], self.nr_in);
                for (t, sums) in sums.into_iter().enumerate() {
                    let y = self.y.add((token + t) * self.nr_out + o);
                    y.write(finish(o, sums[0]));
                    y.add(1).write(finish(o + 1, sums[1]));
                }
                o += 2;
            }
            if o < end {
                let sums = tile(x, [row(o)], self.nr_in);
                for (t, [sum]) in sums.into_iter().enumerate() {
                    let y = self.y.add((token + t) * self.nr_out + o);
                    y.write(finish(o, sum));
                }
            }
        }
    }
}

/// The products of `T` vectors with `R` rows, of length `n` each, in single precision. Whatever `T` and `R`, a product has
/// [`LANES`] partial sums, lane `l` taking the elements `l`, `l + LANES`, ... in order.
///
/// # Safety
/// All vectors and rows have `n` readable elements.
#[inline(always)]
pub(crate) unsafe fn tile<N: Copy, const T: usize, const R: usize>(
    x: [*const N; T],
    rows: [*const N; R],
    n: usize,
) -> [[f32; R]; T]
where
    f32: From<N>,
{
    let mut sums = [[[0f32; LANES]; R]; T];
    let whole = n - n % LANES;
    for i in (0..whole).step_by(LANES) {
        // SAFETY: i + LANES is at most n; an array of numbers is aligned as a number.
        let lanes = |from: *const N| unsafe { from.add(i).cast::<[N; LANES]>().read() };
        let x: [[f32; LANES]; T] = x.map(|x| lanes(x).map(f32::from));
        for r in 0..R {
            let row = lanes(rows[r]).map(f32::from);
            for t in 0..T {
                for l in 0..LANES {
                    sums[t][r][l] += x[t][l] * row[l];
                }
            }
        }
    }
    for i in whole..n {
        for r in 0..R {
            for t in 0..T {
                // SAFETY: i is less than n.
                let (x, row) = unsafe { (x[t].add(i).read(), rows[r].add(i).read()) };
                sums[t][r][i - whole] += f32::from(x) * f32::from(row);
            }
        }
    }
    sums.map(|sums| sums.map(sum_lanes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::erf;
    use crate::norm::test_numbers;

    #[test]
    fn products_agree_with_doubles_and_do_not_depend_on_the_grid() {
        for (nr_tokens, nr_in, nr_out) in [(1, 8, 1), (3, 37, 35), (2, 384, 64), (5, 3, 17)] {
            let weight = test_numbers(1, nr_in * nr_out);
            let bias = test_numbers(2, nr_out);
            let x = test_numbers(3, nr_tokens * nr_in);
            let run = |count, kernel: unsafe fn(Item, _, _, _, _, _, _, _)| {
                let mut y = vec![f32::NAN; nr_tokens * nr_out];
                for index in 0..count {
                    let item = Item::new(index, count);
                    let (w, b, x) = (weight.as_ptr(), bias.as_ptr(), x.as_ptr());
                    // SAFETY: vectors of these shapes.
                    unsafe { kernel(item, w, b, x, y.as_mut_ptr(), nr_tokens, nr_in, nr_out) };
                }
                y
            };
            let (plain, curved) = (run(1, linear), run(1, linear_gelu));
            for count in [2, 3, 16, 100] {
                assert_eq!(plain, run(count, linear), "grid of {count}");
                assert_eq!(curved, run(count, linear_gelu), "grid of {count}");
            }
            for (n, (plain, curved)) in plain.iter().zip(&curved).enumerate() {
                let (t, o) = (n / nr_out, n % nr_out);
                let exact = (0..nr_in)
                    .map(|i| f64::from(x[t * nr_in + i]) * f64::from(weight[o * nr_in + i]))
                    .sum::<f64>()
                    + f64::from(bias[o]);
                let bound = 1e-6 * (nr_in as f64).sqrt();
                assert!((f64::from(*plain) - exact).abs() < bound, "token {t}, output {o}");
                let exact = exact * 0.5 * (1.0 + erf(exact / 2f64.sqrt()));
                assert!((f64::from(*curved) - exact).abs() < 2.0 * bound, "token {t}, output {o}");
            }
        }
    }
}
