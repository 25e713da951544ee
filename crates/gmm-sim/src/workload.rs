//! Sequences of page uses that programs make, in the pure form.

use crate::Random;

/// The pages that are used, in order, between one round of a program and the next.
pub type Pass = Vec<u64>;

/// What a processor uses.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What it is called in tables.
    pub name: String,
    /// Page numbers from 0, pass by pass.
    pub passes: Vec<Pass>,
    /// The first pass of what the workload turns into; 0 if it does not change.
    pub changes_at: usize,
}

/// `frames` times `factor`, to the nearest page.
fn times(frames: u64, factor: f64) -> u64 {
    (frames as f64 * factor).round() as u64
}

/// The first page of what shares none with the rest.
const ELSEWHERE: u64 = 1 << 16;

impl Workload {
    fn new(name: impl Into<String>, passes: Vec<Pass>) -> Self {
        Self { name: name.into(), passes, changes_at: 0 }
    }

    /// How many pages there are.
    pub fn nr_pages(&self) -> u64 {
        self.passes.iter().flatten().max().map_or(0, |page| page + 1)
    }

    /// `self`, and then `other`.
    #[must_use]
    pub fn then(mut self, other: Self) -> Self {
        self.name = format!("{}, then {}", self.name, other.name);
        self.changes_at = self.passes.len();
        self.passes.extend(other.passes);
        self
    }

    /// The same, with pages that are renumbered so that they lie close together: 0 is the page
    /// that is used first.
    #[must_use]
    pub fn compact(mut self) -> Self {
        let mut names = std::collections::HashMap::new();
        for page in self.passes.iter_mut().flatten() {
            let next = names.len() as u64;
            *page = *names.entry(*page).or_insert(next);
        }
        self
    }

    /// All pages in the same order, again and again: `factor` times as many as there are frames.
    pub fn sweep(frames: u64, factor: f64, nr_passes: usize) -> Self {
        let pass: Pass = (0..times(frames, factor)).collect();
        Self::new(format!("sweep {factor}"), vec![pass; nr_passes])
    }

    /// As [`Workload::sweep`], over other pages.
    pub fn sweep_elsewhere(frames: u64, factor: f64, nr_passes: usize) -> Self {
        let pass: Pass = (0..times(frames, factor)).map(|page| ELSEWHERE + page).collect();
        Self::new(format!("sweep {factor} elsewhere"), vec![pass; nr_passes])
    }

    /// As [`Workload::sweep`], by `cores` at a time, each of which uses its page 8 times in turn
    /// with the others.
    pub fn sweep_by(cores: u64, frames: u64, factor: f64, nr_passes: usize) -> Self {
        let nr_pages = times(frames, factor);
        let mut pass = Pass::new();
        for first in (0..nr_pages).step_by(cores as usize) {
            (0..8).for_each(|_| pass.extend(first..(first + cores).min(nr_pages)));
        }
        Self::new(format!("sweep {factor} by {cores} cores"), vec![pass; nr_passes])
    }

    /// Two sweeps at a time, of different lengths, a page of the one and a page of the other. A
    /// pass is one sweep of the longer.
    pub fn two_sweeps(frames: u64, a: f64, b: f64, nr_passes: usize) -> Self {
        let (nr_a, nr_b) = (times(frames, a), times(frames, b));
        let mut steps = 0..u64::MAX;
        let pass = |_| {
            let steps = steps.by_ref().take(nr_a.max(nr_b) as usize);
            steps.flat_map(|step| [step % nr_a, ELSEWHERE + step % nr_b]).collect()
        };
        let passes = (0..nr_passes).map(pass).collect();
        Self::new(format!("sweeps {a} and {b} interleaved"), passes)
    }

    /// Any page is as likely as any other.
    pub fn uniform(frames: u64, factor: f64, nr_passes: usize) -> Self {
        let nr_pages = times(frames, factor);
        let mut random = Random::new(11);
        let mut pass = |_| (0..nr_pages).map(|_| random.below(nr_pages)).collect();
        Self::new(format!("uniform {factor}"), (0..nr_passes).map(&mut pass).collect())
    }

