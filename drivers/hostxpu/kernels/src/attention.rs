//! Scaled dot-product attention over one sentence, without a mask.

use crate::Item;
use crate::linear::tile;
use crate::math::exp;

/// The longest sentence, in tokens.
pub const MAX_TOKENS: usize = 512;

/// The widest head.
pub const MAX_HEAD_WIDTH: usize = 128;

/// `context = softmax(query key^T / sqrt(head_width)) value`, for each head by itself. All four arrays
/// have the shape (`nr_tokens`, `nr_heads * head_width`), row-major, the heads side by side in a row.
/// `context` may be the same array as `query`. The items share the pairs of head and token.
///
/// # Safety
/// `nr_tokens` is at most [`MAX_TOKENS`] and `head_width` at most [`MAX_HEAD_WIDTH`]; the inputs are
/// readable and not written by others during the launch; `context` is writable, overlaps neither `key`
/// nor `value`, is `query` or does not overlap it, and nobody else uses it during the launch.
#[expect(clippy::too_many_arguments, reason = "a kernel takes a word for each")]
pub unsafe fn attention(
    item: Item,
    query: *const f32,
    key: *const f32,
    value: *const f32,
    context: *mut f32,
    nr_tokens: usize,
    nr_heads: usize,
    head_width: usize,
) {
    let width = nr_heads * head_width;
    let scale = 1.0 / f64::from(head_width as u32).sqrt();
    let mut scores = [0f32; MAX_TOKENS];
    let scores = &mut scores[..nr_tokens.min(MAX_TOKENS)];
    for unit in item.share(nr_heads * scores.len()) {
        let (head, token) = (unit / scores.len(), unit % scores.len());
        let at = |t: usize| t * width + head * head_width;
        let mut sums = [0f32; MAX_HEAD_WIDTH];
        let sums = &mut sums[..head_width.min(MAX_HEAD_WIDTH)];
        // SAFETY: tokens and heads within the caller's shapes. This unit's part of `query` is read for
        // the last time before its part of `context`, which may be the same, is written.
        unsafe {
            for (t, score) in scores.iter_mut().enumerate() {
                let [[product]] = tile([query.add(at(token))], [key.add(at(t))], sums.len());
                *score = product;
            }
            softmax(scores, scale);
            for (t, weight) in scores.iter().enumerate() {
                let row = core::slice::from_raw_parts(value.add(at(t)), sums.len());
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += weight * x;
                }
            }
            core::ptr::copy_nonoverlapping(sums.as_ptr(), context.add(at(token)), sums.len());
        }
    }
}

/// Scores into weights that are positive and sum to 1.
fn softmax(scores: &mut [f32], scale: f64) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for score in &mut *scores {
        let power = exp((f64::from(*score) - f64::from(largest)) * scale);
        total += power;
        *score = power as f32;
    }
    for score in scores {
        *score = (f64::from(*score) / total) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::norm::test_numbers;

    #[test]
    fn attention_agrees_with_doubles_and_does_not_depend_on_the_grid() {
        for (nr_tokens, nr_heads, head_width) in [(1, 2, 8), (5, 3, 5), (40, 2, 32)] {
            let width = nr_heads * head_width;
            let len = nr_tokens * width;
            let [query, key, value] = [4, 5, 6].map(|seed| test_numbers(seed, len));
            let run = |count, in_place: bool| {
                let mut q = query.clone();
                let mut context = vec![f32::NAN; len];
                let context_at = if in_place { q.as_mut_ptr() } else { context.as_mut_ptr() };
                let q_at: *const f32 = if in_place { context_at } else { q.as_ptr() };
                for index in 0..count {
                    let item = Item::new(index, count);
                    let (k, v) = (key.as_ptr(), value.as_ptr());
                    // SAFETY: vectors of these shapes.
                    unsafe {
                        attention(item, q_at, k, v, context_at, nr_tokens, nr_heads, head_width);
                    }
                }
                if in_place { q } else { context }
            };
            let context = run(1, false);
            for count in [2, 7, 64] {
                assert_eq!(context, run(count, false), "grid of {count}");
                assert_eq!(context, run(count, true), "grid of {count}, in place");
            }
            for (n, got) in context.iter().enumerate() {
                let (t, head) = (n / width, n % width / head_width);
                let row = |x: &[f32], t: usize| -> Vec<f64> {
                    let start = t * width + head * head_width;
                    x[start..start + head_width].iter().copied().map(f64::from).collect()
                };
                let q = row(&query, t);
                let powers: Vec<f64> = (0..nr_tokens)
                    .map(|s| {
                        let dot: f64 = q.iter().zip(row(&key, s)).map(|(a, b)| a * b).sum();
                        (dot / (head_width as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = powers.iter().sum();
                let exact: f64 = (0..nr_tokens)
                    .map(|s| powers[s] / total * row(&value, s)[n % head_width])
                    .sum();
                assert!((f64::from(*got) - exact).abs() < 1e-6, "element {n}: {got}, {exact}");
            }
        }
    }
}
