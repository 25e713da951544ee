//! Zeroing and copying: batches that are checked when submitted and happen when the device's
//! [`Completion`] says.

use core::fmt;
use core::ops::Range;
use core::time::Duration;

use gmm_core::driver::{ByteCopy, Capabilities, DriverError, Fence, Op, Place};
use gmm_core::{HostAddr, PAGE_SIZE};

use super::frame::{
    Contents, FRAME_BYTES, FRAME_WORDS, Memory, RUBBISH, Slot, byte_at, byte_offset,
};
use super::inject::{Call, Failure};
use super::machine::State;
use super::options::{Completion, Defect, DeviceOptions};
use crate::TestClock;

/// Where bytes start: those of plain memory may run on into the frames after this one.
#[derive(Clone, Copy, Debug)]
struct End {
    slot: Slot,
    offset: u64,
}

/// One operation with its places looked up.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// `None`: zeroes.
    from: Option<End>,
    to: End,
    len: u64,
    /// It is a copy of a part, be that all of the frame: the target stays whose it is.
    is_part: bool,
}

impl End {
    /// The place `n` bytes further.
    fn plus(self, n: u64) -> Self {
        let offset = self.offset + n;
        let nr = self.slot.nr + (offset / PAGE_SIZE) as usize;
        Self { slot: Slot { nr, ..self.slot }, offset: offset % PAGE_SIZE }
    }

    /// The frames that `len` bytes from here on lie in, and which of their bytes (bit n for byte
    /// n that exists).
    fn frames(self, len: u64) -> impl Iterator<Item = (Slot, u64)> {
        let last = (self.offset + len - 1) / PAGE_SIZE;
        (0..=last).map(move |i| {
            let start = self.offset.saturating_sub(i * PAGE_SIZE);
            let end = (self.offset + len - i * PAGE_SIZE).min(PAGE_SIZE);
            let within = |&byte: &usize| (start..end).contains(&byte_offset(byte));
            let mask = (0..FRAME_BYTES).filter(within).fold(0, |mask, byte| mask | 1 << byte);
            (Slot { nr: self.slot.nr + i as usize, ..self.slot }, mask)
        })
    }

    /// Whether `len` bytes from here and `other_len` bytes from `other` have one in common.
    fn overlaps(self, len: u64, other: Self, other_len: u64) -> bool {
        let start = |end: Self| end.slot.nr as u64 * PAGE_SIZE + end.offset;
        self.slot.memory == other.slot.memory
            && start(self) < start(other) + other_len
            && start(other) < start(self) + len
    }
}

impl Transfer {
    fn is_whole(&self) -> bool {
        !self.is_part
    }

    fn targets(&self) -> impl Iterator<Item = (Slot, u64)> + use<> {
        self.to.frames(self.len)
    }

    fn sources(&self) -> impl Iterator<Item = (Slot, u64)> + use<> {
        let len = self.len;
        self.from.into_iter().flat_map(move |from| from.frames(len))
    }

