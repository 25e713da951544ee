//! Policies for the machines of the model: those that there are, and one that is as bad as the
//! trait allows.

use gmm_core::{FrameNr, NodeId, Policy, Space};
use proptest::prelude::*;

/// Which policy each node has.
#[derive(Clone, Debug)]
pub(crate) struct Policies([Choice; 5]);

#[derive(Clone, Copy, Debug)]
enum Choice {
    Default,
    Erratic { seed: u64 },
}

impl Policies {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let choice = prop_oneof![
            Just(Choice::Default),
            any::<u64>().prop_map(|seed| Choice::Erratic { seed }),
        ];
        prop::array::uniform5(choice).prop_map(Self)
    }

    pub(crate) fn give_to(&self, space: &Space) {
        for (node, choice) in (0..).map(NodeId).zip(self.0) {
            let make = |capacity| match choice {
                Choice::Default => None,
                Choice::Erratic { seed } => Some(Erratic::new(seed, capacity)),
            };
            if make(0).is_some() {
                let given = space.set_policy(node, |n| Box::new(make(n).expect("a choice")));
                given.expect("the node exists");
            }
        }
    }
}

/// Offers any frames in any order, some twice, some that do not exist.
struct Erratic {
    seed: u64,
    frames: Vec<FrameNr>,
}

impl Erratic {
    fn new(seed: u64, capacity: u32) -> Self {
        Self { seed, frames: Vec::with_capacity(capacity as usize) }
    }
}

impl Policy for Erratic {
    fn mapped(&mut self, frame: FrameNr) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(frame.0.into());
        if !self.frames.contains(&frame) {
            self.frames.push(frame);
        }
    }

    fn removed(&mut self, frame: FrameNr) {
        self.frames.retain(|&f| f != frame);
    }

    fn victims(&self, take: &mut dyn FnMut(FrameNr) -> bool) {
        let n = self.frames.len().max(1);
        let first = (self.seed >> 33) as usize % n;
        let all = self.frames.iter().cycle().skip(first).take(n.min(self.frames.len()) + 1);
        let wrong = [FrameNr((self.seed >> 40) as u32), FrameNr(u32::MAX)];
        let _ = wrong.iter().chain(all).all(|&frame| take(frame));
    }
}
