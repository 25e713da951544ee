//! A device that writes down what an allocator maps where.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use gmm_alloc::{Backend, BackendError, Mark, PureBackend, StreamId};
use gmm_core::{FrameNr, PAGE_SIZE, PageNr};

use super::ranges::Ranges;

/// Memory that came, or went. Addresses are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) bytes: Range<u64>,
    pub(super) is_mapped: bool,
    /// The whole of a reservation at once, as a segment that does not grow.
    pub(super) is_whole: bool,
}

/// What is mapped of a reservation: a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mapped {
    /// In bytes, by address.
    pub(super) mapped: Vec<Range<u64>>,
    /// It is all of it.
    pub(super) is_whole: bool,
}

/// What is reserved, and mapped.
#[derive(Debug, Default)]
struct State {
    /// First byte and end of each reservation.
    reserved: BTreeMap<u64, u64>,
    mapped: Ranges,
    changes: Vec<Change>,
}

/// Looks at a device from outside while an allocator works on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Rc<RefCell<State>>);

impl Watch {
    /// Reservations in which anything is mapped, by address.
    pub(super) fn segments(&self) -> Vec<Mapped> {
        let state = self.0.borrow();
        let segments = state.reserved.iter().map(|(&start, &end)| {
            let mapped: Vec<_> = state.mapped.within(start..end).collect();
            let is_whole = matches!(&*mapped, [only] if *only == (start..end));
            Mapped { mapped, is_whole }
        });
        segments.filter(|segment| !segment.mapped.is_empty()).collect()
    }

    /// What has changed since it was asked last.
    pub(super) fn take_changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.0.borrow_mut().changes)
    }

    fn change(&self, at: PageNr, nr_pages: u64, is_mapped: bool) {
        let mut state = self.0.borrow_mut();
        let bytes = bytes(at, nr_pages);
        if is_mapped {
            state.mapped.insert(bytes.clone());
        } else {
            state.mapped.remove(bytes.clone());
        }
        let is_whole = state.reserved.get(&bytes.start) == Some(&bytes.end);
        state.changes.push(Change { bytes, is_mapped, is_whole });
    }
}

fn bytes(at: PageNr, nr_pages: u64) -> Range<u64> {
    let start = at.start().0;
    start..start + nr_pages * PAGE_SIZE
}

/// The device.
pub(super) struct Watched {
    device: PureBackend,
    watch: Option<Watch>,
}

impl Watched {
    /// Nothing is written down if nobody watches.
    pub(super) fn new(device: PureBackend, watch: Option<Watch>) -> Self {
        Self { device, watch }
    }
}

impl Backend for Watched {
    fn capacity_frames(&self) -> u64 {
        self.device.capacity_frames()
    }

    fn reserve(&mut self, nr_pages: u64) -> Result<PageNr, BackendError> {
        let at = self.device.reserve(nr_pages)?;
        if let Some(watch) = &self.watch {
            let Range { start, end } = bytes(at, nr_pages);
            watch.0.borrow_mut().reserved.insert(start, end);
        }
        Ok(at)
    }

    fn unreserve(&mut self, at: PageNr, nr_pages: u64) {
        self.device.unreserve(at, nr_pages);
        if let Some(watch) = &self.watch {
            watch.0.borrow_mut().reserved.remove(&at.start().0);
        }
    }

    fn import(&mut self, nr_frames: u64, frames: &mut Vec<FrameNr>) -> Result<(), BackendError> {
        self.device.import(nr_frames, frames)
    }

    fn release(&mut self, frames: &[FrameNr]) -> Result<(), BackendError> {
        self.device.release(frames)
    }

    fn map(&mut self, at: PageNr, frames: &[FrameNr]) -> Result<(), BackendError> {
        self.device.map(at, frames)?;
        if let Some(watch) = &self.watch {
            watch.change(at, frames.len() as u64, true);
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        at: PageNr,
        nr_pages: u64,
        frames: &mut Vec<FrameNr>,
    ) -> Result<(), BackendError> {
        self.device.unmap(at, nr_pages, frames)?;
        if let Some(watch) = &self.watch {
            watch.change(at, nr_pages, false);
        }
        Ok(())
    }

    fn mark(&mut self, stream: StreamId) -> Mark {
        self.device.mark(stream)
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> bool {
        self.device.reached(stream, mark)
    }

    fn order(
        &mut self,
        waiter: StreamId,
        stream: StreamId,
        mark: Mark,
    ) -> Result<(), BackendError> {
        self.device.order(waiter, stream, mark)
    }

    fn wait(&mut self, stream: StreamId, mark: Mark) -> Result<(), BackendError> {
        self.device.wait(stream, mark)
    }
}