    /// Whether one of the two writes what the other reads or writes.
    fn disturbs(&self, other: &Self) -> bool {
        let reads = |t: &Self, to: End, len| t.from.is_some_and(|f| f.overlaps(t.len, to, len));
        self.to.overlaps(self.len, other.to, other.len)
            || reads(self, other.to, other.len)
            || reads(other, self.to, self.len)
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "copy of {} to {}", from.slot, self.to.slot)?,
            None => write!(f, "zero of {}", self.to.slot)?,
        }
        match self.is_whole() {
            true => Ok(()),
            false => write!(f, " ({} bytes to offset {})", self.len, self.to.offset),
        }
    }
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
    pub(super) memories: Range<usize>,
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
            t.targets().for_each(|(slot, _)| self.frame_mut(slot).writers += 1);
            t.sources().for_each(|(slot, _)| self.frame_mut(slot).readers += 1);
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
                pending.ops.iter().for_each(|t| self.spoil(t, true));
                Err(DriverError::Timeout)
            }
            Some(Failure::Error(error)) => {
                pending.ops.iter().for_each(|t| self.spoil(t, false));
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

    /// What an operation that failed leaves behind. A frame that was filled, or a page's, before
    /// parts were copied to it is one still; another is not used again after a timeout.
    fn spoil(&mut self, t: &Transfer, timeout: bool) {
        for (slot, bytes) in t.targets() {
            let frame = self.frame_mut(slot);
            if t.is_whole() {
                frame.spoil();
            } else {
                frame.spoil_part(bytes);
            }
            if timeout && frame.contents == Contents::Rubbish {
                frame.contents = Contents::Lost;
            }
            if self.memories[slot.memory].plain {
                self.frame_mut(slot).contents = Contents::Filled;
            }
        }
    }

    /// Copies words up to `until` of each frame.
    fn perform(&mut self, by: &Submitter<'_>, pending: &mut Pending, until: usize) {
        let start = pending.words_done;
        for t in &pending.ops {
            if t.is_whole() {
                self.perform_whole(by, t, start..until);
            } else {
                self.perform_part(by, t, start * 8..until * 8);
            }
            if until == FRAME_WORDS {
                for (slot, bytes) in t.targets() {
                    match t.is_whole() {
                        true => self.frame_mut(slot).contents = Contents::Filled,
                        false => self.frame_mut(slot).cover(bytes),
                    }
                }
            }
        }
        pending.words_done = until.max(start);
    }

    fn perform_whole(&mut self, by: &Submitter<'_>, t: &Transfer, words: Range<usize>) {
        for word in words {
            let value = t.from.map_or(0, |from| self.slot_word(from.slot, word));
            let tail = word == FRAME_WORDS - 1 && by.options.defect == Some(Defect::CopyMissesTail);
            let head = word == 0 && by.options.defect == Some(Defect::ZeroMissesHead);
            if (tail && t.from.is_some()) || (head && t.from.is_none()) {
                continue;
            }
            self.frame_mut(t.to.slot).words[word] = value;
        }
    }

    fn perform_part(&mut self, by: &Submitter<'_>, t: &Transfer, bytes: Range<usize>) {
        let Some(from) = t.from else { return };
        let mut skipped = 0;
        for (slot, mask) in t.targets() {
            for byte in bytes.clone().filter(|byte| mask >> byte & 1 != 0) {
                let behind = (slot.nr - t.to.slot.nr) as u64 * PAGE_SIZE + byte_offset(byte);
                let value = self.end_byte(from.plus(behind - t.to.offset));
                self.frame_mut(slot).set_byte(byte, value);
                skipped = byte;
            }
        }
        if by.options.defect == Some(Defect::PartWritesBeyond) && skipped % 8 != 7 {
            self.frame_mut(t.to.slot).set_byte(skipped + 1, 0);
        }
    }

    /// The byte at an end; zero if it does not exist.
    fn end_byte(&self, end: End) -> u8 {
        byte_at(end.offset)
            .map_or(0, |byte| self.slot_word(end.slot, byte / 8).to_le_bytes()[byte % 8])
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
            t.targets().for_each(|(slot, _)| self.frame_mut(slot).writers -= 1);
            t.sources().for_each(|(slot, _)| self.frame_mut(slot).readers -= 1);
        }
    }

    fn look_up(&mut self, by: &Submitter<'_>, op: Op) -> Result<Transfer, DriverError> {
        let Some(ByteCopy { from, to, len }) = op.as_bytes() else {
            return Err(self.refuse("operations lie within their frames", format!("{op:?}")));
        };
        let is_frame = |(place, _)| matches!(place, Place::Frame(_));
        if !is_frame(to) && !from.is_some_and(is_frame) {
            return Err(self.refuse("one place is a frame of the device", format!("{op:?}")));
        }
        let is_part = matches!(op, Op::CopyPart { .. });
        let from = from.map(|from| self.look_up_end(by, from, len)).transpose()?;
        let to = self.look_up_end(by, to, len)?;
        match from {
            Some(from)
                if by.options.defect == Some(Defect::CopyBackwards)
                    && self.memories[to.slot.memory].host =>
            {
                Ok(Transfer { from: Some(to), to: from, len, is_part })
            }
            _ => Ok(Transfer { from, to, len, is_part }),
        }
    }

    fn look_up_end(
        &mut self,
        by: &Submitter<'_>,
        (place, offset): (Place, u64),
        len: u64,
    ) -> Result<End, DriverError> {
        let place = match place {
            // Parts are counted from the address, frames from where they start.
            Place::Host(HostAddr(addr)) => {
                let (start, within) = (addr & !(PAGE_SIZE - 1), addr & (PAGE_SIZE - 1));
                (Place::Host(HostAddr(start)), within + offset)
            }
            place => (place, offset),
        };
        let slot = self.look_up_place(by, place.0)?;
        let end = End { slot, offset: 0 }.plus(place.1);
        let Memory { frames, plain, .. } = &self.memories[slot.memory];
        let last = end.plus(len - 1).slot.nr;
        if last >= frames.len() || (!plain && last != slot.nr) {
            let detail = format!("{len} bytes at offset {offset} of {slot}");
            return Err(self.refuse("operations lie within their frames", detail));
        }
        Ok(end)
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

    /// Whether what is under way leaves the bytes of `t`, a part, alone: devices may copy different
    /// parts of one frame at once.
    fn is_apart(&self, t: &Transfer) -> bool {
        let under_way = self.pending.iter().filter(|p| p.in_flight).flat_map(|p| &p.ops);
        t.is_part && under_way.into_iter().all(|other| !other.disturbs(t))
    }

    fn check_transfer(&mut self, t: Transfer, batch: &[Transfer]) -> Result<(), DriverError> {
        let overlaps_itself = t.from.is_some_and(|from| from.overlaps(t.len, t.to, t.len));
        if overlaps_itself || batch.iter().any(|b| b.disturbs(&t)) {
            return Err(self.refuse("operations of a batch are independent", t.to_string()));
        }
        for (slot, _) in t.targets().filter(|(slot, _)| !self.memories[slot.memory].plain) {
            let to = self.frame(slot);
            if !to.imported || to.contents == Contents::Lost {
                return Err(self.refuse("operations use frames that the core holds", t.to_string()));
            }
            if to.in_flight() && !self.is_apart(&t) {
                return Err(self.refuse("a frame in flight is left alone", t.to_string()));
            }
            if self.is_mapped(slot, false) {
                return Err(self.refuse("nobody maps a frame that is overwritten", t.to_string()));
            }
        }
        for (slot, bytes) in t.sources().filter(|(slot, _)| !self.memories[slot.memory].plain) {
            let source = self.frame(slot);
            if !source.imported || source.contents == Contents::Lost {
                return Err(self.refuse("operations use frames that the core holds", t.to_string()));
            }
            if source.is_rubbish(bytes) {
                return Err(self.refuse("rubbish is never copied", t.to_string()));
            }
            if source.moved_away {
                let rule = "a frame that moved into the window is not copied";
                return Err(self.refuse(rule, t.to_string()));
            }
            if source.writers > 0 {
                return Err(self.refuse("a frame in flight is left alone", t.to_string()));
            }
            if self.is_mapped(slot, true) {
                return Err(self.refuse("nobody can write a frame that is copied", t.to_string()));
            }
        }
        Ok(())
    }
}
