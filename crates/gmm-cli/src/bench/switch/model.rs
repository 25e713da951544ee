//! A synthetic model with the shape of Llama: its weights are random, the products that one token
//! needs are all there. It runs on any machine that runs the sample kernels.

use anyhow::Context as _;
use gmm_kernels::KERNELS;
use gmm_kernels::linear::ROWS_AT_ONCE;

/// Runs a kernel: its name, how many items, and its words.
pub(super) type Launch<'a> = dyn FnMut(&str, u64, &[u64]) -> anyhow::Result<()> + 'a;

/// The shape of all layers: attention (query, key, value and output, square) and a gated feed-forward
/// network (gate, up and down). Weights are `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) width: usize,
    /// Of the feed-forward network: 8/3 of the width, as in Llama, rounded up to 32.
    pub(super) inner: usize,
    pub(super) nr_layers: usize,
}

impl Shape {
    /// The shape with the most layers that fits in so many bytes, and at least one.
    pub(super) fn within(bytes: u64) -> Self {
        // Narrower where there would be few layers.
        let shape = |width: usize| {
            let inner = (8 * width).div_ceil(3).next_multiple_of(32);
            let one = Self { width, inner, nr_layers: 1 };
            Self { nr_layers: (bytes / one.weight_bytes()).max(1) as usize, ..one }
        };
        [1024, 512, 256].map(shape).into_iter().find(|s| s.nr_layers >= 6).unwrap_or(shape(128))
    }

    fn layer_weights(self) -> usize {
        4 * self.width * self.width + 3 * self.width * self.inner
    }

    pub(super) fn nr_weights(self) -> usize {
        self.nr_layers * self.layer_weights()
    }

    pub(super) fn weight_bytes(self) -> u64 {
        self.nr_weights() as u64 * 4
    }

    /// How many numbers a pass needs beside the weights.
    pub(super) fn nr_scratch(self) -> usize {
        7 * self.inner
    }

    /// Random weights: small, so that sums stay so.
    pub(super) fn weights(self, seed: u32) -> Vec<f32> {
        let scale = 1.0 / (self.width as f32).sqrt();
        (0..self.nr_weights()).map(|nr| number(nr as u32, seed) * scale).collect()
    }

    /// What lies in the scratch memory before a pass: the token, and the constants of the layers.
    pub(super) fn prepare(self, scratch: &mut [f32], token: u32) {
        scratch.fill(0.0);
        let at = self.places();
        for (nr, x) in scratch[at.x..][..self.width].iter_mut().enumerate() {
            *x = number(nr as u32, token);
        }
        scratch[at.ones..][..self.width].fill(1.0);
    }

    /// The output of a pass.
    pub(super) fn output(self, scratch: &[f32]) -> &[f32] {
        &scratch[self.places().x..][..self.width]
    }

    fn places(self) -> Places {
        let nth = |n: usize| n * self.inner;
        Places {
            x: nth(0),
            zeros: nth(1),
            ones: nth(2),
            a: nth(3),
            b: nth(4),
            gate: nth(5),
            up: nth(6),
        }
    }

