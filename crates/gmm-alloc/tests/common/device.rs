//! A back end that watches its allocator: who used which memory when, in what order, and what
//! happens if one of its calls fails.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use gmm_alloc::{Backend, BackendError, Mark, PureBackend, StreamId};
use gmm_core::{FrameNr, PAGE_SIZE, PageNr};

/// How much of each stream's work has ended before a point, as far as its holder knows.
type Clock = HashMap<StreamId, u64>;

fn join(clock: &mut Clock, other: &Clock) {
    for (&stream, &work) in other {
        let known = clock.entry(stream).or_default();
        *known = work.max(*known);
    }
}

/// Work of a stream on a range of addresses.
struct Use {
    bytes: Range<u64>,
    /// Which allocation it belonged to.
    owner: u64,
    stream: StreamId,
    /// Which piece of the stream's work.
    work: u64,
}

struct Inner {
    pure: PureBackend,
    uses: Vec<Use>,
    clocks: HashMap<StreamId, Clock>,
    /// What is known to have ended by whoever calls.
    host: Clock,
    marks: HashMap<(StreamId, Mark), Clock>,
    /// How many calls succeed before one fails; none: all do.
    fails_after: Option<u64>,
}

/// The test's and the allocator's hold of the same device.
#[derive(Clone)]
pub(crate) struct Device(Rc<RefCell<Inner>>);

impl Device {
    pub(crate) fn new(capacity_frames: u64, lag: u64) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            pure: PureBackend::new(capacity_frames).with_lag(lag),
            uses: Vec::new(),
            clocks: HashMap::new(),
            host: Clock::new(),
            marks: HashMap::new(),
            fails_after: None,
        })))
    }

    pub(crate) fn nr_imported(&self) -> u64 {
        self.0.borrow().pure.nr_imported()
    }

    /// Lets one call fail after `calls` more.
    pub(crate) fn fail_after(&self, calls: u64) {
        self.0.borrow_mut().fails_after = Some(calls);
    }

    /// Whether the call that was to fail has.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.borrow().fails_after.is_none()
    }

    pub(crate) fn never_fail(&self) {
        self.0.borrow_mut().fails_after = None;
    }

    /// Lets what is submitted to `stream` from now on run after all that `other` was given.
    pub(crate) fn follow(&self, stream: StreamId, other: StreamId) {
        let clocks = &mut self.0.borrow_mut().clocks;
        let ended = clocks.entry(other).or_default().clone();
        join(clocks.entry(stream).or_default(), &ended);
    }

    /// Submits work on memory of the allocation `owner`. What other allocations' work did there
    /// must have ended by the time it runs.
    pub(crate) fn work(&self, owner: u64, bytes: Range<u64>, stream: StreamId) {
        let inner = &mut *self.0.borrow_mut();
        for page in bytes.start / PAGE_SIZE..bytes.end.div_ceil(PAGE_SIZE) {
            assert!(inner.pure.frame_at(PageNr(page)).is_some(), "page {page} in use is unmapped");
        }
        let clock = inner.clocks.entry(stream).or_default();
        join(clock, &inner.host);
        for past in &inner.uses {
            let overlaps = past.bytes.start < bytes.end && bytes.start < past.bytes.end;
            if overlaps && past.owner != owner {
                let ended = clock.get(&past.stream).copied().unwrap_or_default();
                assert!(
                    ended >= past.work,
                    "{stream} uses {bytes:x?} before {} is done with it",
                    past.stream
                );
            }
        }
        let work = clock.entry(stream).or_default();
        *work += 1;
        inner.uses.push(Use { bytes, owner, stream, work: *work });
    }
}

impl Inner {
    fn call(&mut self) -> Result<(), BackendError> {
        match &mut self.fails_after {
            Some(0) => {
                self.fails_after = None;
                Err(BackendError::Device { code: 7 })
            }
            Some(calls) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn ended(&mut self, stream: StreamId, mark: Mark) {
        join(&mut self.host, &self.marks[&(stream, mark)]);
    }
}

impl Backend for Device {
    fn capacity_frames(&self) -> u64 {
        self.0.borrow().pure.capacity_frames()
    }

    fn reserve(&mut self, nr_pages: u64) -> Result<PageNr, BackendError> {
        let mut inner = self.0.borrow_mut();
        inner.call()?;
        inner.pure.reserve(nr_pages)
    }

    fn unreserve(&mut self, at: PageNr, nr_pages: u64) {
        self.0.borrow_mut().pure.unreserve(at, nr_pages);
    }

    fn import(&mut self, nr_frames: u64, frames: &mut Vec<FrameNr>) -> Result<(), BackendError> {
        let mut inner = self.0.borrow_mut();
        inner.call()?;
        // In pieces, as a real one may.
        inner.pure.import(nr_frames.min(16), frames)
    }

    fn release(&mut self, frames: &[FrameNr]) -> Result<(), BackendError> {
        let mut inner = self.0.borrow_mut();
        inner.call()?;
        inner.pure.release(frames)
    }

    fn map(&mut self, at: PageNr, frames: &[FrameNr]) -> Result<(), BackendError> {
        let mut inner = self.0.borrow_mut();
        inner.call()?;
        inner.pure.map(at, frames)
    }

    fn unmap(
        &mut self,
        at: PageNr,
        nr_pages: u64,
        frames: &mut Vec<FrameNr>,
    ) -> Result<(), BackendError> {
        let inner = &mut *self.0.borrow_mut();
        inner.call()?;
        let bytes = at.0 * PAGE_SIZE..(at.0 + nr_pages) * PAGE_SIZE;
        for past in &inner.uses {
            if past.bytes.start < bytes.end && bytes.start < past.bytes.end {
                let ended = inner.host.get(&past.stream).copied().unwrap_or_default();
                assert!(ended >= past.work, "{:x?} unmapped under {}", past.bytes, past.stream);
            }
        }
        // The frames may be mapped elsewhere: what was done to these pages is over.
        inner.uses.retain(|past| past.bytes.start < bytes.start || past.bytes.end > bytes.end);
        inner.pure.unmap(at, nr_pages, frames)
    }

    fn mark(&mut self, stream: StreamId) -> Mark {
        let inner = &mut *self.0.borrow_mut();
        let mark = inner.pure.mark(stream);
        let clock = inner.clocks.entry(stream).or_default().clone();
        inner.marks.insert((stream, mark), clock);
        mark
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> bool {
        let inner = &mut *self.0.borrow_mut();
        let reached = inner.pure.reached(stream, mark);
        if reached {
            inner.ended(stream, mark);
        }
        reached
    }

    fn order(
        &mut self,
        waiter: StreamId,
        stream: StreamId,
        mark: Mark,
    ) -> Result<(), BackendError> {
        let inner = &mut *self.0.borrow_mut();
        inner.call()?;
        join(inner.clocks.entry(waiter).or_default(), &inner.marks[&(stream, mark)]);
        inner.pure.order(waiter, stream, mark)
    }

    fn wait(&mut self, stream: StreamId, mark: Mark) -> Result<(), BackendError> {
        let inner = &mut *self.0.borrow_mut();
        inner.call()?;
        inner.ended(stream, mark);
        inner.pure.wait(stream, mark)
    }
}