    /// The page of rank r is used in proportion to 1/r^`exponent`; ranks are spread over the
    /// addresses.
    pub fn zipf(frames: u64, factor: f64, exponent: f64, nr_passes: usize) -> Self {
        let nr_pages = times(frames, factor);
        let mut random = Random::new(13);
        let mut page_of: Vec<u64> = (0..nr_pages).collect();
        for i in (1..nr_pages).rev() {
            page_of.swap(i as usize, random.below(i + 1) as usize);
        }
        // Whole numbers, so that every machine draws the same.
        let mut sum = 0;
        let weight = |rank: u64| (1e12 / ((rank + 1) as f64).powf(exponent)) as u64 / 1000;
        let upto: Vec<u64> = (0..nr_pages)
            .map(|rank| {
                sum += weight(rank);
                sum
            })
            .collect();
        let mut draw = || {
            let drawn = random.below(sum);
            page_of[upto.partition_point(|&upto| upto <= drawn)]
        };
        let mut pass = |_| (0..nr_pages).map(|_| draw()).collect();
        let passes = (0..nr_passes).map(&mut pass).collect();
        Self::new(format!("Zipf {exponent} over {factor}"), passes)
    }

    /// Decoding with a language model, all of it `factor` times what fits: for each token a page
    /// of the embedding, and then layer by layer the weights, the layer's cache of what was said
    /// before, which gains a page a layer every eight tokens, and the activations, which all
    /// layers share.
    pub fn decode(frames: u64, factor: f64, nr_passes: usize) -> Self {
        const LAYERS: u64 = 16;
        const ACTIVATIONS: u64 = 4;
        let nr_embedding = frames / 16;
        let nr_weights = times(frames, factor) - nr_embedding - ACTIVATIONS - LAYERS;
        let per_layer = nr_weights / LAYERS;
        let cache = LAYERS * per_layer;
        let activations = cache + LAYERS * nr_passes as u64;
        let embedding = activations + ACTIVATIONS;
        let mut random = Random::new(17);
        let token = |token: usize| {
            let nr_cached = token as u64 / 8 + 1;
            let layer = |layer: u64| {
                let weights = layer * per_layer..(layer + 1) * per_layer;
                let first_cached = cache + layer * nr_passes as u64;
                let used = weights.chain(first_cached..first_cached + nr_cached);
                used.chain(activations..embedding)
            };
            let word = embedding + random.below(nr_embedding);
            core::iter::once(word).chain((0..LAYERS).flat_map(layer)).collect()
        };
        let passes = (0..nr_passes).map(token).collect();
        Self::new(format!("decode {factor}"), passes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_what_they_are_called() {
        let sweep = Workload::sweep(100, 1.25, 3);
        assert_eq!((sweep.passes.len(), sweep.nr_pages()), (3, 125));
        let by_two = Workload::sweep_by(2, 4, 1.25, 1);
        assert_eq!(by_two.passes[0].len(), 5 * 8);
        assert_eq!(by_two.passes[0][..4], [0, 1, 0, 1]);
        let two = Workload::two_sweeps(100, 0.03, 0.05, 2).compact();
        assert_eq!(two.passes[0], [0, 1, 2, 3, 4, 5, 0, 6, 2, 7]);
        assert_eq!(two.passes[1][..2], [4, 1]);
        let changed = sweep.then(Workload::uniform(100, 2.0, 4));
        assert_eq!((changed.changes_at, changed.nr_pages()), (3, 200));
    }

    #[test]
    fn decoding_uses_all_of_a_model_but_words_that_are_not_said() {
        let decode = Workload::decode(1024, 1.5, 16);
        let used: std::collections::HashSet<_> = decode.passes.iter().flatten().collect();
        // The cache has 16 pages more at the end, and 48 of 64 pages of words or more are unused.
        assert!((1470..=1504).contains(&used.len()), "{}", used.len());
        let token = &decode.passes[0];
        assert_eq!(token.len(), 1 + 16 * (90 + 1 + 4));
    }

    #[test]
    fn the_first_rank_is_used_most() {
        let zipf = Workload::zipf(100, 4.0, 1.0, 10);
        let mut count = vec![0; 400];
        zipf.passes.iter().flatten().for_each(|&page| count[page as usize] += 1);
        count.sort_unstable();
        // 1 / (1 + 1/2 + ... + 1/400) = 0.152 of 4,000.
        assert!((520..700).contains(&count[399]), "{}", count[399]);
    }
}
