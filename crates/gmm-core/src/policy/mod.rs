//! Which pages leave a full node: a policy, told of what happens to its frames, offers victims.
//!
//! A page that is mapped makes no fault, so a policy does not see when it is used: only that it
//! comes, goes, and comes back.

mod lru;

pub use lru::Lru;

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
    /// It was brought before it is used.
    Prefetch,
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
