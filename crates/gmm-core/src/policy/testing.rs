//! A node of pretended frames, to try policies on without a device.

use super::{Arrival, Departure, Policy};
use crate::{FrameNr, PageNr};

pub(super) struct Frames<P> {
    pub(super) policy: P,
    /// The page in each frame.
    owners: Vec<Option<PageNr>>,
    /// How many pages are evicted when none is free.
    pub(super) batch: usize,
}

impl<P: Policy> Frames<P> {
    pub(super) fn new(policy: P, nr_frames: usize) -> Self {
        Self { policy, owners: vec![None; nr_frames], batch: 1 }
    }

    pub(super) fn frame_of(&self, page: u64) -> Option<FrameNr> {
        let found = self.owners.iter().position(|&owner| owner == Some(PageNr(page)));
        found.map(|nr| FrameNr(nr as u32))
    }

    /// A page is used; says whether it had to be brought.
    pub(super) fn touch(&mut self, page: u64) -> bool {
        self.frame_of(page).is_none() && self.bring(page, Arrival::Fault)
    }

    /// Brings a page that is not here.
    pub(super) fn bring(&mut self, page: u64, why: Arrival) -> bool {
        if self.owners.iter().all(Option::is_some) {
            for victim in self.offer(self.batch) {
                self.remove(victim, Departure::Evicted);
            }
        }
        let free = self.owners.iter().position(Option::is_none).expect("a victim was offered");
        self.owners[free] = Some(PageNr(page));
        self.policy.mapped(FrameNr(free as u32), PageNr(page), why);
        true
    }

    pub(super) fn remove(&mut self, frame: FrameNr, why: Departure) {
        self.policy.removed(frame, why);
        if why != Departure::Aside {
            self.owners[frame.0 as usize] = None;
        }
    }

    /// The best victims.
    pub(super) fn offer(&mut self, nr_frames: usize) -> Vec<FrameNr> {
        let mut offered = Vec::new();
        self.policy.victims(&mut |frame| {
            offered.push(frame);
            offered.len() < nr_frames
        });
        offered
    }

    /// Uses `pages`; says how many had to be brought.
    pub(super) fn pass(&mut self, pages: impl IntoIterator<Item = u64>) -> usize {
        pages.into_iter().filter(|&page| self.touch(page)).count()
    }
}
