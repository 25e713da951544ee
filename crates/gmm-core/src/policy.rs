//! Which pages leave a full node: a policy, told of every mapping event, offers victims.

use crate::FrameNr;
use crate::list::FrameList;

/// Orders the frames of a node that may be evicted; given to it by
/// [`Space::set_policy`](crate::Space::set_policy). One policy belongs to one node and is called
/// under its frame-list lock: every method is short, does not allocate, and calls nobody.
pub trait Policy: Send {
    /// A frame's page was mapped (a fault, a prefetch, `WILLNEED`); the frame may be new here.
    fn mapped(&mut self, frame: FrameNr);

    /// The frame can't be a victim any more: freed, pinned or in transit.
    fn removed(&mut self, frame: FrameNr);

    /// Offers victims, the best first, until `take` says no.
    fn victims(&self, take: &mut dyn FnMut(FrameNr) -> bool);
}

/// Least recently mapped first. Only mapping events are seen, so for pages that stay mapped this
/// is the paper's "LRU-ordered FIFO".
pub struct Lru(FrameList);

impl Lru {
    /// A policy for a node of `capacity_frames`.
    pub fn new(capacity_frames: u32) -> Self {
        Self(FrameList::with_capacity(capacity_frames))
    }
}

impl Policy for Lru {
    fn mapped(&mut self, frame: FrameNr) {
        self.0.remove(frame);
        self.0.push_back(frame);
    }

    fn removed(&mut self, frame: FrameNr) {
        self.0.remove(frame);
    }

    fn victims(&self, take: &mut dyn FnMut(FrameNr) -> bool) {
        self.0.iter().all(take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lru_offers_the_least_recently_mapped() {
        let mut lru = Lru::new(4);
        for n in [0, 1, 2, 3, 1] {
            lru.mapped(FrameNr(n));
        }
        lru.removed(FrameNr(2));
        let mut offered = Vec::new();
        lru.victims(&mut |f| {
            offered.push(f.0);
            offered.len() < 2
        });
        assert_eq!(offered, [0, 3]);
    }
}
