//! Zeroing and copying: batches that are checked when submitted and happen when the device's
//! [`Completion`] says.

use core::time::Duration;

use gmm_core::driver::{Capabilities, DriverError, Fence, Op, Place};

use super::frame::{Contents, FRAME_WORDS, RUBBISH, Slot};
use super::inject::{Call, Failure};
use super::machine::State;
use super::options::{Completion, Defect, DeviceOptions};
use crate::TestClock;

/// One operation with its places looked up.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// `None`: zeroes.
    from: Option<Slot>,
    to: Slot,
}

/// A batch that nobody has waited for yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) fence: u64,
    ops: Vec<Transfer>,
    /// How many words of each frame are done.
    words_done: usize,
    polls: u32,
    /// Whether the frames still count as in use by it.
    in_flight: bool,
}

/// Who submits: the device's memories and what it can do.
pub(super) struct Submitter<'a> {
    pub(super) options: &'a DeviceOptions,
    pub(super) memories: core::ops::Range<usize>,
}

impl State {
    pub(super) fn submit(&mut self, by: &Submitter<'_>, ops: &[Op]) -> Result<Fence, DriverError> {
        match self.injector.decide(Call::Submit) {
            Some(Failure::Error(error)) => return Err(error),
            Some(Failure::Hang) => return Err(DriverError::Timeout),
            Some(Failure::Death) | None => {}
        }
        let mut transfers = Vec::with_capacity(ops.len());
        for &op in ops {
            let transfer = self.look_up(by, op)?;
            self.check_transfer(transfer, &transfers)?;
            transfers.push(transfer);
        }
        if by.options.defect == Some(Defect::BatchFirstOnly) {
            transfers.truncate(1);
        }
        for t in &transfers {
            self.frame_mut(t.to).writers += 1;
            if let Some(from) = t.from {
                self.frame_mut(from).readers += 1;
            }
        }
        let fence = self.next_fence;
        self.next_fence += 1;
        let mut pending =
            Pending { fence, ops: transfers, words_done: 0, polls: 0, in_flight: true };
        match by.options.completion {
            Completion::Inline => self.perform(by, &mut pending, FRAME_WORDS),
            Completion::Halves => self.perform(by, &mut pending, FRAME_WORDS / 2),
            Completion::AtWait => {}
        }
        self.pending.push(pending);
        Ok(Fence(fence))
    }

    pub(super) fn wait(
        &mut self,
        by: &Submitter<'_>,
        fence: Fence,
        timeout: Duration,
        clock: &TestClock,
    ) -> Result<(), DriverError> {
        let Some(at) = self.pending.iter().position(|p| p.fence == fence.0) else {
            return Err(self.refuse("each fence is waited for once", format!("{fence:?}")));
        };
        let mut pending = self.pending.swap_remove(at);
        let failure = self.injector.decide(Call::Wait);
        let result = match failure {
            Some(Failure::Hang | Failure::Error(DriverError::Timeout)) => {
                clock.advance(timeout);
                for t in &pending.ops {
                    let frame = self.frame_mut(t.to);
                    frame.spoil();
                    frame.contents = Contents::Lost;
                }
                Err(DriverError::Timeout)
            }
            Some(Failure::Error(error)) => {
                pending.ops.iter().for_each(|t| self.frame_mut(t.to).spoil());
                Err(error)
            }
            Some(Failure::Death) | None => {
                if by.options.defect == Some(Defect::WaitTooEarly) {
                    self.land(&mut pending);
                    self.pending.push(pending);
                    return Ok(());
                }
                self.perform(by, &mut pending, FRAME_WORDS);
                Ok(())
            }
        };
        self.land(&mut pending);
        result
    }

    pub(super) fn poll(&mut self, by: &Submitter<'_>, fence: Fence) -> bool {
        let Some(at) = self.pending.iter().position(|p| p.fence == fence.0) else {
            return true;
        };
        if by.options.defect == Some(Defect::PollNever) {
            return false;
        }
        let mut pending = self.pending.swap_remove(at);
        pending.polls += 1;
        if pending.polls >= 2 {
            self.perform(by, &mut pending, FRAME_WORDS);
        }
        let complete = pending.words_done == FRAME_WORDS || pending.ops.is_empty();
        if complete {
            self.land(&mut pending);
        }
        self.pending.push(pending);
        complete
    }

    /// Does what a device with [`Defect::WaitTooEarly`] put off.
    pub(super) fn catch_up(&mut self, by: &Submitter<'_>) {
        if by.options.defect == Some(Defect::WaitTooEarly) {
            for mut pending in core::mem::take(&mut self.pending) {
                self.perform(by, &mut pending, FRAME_WORDS);
            }
        }
    }

