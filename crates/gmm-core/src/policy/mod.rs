//! Which pages leave a full node: a policy, told of what happens to its frames, offers victims.
//!
//! A page that is mapped makes no fault, so a policy does not see when it is used: only that it
//! comes, goes, and comes back.

mod dip;
mod fifo16;
mod ghosts;
mod lru;
mod next_use;
mod reuse;
#[cfg(test)]
mod testing;
mod trials;

pub use dip::Dip;
pub use fifo16::Fifo16;
pub use lru::Lru;
pub use next_use::NextUse;

use crate::{FrameNr, PageNr};

/// Orders the frames of a node that may be evicted; given to it by
/// [`Space::set_policy`](crate::Space::set_policy). One policy belongs to one node and is called
/// under its frame-list lock: every method is short, does not allocate, and calls nobody.
pub trait Policy: Send {
    /// The frame holds the page's data, and the page was mapped or is about to be. Either the
    /// frame is new here, or it holds this page already and is mentioned again.
    fn mapped(&mut self, frame: FrameNr, page: PageNr, why: Arrival);

    /// The frame can't be a victim any more. (Of a frame that is no candidate it may be said
    /// again.)
    fn removed(&mut self, frame: FrameNr, why: Departure);

    /// Offers victims, the best first, until `take` says no. More are looked at than are evicted:
    /// pages that others are at work on, or that were not used since they came, are spared.
    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool);

    /// How many pages it wants evicted at a time, at most. What is evicted early is missing until
    /// its frame is used again.
    fn batch(&self) -> u32 {
        u32::MAX
    }
}

/// Why a frame is a page's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A processor of the node touched the page, and did not map it.
    Fault,
    /// Somebody said that it will be used (`WILLNEED`), and it was brought.
    Prefetch,
    /// It was brought because the pages before it were used.
    LookAhead,
    /// It is here already, and somebody says that it will be used (`WILLNEED`).
    Hint,
    /// It was set aside (pinned, or a copy that could go without loss) and is a candidate again;
    /// or the policy is new and is told of what is here.
    Returned,
    /// It was pushed out of another node.
    Evicted,
}

/// Why a frame can't be a victim any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It was the victim: if its page comes back, somebody had a use for it.
    Evicted,
    /// Its page moved to another node, was discarded or unmapped.
    Gone,
    /// It still holds the page, but is pinned, or a copy that goes before any other.
    Aside,
}

/// The policies that need to be told nothing, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EvictionPolicy {
    /// [`Dip`]: notices sweeps, and is no worse than [`Lru`] elsewhere.
    #[default]
    Dip,
    /// [`Lru`].
    Lru,
    /// [`Fifo16`]: the paper's.
    Fifo16,
}

impl EvictionPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dip, Self::Lru, Self::Fifo16];

    /// Its name: what [`FromStr`](core::str::FromStr) reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dip => "dip",
            Self::Lru => "lru",
            Self::Fifo16 => "fifo16",
        }
    }

    /// A policy of that kind for a node of `capacity_frames`.
    pub fn make(self, capacity_frames: u32) -> Box<dyn Policy> {
        match self {
            Self::Dip => Box::new(Dip::new(capacity_frames)),
            Self::Lru => Box::new(Lru::new(capacity_frames)),
            Self::Fifo16 => Box::new(Fifo16::new(capacity_frames)),
        }
    }
}

/// There is no eviction policy of that name: it is `dip`, `lru` or `fifo16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no such eviction policy: it is dip, lru or fifo16")]
pub struct UnknownPolicy;

impl core::str::FromStr for EvictionPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or(UnknownPolicy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_name() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
            assert!(UnknownPolicy.to_string().contains(policy.name()));
        }
        assert_eq!("mru".parse::<EvictionPolicy>(), Err(UnknownPolicy));
    }
}
