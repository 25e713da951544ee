//! Layer normalisation and pooling.

use crate::Item;

/// `x = (x - mean) / sqrt(variance + epsilon) * gamma + beta` over one row, in place; mean and variance
/// in double precision, summed from left to right.
///
/// # Safety
/// `gamma` and `beta` have as many readable elements as `row` and nobody writes to them.
pub(crate) unsafe fn layer_norm(
    row: &mut [f32],
    gamma: *const f32,
    beta: *const f32,
    epsilon: f32,
) {
    let n = f64::from(row.len() as u32);
    let mean = row.iter().fold(0.0, |sum, x| sum + f64::from(*x)) / n;
    let squares = row.iter().fold(0.0, |sum, x| {
        let difference = f64::from(*x) - mean;
        sum + difference * difference
    });
    let scale = 1.0 / (squares / n + f64::from(epsilon)).sqrt();
    for (i, x) in row.iter_mut().enumerate() {
        let normal = (f64::from(*x) - mean) * scale;
        // SAFETY: i is within the row, so within gamma and beta.
        let (gamma, beta) = unsafe { (gamma.add(i).read(), beta.add(i).read()) };
        *x = (normal * f64::from(gamma) + f64::from(beta)) as f32;
    }
}

/// `x = layer_norm(x + delta)`, row by row, in place. `x` and `delta` have the shape (`nr_tokens`,
/// `width`), row-major; `gamma` and `beta` have `width` elements. The items share the rows.
///
/// # Safety
/// `delta`, `gamma` and `beta` are readable and not written during the launch; `x` is readable and
/// writable, overlaps none of them and nobody else uses it during the launch.
#[expect(clippy::too_many_arguments, reason = "a kernel takes a word for each")]
pub unsafe fn add_norm(
    item: Item,
    x: *mut f32,
    delta: *const f32,
    gamma: *const f32,
    beta: *const f32,
    epsilon: f32,
    nr_tokens: usize,
    width: usize,
) {
    for token in item.share(nr_tokens) {
        // SAFETY: a row of the caller's shapes; the shares of the items don't overlap.
        unsafe {
            let row = core::slice::from_raw_parts_mut(x.add(token * width), width);
            let delta = core::slice::from_raw_parts(delta.add(token * width), width);
            for (x, delta) in row.iter_mut().zip(delta) {
                *x += delta;
            }
            layer_norm(row, gamma, beta, epsilon);
        }
    }
}

/// The mean of the rows, scaled to length 1 (a length below 1e-12 counts as 1e-12). `x` has the shape
/// (`nr_tokens`, `width`), row-major, `out` has `width` elements. The first item does it all.
///
/// # Safety
/// `x` is readable and not written during the launch; `out` is writable, does not overlap `x` and
/// nobody else uses it during the launch.
pub unsafe fn mean_pool(item: Item, x: *const f32, out: *mut f32, nr_tokens: usize, width: usize) {
    if item.index() != 0 {
        return;
    }
    // SAFETY: arrays of the caller's shapes that don't overlap.
    let (x, out) = unsafe {
        out.write_bytes(0, width);
        (
            core::slice::from_raw_parts(x, nr_tokens * width),
            core::slice::from_raw_parts_mut(out, width),
        )
    };
    if width == 0 {
        return;
    }
    for row in x.chunks_exact(width) {
        for (sum, x) in out.iter_mut().zip(row) {
            *sum += x;
        }
    }
    let nr_tokens = f64::from(nr_tokens.max(1) as u32);
    let squares = out.iter().fold(0.0, |sum, x| {
        let mean = f64::from(*x) / nr_tokens;
        sum + mean * mean
    });
    let scale = 1.0 / (nr_tokens * squares.sqrt().max(1e-12));
    for x in out {
        *x = (f64::from(*x) * scale) as f32;
    }
}

/// Repeatable numbers between -1 and 1.
#[cfg(test)]
pub(crate) fn test_numbers(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / 2f32.powi(31) - 1.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normed_row_agrees_with_doubles_on_every_grid() {
        let (nr_tokens, width) = (5, 37);
        let [x, delta] = [1, 2].map(|seed| test_numbers(seed, nr_tokens * width));
        let [gamma, beta] = [3, 4].map(|seed| test_numbers(seed, width));
        let run = |count| {
            let mut x = x.clone();
            for index in 0..count {
                let item = Item::new(index, count);
                let (d, g, b) = (delta.as_ptr(), gamma.as_ptr(), beta.as_ptr());
                // SAFETY: vectors of these shapes.
                unsafe { add_norm(item, x.as_mut_ptr(), d, g, b, 1e-12, nr_tokens, width) };
            }
            x
        };
        let got = run(1);
        assert!([2, 5, 9].iter().all(|count| run(*count) == got));
        for t in 0..nr_tokens {
            let row: Vec<f64> = (t * width..(t + 1) * width)
                .map(|i| f64::from(x[i]) + f64::from(delta[i]))
                .collect();
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
            for (i, x) in row.iter().enumerate() {
                let exact = (x - mean) / variance.sqrt() * f64::from(gamma[i]) + f64::from(beta[i]);
                assert!((f64::from(got[t * width + i]) - exact).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_constant_row_norms_to_beta() {
        let mut row = [3.0; 8];
        // SAFETY: arrays of eight.
        unsafe { layer_norm(&mut row, [1.0; 8].as_ptr(), [0.5; 8].as_ptr(), 1e-12) };
        assert_eq!(row, [0.5; 8]);
    }

    #[test]
    fn pooling_gives_the_direction_of_the_mean() {
        let (nr_tokens, width) = (7, 10);
        let x = test_numbers(9, nr_tokens * width);
        let mut out = vec![f32::NAN; width];
        for index in [1, 0] {
            // SAFETY: vectors of these shapes.
            unsafe {
                mean_pool(Item::new(index, 2), x.as_ptr(), out.as_mut_ptr(), nr_tokens, width);
            }
        }
        let sum = |i| (0..nr_tokens).map(|t| f64::from(x[t * width + i])).sum::<f64>();
        let norm = (0..width).map(|i| sum(i) * sum(i)).sum::<f64>().sqrt();
        for (i, got) in out.iter().enumerate() {
            assert!((f64::from(*got) - sum(i) / norm).abs() < 1e-6, "element {i}");
        }
    }

    #[test]
    fn pooling_zeros_gives_zeros() {
        let mut out = [1.0; 4];
        // SAFETY: arrays of these shapes.
        unsafe { mean_pool(Item::new(0, 1), [0.0; 8].as_ptr(), out.as_mut_ptr(), 2, 4) };
        assert_eq!(out, [0.0; 4]);
    }
}