    /// Copies words up to `until` of each frame.
    fn perform(&mut self, by: &Submitter<'_>, pending: &mut Pending, until: usize) {
        let start = pending.words_done;
        for t in &pending.ops {
            for word in start..until {
                let value = t.from.map_or(0, |from| self.slot_word(from, word));
                let tail =
                    word == FRAME_WORDS - 1 && by.options.defect == Some(Defect::CopyMissesTail);
                let head = word == 0 && by.options.defect == Some(Defect::ZeroMissesHead);
                if (tail && t.from.is_some()) || (head && t.from.is_none()) {
                    continue;
                }
                self.frame_mut(t.to).words[word] = value;
            }
            if until == FRAME_WORDS {
                self.frame_mut(t.to).contents = Contents::Filled;
            }
        }
        pending.words_done = until.max(start);
    }

    /// What a DMA engine reads in the slot of a frame.
    fn slot_word(&self, slot: Slot, word: usize) -> u64 {
        let frame = self.frame(slot);
        if frame.moved_away { RUBBISH } else { frame.words[word] }
    }

    /// The frames are no longer in use by the batch.
    fn land(&mut self, pending: &mut Pending) {
        if !core::mem::take(&mut pending.in_flight) {
            return;
        }
        for t in &pending.ops {
            self.frame_mut(t.to).writers -= 1;
            if let Some(from) = t.from {
                self.frame_mut(from).readers -= 1;
            }
        }
    }

    fn look_up(&mut self, by: &Submitter<'_>, op: Op) -> Result<Transfer, DriverError> {
        let (from, to) = match op {
            Op::Zero(frame) => (None, Place::Frame(frame)),
            Op::Copy { from, to } => (Some(from), to),
        };
        if !matches!(to, Place::Frame(_)) && !matches!(from, Some(Place::Frame(_))) {
            return Err(self.refuse("one place is a frame of the device", format!("{op:?}")));
        }
        let from = from.map(|place| self.look_up_place(by, place)).transpose()?;
        let to = self.look_up_place(by, to)?;
        match from {
            Some(from)
                if by.options.defect == Some(Defect::CopyBackwards)
                    && self.memories[to.memory].host =>
            {
                Ok(Transfer { from: Some(to), to: from })
            }
            _ => Ok(Transfer { from, to }),
        }
    }

    fn look_up_place(&mut self, by: &Submitter<'_>, place: Place) -> Result<Slot, DriverError> {
        let slot = match place {
            Place::Frame(frame) => self.slot(frame).filter(|s| by.memories.contains(&s.memory)),
            Place::Host(addr) => self.host_slot(addr),
            Place::Peer(addr) if by.options.capabilities.contains(Capabilities::PEER_COPY) => {
                self.peer_slot(addr, by.options.fabric)
            }
            Place::Peer(_) => None,
        };
        let name = &by.options.name;
        slot.ok_or_else(|| self.refuse("places exist", format!("{place:?} given to {name}")))
    }

    fn check_transfer(&mut self, t: Transfer, batch: &[Transfer]) -> Result<(), DriverError> {
        let said = || match t.from {
            Some(from) => format!("copy of {from} to {}", t.to),
            None => format!("zero of {}", t.to),
        };
        let to = self.frame(t.to);
        let to_ok = to.imported && to.contents != Contents::Lost;
        if !to_ok {
            return Err(self.refuse("operations use frames that the core holds", said()));
        }
        if to.in_flight() {
            return Err(self.refuse("a frame in flight is left alone", said()));
        }
        if self.is_mapped(t.to, false) {
            return Err(self.refuse("nobody maps a frame that is overwritten", said()));
        }
        if batch.iter().any(|b| b.to == t.to || b.from == Some(t.to) || Some(b.to) == t.from) {
            return Err(self.refuse("operations of a batch are independent", said()));
        }
        let Some(from) = t.from else { return Ok(()) };
        let source = self.frame(from);
        if !source.imported || source.contents == Contents::Lost {
            return Err(self.refuse("operations use frames that the core holds", said()));
        }
        if source.contents == Contents::Rubbish {
            return Err(self.refuse("rubbish is never copied", said()));
        }
        if source.moved_away {
            return Err(self.refuse("a frame that moved into the window is not copied", said()));
        }
        if source.writers > 0 {
            return Err(self.refuse("a frame in flight is left alone", said()));
        }
        if self.is_mapped(from, true) {
            return Err(self.refuse("nobody can write a frame that is copied", said()));
        }
        Ok(())
    }
}
