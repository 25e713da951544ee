//! Frames that stay where they are: while a launch holds them, and while programs have pinned them.

use core::sync::atomic::Ordering;

use super::{FRAMES_RANK, FrameMeta, FramePlace, Lists, Node};
use crate::sync::MutexGuard;
use crate::{Arrival, FrameNr};

impl Node {
    /// A launch holds the frame: it stays where it is until as many [`Node::release_hold`]. The
    /// caller holds the page's entry lock.
    pub(crate) fn hold(&self, nr: FrameNr) {
        let mut lists = self.lists.lock();
        lists.set_aside(nr);
        lists.meta[nr.0 as usize].holds += 1;
        self.held[nr.0 as usize].store(true, Ordering::Release);
    }

    /// The caller need hold no lock: a launch ends without waiting for anyone.
    pub(crate) fn release_hold(&self, nr: FrameNr) {
        let mut lists = self.lists.lock();
        lists.meta[nr.0 as usize].holds -= 1;
        let is_held = lists.meta[nr.0 as usize].holds > 0;
        self.held[nr.0 as usize].store(is_held, Ordering::Release);
        self.end_pin(lists, nr);
    }

    /// A program pins the frame: it stays where it is until as many [`Node::unpin`]. The caller
    /// holds the page's entry lock.
    ///
    /// # Errors
    /// How many frames are pinned already and how many may be, if one more is too many.
    pub(crate) fn pin(&self, nr: FrameNr) -> Result<(), (u32, u32)> {
        let mut lists = self.lists.lock();
        if lists.meta[nr.0 as usize].pins == 0 {
            if lists.pinned_frames >= lists.pin_limit {
                return Err((lists.pinned_frames, lists.pin_limit));
            }
            lists.pinned_frames += 1;
        }
        lists.set_aside(nr);
        lists.meta[nr.0 as usize].pins += 1;
        Ok(())
    }

    /// Ends `nr_pins` pins of the frame, or all that it has if they are fewer. The caller holds
    /// the page's entry lock.
    pub(crate) fn unpin(&self, nr: FrameNr, nr_pins: u32) {
        let mut lists = self.lists.lock();
        let meta = &mut lists.meta[nr.0 as usize];
        let before = meta.pins;
        meta.pins = before.saturating_sub(nr_pins);
        if before > 0 && meta.pins == 0 {
            lists.pinned_frames -= 1;
            self.end_pin(lists, nr);
        }
    }

    /// A hold or a pin has ended: the frame can go again, if it was the last.
    fn end_pin(&self, mut lists: MutexGuard<'_, Lists, FRAMES_RANK>, nr: FrameNr) {
        let meta = lists.meta[nr.0 as usize];
        if meta.holds + meta.pins > 0 {
            return;
        }
        let owner = meta.owner;
        if meta.spare {
            lists.spare.push_back(nr);
            lists.set_place(nr, FramePlace::Spare);
        } else {
            lists.policy.mapped(nr, owner, Arrival::Returned);
            lists.set_place(nr, FramePlace::Active);
        }
        self.announce(&mut lists);
    }

    /// Whether the frame can't go now: a launch holds it, or a program has pinned it.
    pub(crate) fn is_pinned(&self, nr: FrameNr) -> bool {
        self.lists.lock().meta[nr.0 as usize].place == FramePlace::Pinned
    }

    /// Whether a launch holds the frame.
    pub(crate) fn is_held(&self, nr: FrameNr) -> bool {
        self.held[nr.0 as usize].load(Ordering::Acquire)
    }

    /// How often programs have pinned the frame.
    pub(crate) fn pins(&self, nr: FrameNr) -> u32 {
        self.lists.lock().meta[nr.0 as usize].pins
    }

    /// How many frames programs have pinned, and how many they may.
    pub(crate) fn pinned_and_limit(&self) -> (u32, u32) {
        let lists = self.lists.lock();
        (lists.pinned_frames, lists.pin_limit)
    }

    pub(crate) fn set_pin_limit(&self, nr_frames: u32) {
        self.lists.lock().pin_limit = nr_frames;
    }

    /// Whether the pinned frames are those that someone pins or holds, and counted right.
    pub(crate) fn counts_pins(&self) -> bool {
        let lists = self.lists.lock();
        let pinned = lists.meta.iter().filter(|m| m.pins > 0).count();
        let is_true = |m: &FrameMeta| (m.place == FramePlace::Pinned) == (m.holds + m.pins > 0);
        pinned == lists.pinned_frames as usize && lists.meta.iter().all(is_true)
    }
}
