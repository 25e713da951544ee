//! The least recently mapped page leaves first.

use super::{Arrival, Departure, Policy};
use crate::list::FrameList;
use crate::{FrameNr, PageNr};

/// Least recently mapped first. Only mapping events are seen, so for pages that stay mapped this
/// is first in, first out.
pub struct Lru(FrameList);

impl Lru {
    /// A policy for a node of `capacity_frames`.
    pub fn new(capacity_frames: u32) -> Self {
        Self(FrameList::with_capacity(capacity_frames))
    }

    /// The frames, the least recently mapped first.
    pub(super) fn order(&self) -> impl Iterator<Item = FrameNr> {
        self.0.iter()
    }
}

impl Policy for Lru {
    fn mapped(&mut self, frame: FrameNr, _: PageNr, _: Arrival) {
        self.0.remove(frame);
        self.0.push_back(frame);
    }

    fn removed(&mut self, frame: FrameNr, _: Departure) {
        self.0.remove(frame);
    }

    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool) {
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
            lru.mapped(FrameNr(n), PageNr(u64::from(n)), Arrival::Fault);
        }
        lru.removed(FrameNr(2), Departure::Gone);
        let mut offered = Vec::new();
        lru.victims(&mut |f| {
            offered.push(f.0);
            offered.len() < 2
        });
        assert_eq!(offered, [0, 3]);
    }
}
