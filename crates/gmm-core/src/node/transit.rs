//! Frames between two places, in the hands of the thread that moves them.

use super::{FramePlace, Node};
use crate::driver::Extent;
use crate::{Arrival, Batch, Frame, FrameNr, MovedBy, PageNr};

/// Orders frames so that taking them from the end gives neighbours to neighbouring pages, as far as
/// there are any: drivers map such a run at once.
pub(crate) fn highest_first<const N: usize>(frames: &mut Batch<TransitFrame<'_>, N>) {
    frames.sort_by_key(|frame| core::cmp::Reverse(frame.nr.0));
}

/// A frame in one thread's hands. Dropped, it is free again.
pub(crate) struct TransitFrame<'a> {
    pub(super) node: &'a Node,
    pub(super) nr: FrameNr,
}

impl TransitFrame<'_> {
    pub(crate) fn frame(&self) -> Frame {
        self.node.frame(self.nr)
    }

    /// The frame holds `page`'s data from now on. The caller holds the page's entry lock and adds
    /// the frame to its copies. `count` runs under the lists' lock.
    pub(crate) fn activate(
        self,
        page: PageNr,
        why: Arrival,
        moved_by: MovedBy,
        count: impl FnOnce(),
    ) -> Frame {
        let frame = self.frame();
        let mut lists = self.node.lists.lock();
        count();
        lists.meta[self.nr.0 as usize].owner = page;
        lists.meta[self.nr.0 as usize].spare = false;
        lists.meta[self.nr.0 as usize].expected = false;
        lists.meta[self.nr.0 as usize].moved_by = moved_by;
        lists.meta[self.nr.0 as usize].uses = lists.meta[self.nr.0 as usize].uses.wrapping_add(1);
        lists.set_place(self.nr, FramePlace::Active);
        lists.policy.mapped(self.nr, page, why);
        self.node.note_activity(&mut lists);
        self.node.announce(&mut lists);
        drop(lists);
        core::mem::forget(self);
        frame
    }

    /// Gives the frame back to its device.
    pub(crate) fn release(self) {
        // Before the device has it: another thread may import it at once.
        let mut lists = self.node.lists.lock();
        lists.set_place(self.nr, FramePlace::Absent);
        lists.releasing += 1;
        drop(lists);
        let extent = Extent { start: self.nr, nr_frames: 1 };
        self.node.device.release(self.node.id, &[extent]);
        let mut lists = self.node.lists.lock();
        lists.releasing -= 1;
        self.node.announce(&mut lists);
        drop(lists);
        core::mem::forget(self);
    }

    /// An operation on the frame never ended: it may still be written, so it is never used again.
    pub(crate) fn lose(self) {
        self.node.lists.lock().set_place(self.nr, FramePlace::Lost);
        core::mem::forget(self);
    }
}

impl Drop for TransitFrame<'_> {
    fn drop(&mut self) {
        self.node.free(&mut self.node.lists.lock(), self.nr);
    }
}
