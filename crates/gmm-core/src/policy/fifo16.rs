//! What the paper does: first in, first out, sixteen at a time.

use super::{Arrival, Departure, Policy};
use crate::list::FrameList;
use crate::{FrameNr, PageNr};

/// The page that came first leaves first, with up to 15 others (section 4.1 of the GMM paper).
pub struct Fifo16(FrameList);

impl Fifo16 {
    /// A policy for a node of `capacity_frames`.
    pub fn new(capacity_frames: u32) -> Self {
        Self(FrameList::with_capacity(capacity_frames))
    }
}

impl Policy for Fifo16 {
    fn mapped(&mut self, frame: FrameNr, _: PageNr, _: Arrival) {
        if !self.0.contains(frame) {
            self.0.push_back(frame);
        }
    }

    fn removed(&mut self, frame: FrameNr, _: Departure) {
        self.0.remove(frame);
    }

    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool) {
        self.0.iter().all(take);
    }

    fn batch(&self) -> u32 {
        16
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Frames;
    use super::*;

    #[test]
    fn being_mapped_again_does_not_help() {
        let mut frames = Frames::new(Fifo16::new(4), 4);
        frames.pass(0..4);
        let first = frames.frame_of(0).expect("it is here");
        frames.policy.mapped(first, PageNr(0), Arrival::Hint);
        assert_eq!(frames.offer(1), [first]);
    }
}
