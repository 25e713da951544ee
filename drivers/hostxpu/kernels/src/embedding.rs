//! From token numbers to vectors.

use crate::Item;
use crate::norm::layer_norm;

/// `out[t] = layer_norm(words[ids[t]] + kind + positions[t])`. Shapes, row-major: `ids` (`nr_tokens`),
/// `words` (vocabulary, `width`), `positions` (at least `nr_tokens`, `width`), `kind`, `gamma`, `beta`
/// (`width`), `out` (`nr_tokens`, `width`). The items share the tokens.
///
/// # Safety
/// Every id is less than the vocabulary; the inputs are readable and not written during the launch;
/// `out` is writable, does not overlap them and nobody else uses it during the launch.
#[expect(clippy::too_many_arguments, reason = "a kernel takes a word for each")]
pub unsafe fn embed(
    item: Item,
    ids: *const u32,
    words: *const f32,
    positions: *const f32,
    kind: *const f32,
    gamma: *const f32,
    beta: *const f32,
    epsilon: f32,
    out: *mut f32,
    nr_tokens: usize,
    width: usize,
) {
    for token in item.share(nr_tokens) {
        // SAFETY: rows of the caller's shapes; the shares of the items don't overlap.
        unsafe {
            let id = ids.add(token).read() as usize;
            let word = core::slice::from_raw_parts(words.add(id * width), width);
            let position = core::slice::from_raw_parts(positions.add(token * width), width);
            let kind = core::slice::from_raw_parts(kind, width);
            // An activation buffer may hold anything before its first use: written, never read.
            out.add(token * width).write_bytes(0, width);
            let row = core::slice::from_raw_parts_mut(out.add(token * width), width);
            for (i, x) in row.iter_mut().enumerate() {
                *x = (word[i] + kind[i]) + position[i];
            }
            layer_norm(row, gamma, beta, epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::norm::test_numbers;

    #[test]
    fn each_token_gets_its_word_its_place_and_its_kind() {
        let (nr_words, width) = (9, 12);
        let words = test_numbers(1, nr_words * width);
        let positions = test_numbers(2, 4 * width);
        let [kind, gamma, beta] = [3, 4, 5].map(|seed| test_numbers(seed, width));
        let ids = [8u32, 0, 3];
        let run = |count| {
            let mut out = vec![f32::NAN; ids.len() * width];
            for index in 0..count {
                // SAFETY: vectors of these shapes, ids below 9.
                unsafe {
                    embed(
                        Item::new(index, count),
                        ids.as_ptr(),
                        words.as_ptr(),
                        positions.as_ptr(),
                        kind.as_ptr(),
                        gamma.as_ptr(),
                        beta.as_ptr(),
                        1e-12,
                        out.as_mut_ptr(),
                        ids.len(),
                        width,
                    );
                }
            }
            out
        };
        let got = run(1);
        assert!([2, 3, 8].iter().all(|count| run(*count) == got));
        for (t, id) in ids.iter().enumerate() {
            let sum: Vec<f64> = (0..width)
                .map(|i| {
                    f64::from(words[*id as usize * width + i])
                        + f64::from(kind[i])
                        + f64::from(positions[t * width + i])
                })
                .collect();
            let mean = sum.iter().sum::<f64>() / width as f64;
            let variance = sum.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
            for i in 0..width {
                let exact =
                    (sum[i] - mean) / variance.sqrt() * f64::from(gamma[i]) + f64::from(beta[i]);
                assert!((f64::from(got[t * width + i]) - exact).abs() < 1e-5, "{t}, {i}");
            }
        }
    }
}
