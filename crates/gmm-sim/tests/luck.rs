//! The default policy leaves some choices to chance, and chance may help it to what
//! `tests/policies.rs` holds it to. Here it has many chances, in memories of several sizes: on
//! frames that are only pretended, which takes a hundredth of the time.
#![cfg(not(shuttle))]

use std::collections::HashMap;

use gmm_core::{Arrival, Departure, EvictionPolicy, FrameNr, PageNr, Policy};
use gmm_sim::{Pass, Workload, optimum};

/// The first of some pages that are used more often than a sweep's.
const HOT: u64 = 1 << 20;

/// A node that is full of pages.
struct Frames {
    policy: Box<dyn Policy>,
    owners: Vec<u64>,
    frame_of: HashMap<u64, FrameNr>,
    free: Vec<FrameNr>,
}

impl Frames {
    fn new(policy: EvictionPolicy, nr_frames: u64) -> Self {
        Self {
            policy: policy.make(nr_frames as u32),
            owners: vec![0; nr_frames as usize],
            frame_of: HashMap::new(),
            free: (0..nr_frames as u32).rev().map(FrameNr).collect(),
        }
    }

    /// Uses a page; whether it had to be brought.
    fn touch(&mut self, page: u64) -> bool {
        if self.frame_of.contains_key(&page) {
            return false;
        }
        if self.free.is_empty() {
            let batch = self.policy.batch().min(16) as usize;
            self.policy.victims(&mut |frame| {
                self.free.push(frame);
                self.free.len() < batch
            });
            for &frame in &self.free {
                self.policy.removed(frame, Departure::Evicted);
                self.frame_of.remove(&self.owners[frame.0 as usize]);
            }
        }
        let frame = self.free.pop().expect("a victim was offered");
        self.owners[frame.0 as usize] = page;
        self.frame_of.insert(page, frame);
        self.policy.mapped(frame, PageNr(page), Arrival::Fault);
        true
    }

    fn pass(&mut self, pass: &Pass) -> u64 {
        pass.iter().filter(|&&page| self.touch(page)).count() as u64
    }
}

/// Pages moved in each pass. That the node has the last `seed` pages of the first pass already
/// makes the policy draw other lots.
fn moved(policy: EvictionPolicy, nr_frames: u64, passes: &[Pass], seed: u64) -> Vec<u64> {
    let mut frames = Frames::new(policy, nr_frames);
    frames.pass(&passes[0][passes[0].len() - seed as usize..].to_vec());
    passes.iter().map(|pass| frames.pass(pass)).collect()
}

fn mean(moved: &[u64]) -> f64 {
    moved.iter().sum::<u64>() as f64 / moved.len() as f64
}

/// What may be moved where `optimum` has to be. A node of few frames has room for the smallest
/// window, which is three, beside what is in proportion.
fn limit(nr_frames: u64, factor: f64, optimum: f64) -> f64 {
    let in_proportion = if factor < 1.25 { 1.30 } else { 1.10 };
    in_proportion * optimum + if nr_frames < 1024 { 3.0 } else { 0.0 }
}

#[test]
fn sweeps_cost_little_more_than_they_must() {
    for (nr_frames, seeds) in [(64, 0..40), (128, 0..40), (512, 0..20), (1024, 0..10)] {
        for factor in [1.05, 1.25, 1.5, 2.0, 4.0] {
            if factor < 1.25 && nr_frames < 128 {
                // Of three pages more than fit, one is a third.
                continue;
            }
            let passes = Workload::sweep(nr_frames, factor, 8).passes;
            let optimum = mean(&optimum(&passes, nr_frames as usize)[3..]);
            for seed in seeds.clone() {
                let moved = moved(EvictionPolicy::Dip, nr_frames, &passes, seed);
                assert!(
                    mean(&moved[3..]) <= limit(nr_frames, factor, optimum),
                    "{nr_frames} frames, sweep {factor}, seed {seed}: {moved:?}, not {optimum}"
                );
            }
        }
    }
}

#[test]
fn changes_are_over_within_three_passes() {
    for (nr_frames, seeds) in [(512, 60), (1024, 24)] {
        let sweep = |factor| Workload::sweep(nr_frames, factor, 4);
        let elsewhere = |factor| Workload::sweep_elsewhere(nr_frames, factor, 4);
        for (factor, before, after) in [
            (1.25, 2.0, sweep(1.25)),
            (1.25, 4.0, sweep(1.25)),
            (1.25, 1.5, sweep(1.25)),
            (2.0, 1.25, sweep(2.0)),
            (1.25, 1.25, elsewhere(1.25)),
            (0.9, 2.0, elsewhere(0.9)),
        ] {
            let optimum = mean(&optimum(&after.passes, nr_frames as usize)[3..]);
            // How many pages are dead depends on how long the sweep before took.
            let fourth = |seed| {
                let before = Workload::sweep(nr_frames, before, 3 + seed as usize % 8);
                let passes = before.then(after.clone()).passes;
                *moved(EvictionPolicy::Dip, nr_frames, &passes, seed).last().expect("passes")
            };
            let fourth: Vec<u64> = (0..seeds).map(fourth).collect();
            let late = |&&moved: &&u64| moved as f64 > limit(nr_frames, factor, optimum);
            let nr_late = fourth.iter().filter(late).count() as u64;
            assert!(
                nr_late * 30 <= seeds,
                "{nr_frames} frames, {before} then {}: {nr_late} of {seeds} are late: {fourth:?}",
                after.name
            );
        }
    }
}

#[test]
fn pages_used_more_often_than_a_sweep_stay() {
    for nr_frames in [128, 256, 512] {
        let hot = HOT..HOT + nr_frames / 32;
        // A pass of four times the memory, in which they are used four times.
        let quarter = |n| hot.clone().chain(n * nr_frames..(n + 1) * nr_frames).collect();
        let quarters: Vec<Pass> = (0..4).map(quarter).collect();
        for seed in 0..40 {
            let mut frames = Frames::new(EvictionPolicy::Dip, nr_frames);
            frames.pass(&(nr_frames..nr_frames + seed).collect());
            let mut moved = 0;
            for pass in 0..8 {
                for quarter in &quarters {
                    let again = hot.clone().filter(|&page| frames.touch(page)).count() as u64;
                    moved += if pass > 2 { again } else { 0 };
                    frames.pass(quarter);
                }
            }
            let uses = 5 * 4 * (nr_frames / 32);
            assert!(moved * 4 <= uses, "{nr_frames} frames, seed {seed}: {moved} of {uses}");
        }
    }
}

#[test]
fn random_order_costs_no_more_than_under_lru() {
    for nr_frames in [64, 128, 512] {
        for workload in [
            Workload::uniform(nr_frames, 2.0, 12),
            Workload::zipf(nr_frames, 4.0, 1.0, 12),
            Workload::zipf(nr_frames, 4.0, 1.2, 12),
        ] {
            for seed in 0..10 {
                let steady = |policy| mean(&moved(policy, nr_frames, &workload.passes, seed)[3..]);
                let (dip, lru) = (steady(EvictionPolicy::Dip), steady(EvictionPolicy::Lru));
                assert!(
                    dip <= 1.02 * lru,
                    "{nr_frames} frames, {}, seed {seed}: dip {dip}, lru {lru}",
                    workload.name
                );
            }
        }
    }
}
