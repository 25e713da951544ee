//! Policies for the machines of the model: those that there are, and one that is as bad as the
//! trait allows.

use gmm_core::{
    Arrival, Config, Departure, EvictionPolicy, FrameNr, NextUse, NodeId, PageNr, Policy, Space,
};
use proptest::prelude::*;

/// Which policy each node has.
#[derive(Clone, Debug)]
pub(crate) struct Policies([Choice; 5]);

/// A policy, to be made for a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    Named(EvictionPolicy),
    /// By a record that may or may not be true.
    NextUse {
        stride: u64,
        nr_pages: u64,
    },
    Erratic {
        seed: u64,
    },
}

impl Choice {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            4 => prop::sample::select(&EvictionPolicy::ALL[..]).prop_map(Self::Named),
            1 => (1..8_u64, 1..32_u64)
                .prop_map(|(stride, nr_pages)| Self::NextUse { stride, nr_pages }),
            2 => any::<u64>().prop_map(|seed| Self::Erratic { seed }),
        ]
    }

    pub(crate) fn make(self, capacity_frames: u32) -> Box<dyn Policy> {
        match self {
            Self::Named(policy) => policy.make(capacity_frames),
            Self::NextUse { stride, nr_pages } => {
                let start = Config::default().window.start;
                let record: Vec<_> = (0..nr_pages).map(|i| start.plus(i * stride % 32)).collect();
                Box::new(NextUse::new(capacity_frames, &record))
            }
            Self::Erratic { seed } => {
                Box::new(Erratic { seed, frames: Vec::with_capacity(capacity_frames as usize) })
            }
        }
    }
}

impl Policies {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop::array::uniform5(Choice::any()).prop_map(Self)
    }

    pub(crate) fn give_to(&self, space: &Space) {
        for (node, choice) in (0..).map(NodeId).zip(self.0) {
            space.set_policy(node, |n| choice.make(n)).expect("the node exists");
        }
    }
}

/// Offers any frames in any order, one twice, some that do not exist, and wants any number gone.
struct Erratic {
    seed: u64,
    frames: Vec<FrameNr>,
}

impl Erratic {
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        self.seed >> 33
    }
}

impl Policy for Erratic {
    fn mapped(&mut self, frame: FrameNr, _: PageNr, _: Arrival) {
        if !self.frames.contains(&frame) {
            self.frames.push(frame);
        }
    }

    fn removed(&mut self, frame: FrameNr, _: Departure) {
        self.frames.retain(|&f| f != frame);
    }

    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool) {
        let n = self.frames.len();
        let first = self.draw() as usize % n.max(1);
        let wrong = [FrameNr(self.draw() as u32 % 8), FrameNr(u32::MAX)];
        let all = self.frames.iter().cycle().skip(first).take(if n == 0 { 0 } else { n + 1 });
        let _ = wrong.iter().chain(all).all(|&frame| take(frame));
    }

    fn batch(&self) -> u32 {
        (self.seed % 20) as u32
    }
}