    /// One token's pass through all layers: calls `launch` with a kernel, how many items, and words.
    /// (The attention of a first token gives its own value: query and key are computed, and of no
    /// use.)
    pub(super) fn pass(
        self,
        weights: *const f32,
        scratch: *mut f32,
        launch: &mut Launch<'_>,
    ) -> anyhow::Result<()> {
        let Self { width, inner, .. } = self;
        let at = self.places();
        let place = |nr: usize| word(scratch.wrapping_add(nr));
        let [x, zeros, ones, a, b, gate, up] =
            [at.x, at.zeros, at.ones, at.a, at.b, at.gate, at.up].map(place);
        let mut weight = weights;
        let mut linear = |launch: &mut Launch<'_>,
                          kernel: &str,
                          [from, to]: [u64; 2],
                          [nr_in, nr_out]: [usize; 2]| {
            let words = [word(weight), zeros, from, to, 1, nr_in as u64, nr_out as u64];
            weight = weight.wrapping_add(nr_in * nr_out);
            launch(kernel, nr_out.div_ceil(ROWS_AT_ONCE) as u64, &words)
        };
        let epsilon = u64::from(1e-5_f32.to_bits());
        for _ in 0..self.nr_layers {
            for _query_key_value in 0..3 {
                linear(launch, "linear", [x, a], [width, width])?;
            }
            linear(launch, "linear", [a, b], [width, width])?;
            launch("add_norm", 1, &[x, b, ones, zeros, epsilon, 1, width as u64])?;
            linear(launch, "linear_gelu", [x, gate], [width, inner])?;
            linear(launch, "linear", [x, up], [width, inner])?;
            launch("multiply", 1, &[gate, up, inner as u64])?;
            linear(launch, "linear", [gate, a], [inner, width])?;
            launch("add_norm", 1, &[x, a, ones, zeros, epsilon, 1, width as u64])?;
        }
        Ok(())
    }

    /// The output that a pass over these weights must give, computed on the CPU by the same kernels.
    #[expect(unsafe_code, reason = "kernels take addresses")]
    pub(super) fn reference(self, weights: &[f32], token: u32) -> anyhow::Result<Vec<f32>> {
        let mut scratch = vec![0.0; self.nr_scratch()];
        self.prepare(&mut scratch, token);
        self.pass(weights.as_ptr(), scratch.as_mut_ptr(), &mut |name, items, words| {
            let kernel = KERNELS.iter().find(|kernel| kernel.name == name);
            let kernel = kernel.with_context(|| format!("there is no kernel {name}"))?;
            for index in 0..items {
                // SAFETY: the words are addresses in these two buffers, as long as the shape says.
                unsafe { (kernel.entry)(index, items, words.as_ptr()) };
            }
            Ok(())
        })?;
        Ok(self.output(&scratch).to_vec())
    }
}

/// Where things are in the scratch memory.
struct Places {
    x: usize,
    zeros: usize,
    ones: usize,
    a: usize,
    b: usize,
    gate: usize,
    up: usize,
}

fn word<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// A number in -1..1.
fn number(nr: u32, seed: u32) -> f32 {
    let hash = (nr ^ seed.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0x9E37_79B1);
    let hash = (hash ^ (hash >> 15)).wrapping_mul(0xC2B2_AE35);
    (hash >> 8) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_fills_the_bytes_with_layers() {
        for mib in [8, 24, 96, 768] {
            let shape = Shape::within(mib << 20);
            assert!(shape.weight_bytes() <= mib << 20, "{shape:?}");
            assert!(shape.weight_bytes() > (mib << 20) / 10 * 8, "{shape:?}");
        }
    }

    #[test]
    fn each_weight_matters_to_the_output() {
        let shape = Shape { width: 16, inner: 64, nr_layers: 2 };
        let weights = shape.weights(1);
        let output = shape.reference(&weights, 5).unwrap();
        assert!(output.iter().all(|x| x.is_finite()) && output.iter().any(|x| *x != 0.0));
        assert_eq!(output, shape.reference(&weights, 5).unwrap());
        assert_ne!(output, shape.reference(&weights, 6).unwrap());
        // Value, output, gate, up and down of both layers; query and key of a first token don't.
        let (square, wide) = (16 * 16, 16 * 64);
        let firsts = [2 * square, 3 * square, 4 * square, 4 * square + wide, 4 * square + 2 * wide];
        for layer in 0..2 {
            for first in firsts {
                let mut wrong = weights.clone();
                wrong[layer * shape.layer_weights() + first + 3] += 1.0;
                assert_ne!(output, shape.reference(&wrong, 5).unwrap(), "layer {layer} at {first}");
            }
        }
    }
}
