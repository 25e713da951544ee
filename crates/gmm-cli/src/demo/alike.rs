//! Which sentences are most alike.

/// Two sentences and the cosine of the angle between their vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The number of the first sentence.
    pub first: usize,
    /// The number of the second, larger than the first.
    pub second: usize,
    /// Between -1 and 1; 1 is the same meaning.
    pub cosine: f64,
}

/// The `most` closest pairs of vectors of length 1, the closest first.
pub fn pairs(vectors: &[Vec<f32>], most: usize) -> Vec<Pair> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let mut pairs: Vec<Pair> = (0..vectors.len())
        .flat_map(|first| (first + 1..vectors.len()).map(move |second| (first, second)))
        .map(|(first, second)| Pair {
            first,
            second,
            cosine: dot(&vectors[first], &vectors[second]),
        })
        .collect();
    pairs.sort_by(|a, b| b.cosine.total_cmp(&a.cosine));
    pairs.truncate(most);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_pair_comes_first() {
        let vectors = [vec![1.0, 0.0], vec![0.0, 1.0], vec![0.8, 0.6]];
        let found = pairs(&vectors, 2);
        assert_eq!((found[0].first, found[0].second), (0, 2));
        assert_eq!((found[1].first, found[1].second), (1, 2));
        assert_eq!(pairs(&vectors, 9).len(), 3);
        assert!(pairs(&vectors[..1], 3).is_empty());
    }
}
