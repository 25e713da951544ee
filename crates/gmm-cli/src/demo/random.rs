//! Weights from a seed, for machines that can't have the model: the same shapes, so the same memory
//! traffic, and no meaning.

use anyhow::Result;

use super::accelerator::Accelerator;
use super::config::Config;
use super::encoder::tensor_shapes;
use super::weights::Weights;

/// The seed of the demo's random weights.
pub const SEED: u64 = 0x6D6D_6721;

/// Weights for an encoder of this shape: scales of the normalisations 1, all else between -0.1 and 0.1.
///
/// # Errors
/// If there is no memory for them.
pub fn weights(machine: &dyn Accelerator, config: &Config, seed: u64) -> Result<Weights> {
    let mut state = seed;
    Weights::packed(machine, tensor_shapes(config), |name, elements| {
        for element in elements {
            let value =
                if name.ends_with("LayerNorm.weight") { 1.0 } else { unit(&mut state) * 0.1 };
            *element = value.to_ne_bytes();
        }
    })
}

/// The next number between -1 and 1: 24 bits of a SplitMix64 generator.
fn unit(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    (x >> 40) as f32 / 8_388_608.0 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_their_range_and_repeat_with_the_seed() {
        let draw = |mut seed| -> Vec<f32> { (0..10_000).map(|_| unit(&mut seed)).collect() };
        let numbers = draw(1);
        assert!(numbers.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = numbers.iter().sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert_eq!(numbers, draw(1));
        assert_ne!(numbers, draw(2));
    }
}
