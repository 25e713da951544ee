//! The stitching allocator's back end: frames of an XPU's node, entries of the space.
//!
//! A frame that is mapped is a page pinned on the node: it is there, and nothing evicts or moves
//! it. Which frame a page gets is the node's affair, so an imported frame is a right to one, no
//! more, and [`Backend::import`] gives no more of them than the node lets programs pin. A page
//! that is unmapped is discarded: its frame is the node's again until the right is used elsewhere,
//! and whoever gets it finds zeroes.

use std::collections::HashMap;

use gmm_alloc::{Backend, BackendError, Mark, StreamId};
use gmm_core::driver::Protection;
use gmm_core::{FrameNr, NodeId, PAGE_SIZE, PageNr, PageRange};

use super::queue::Queue;
use crate::recording::WINDOW_NAME;
use crate::{Error, Gmm, Result, Stream, Xpu};

/// How many streams are known when those that are over are first looked for.
const MANY_STREAMS: usize = 64;

pub(super) struct XpuFrames {
    gmm: Gmm,
    node: NodeId,
    capacity_frames: u64,
    /// Rights below this number were handed out before;
    next_right: u32,
    /// of these, those that came back.
    returned: Vec<FrameNr>,
    /// Which right a mapped page has used.
    used: HashMap<PageNr, FrameNr>,
    windows: Vec<PageRange>,
    queues: HashMap<StreamId, Queue>,
    /// When there are as many queues, those that are over are forgotten.
    many_queues: usize,
    /// What the manager said when it refused last.
    refusal: Option<Error>,
}

impl XpuFrames {
    pub(super) fn new(xpu: &Xpu, capacity_bytes: u64) -> Result<Self> {
        let gmm = xpu.gmm().clone();
        let node = NodeId(xpu.node());
        let nodes = gmm.enter()?.space.snapshot().nodes;
        let has = nodes.iter().find(|n| n.node == node).map_or(0, |n| n.capacity_frames);
        Ok(Self {
            gmm,
            node,
            capacity_frames: (capacity_bytes / PAGE_SIZE).min(u64::from(has)),
            next_right: 0,
            returned: Vec::new(),
            used: HashMap::new(),
            windows: Vec::new(),
            queues: HashMap::new(),
            many_queues: MANY_STREAMS,
            refusal: None,
        })
    }

    pub(super) fn gmm(&self) -> &Gmm {
        &self.gmm
    }

    /// The stream's number; from now on its launches are known.
    pub(super) fn know(&mut self, stream: &Stream) -> StreamId {
        if self.queues.len() >= self.many_queues {
            // A mark of a stream that is not known is reached.
            self.queues.retain(|_, queue| !queue.is_over());
            self.many_queues = MANY_STREAMS.max(2 * self.queues.len());
        }
        let id = StreamId(stream.nr());
        self.queues.entry(id).or_insert_with(|| Queue::new(stream.queue().clone()));
        id
    }

    /// What the manager said when it refused last, once.
    pub(super) fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    fn refuse<T>(&mut self, done: Result<T>) -> Result<T, BackendError> {
        done.map_err(|error| {
            self.refusal = Some(error);
            BackendError::Device { code: libc::EIO }
        })
    }

    fn nr_rights(&self) -> u64 {
        u64::from(self.next_right) - self.returned.len() as u64
    }

    /// How many more rights there are: others may pin pages of the node, too.
    fn room(&self) -> Result<u64> {
        let unused = self.nr_rights() - self.used.len() as u64;
        let pinnable = u64::from(self.gmm.enter()?.space.pin_room(self.node)?);
        let allowed = self.capacity_frames - self.nr_rights();
        Ok(pinnable.saturating_sub(unused).min(allowed))
    }

    fn pin(&self, range: PageRange) -> Result<()> {
        let (start, len_bytes) = (range.start.start(), range.len_bytes());
        // Several threads bring the pages and map them, so that launches find them; that all are
        // there and stay, or why they can't, is the pin's affair.
        let _ = self.gmm.prefetch_pages(start, len_bytes, self.node);
        Ok(self.gmm.enter()?.space.pin(start, len_bytes, self.node)?)
    }

    fn unpin(&self, range: PageRange) -> Result<()> {
        let inside = self.gmm.enter()?;
        let (start, len_bytes) = (range.start.start(), range.len_bytes());
        inside.space.unpin(start, len_bytes, self.node)?;
        let dropped = inside.space.discard(start, len_bytes);
        if dropped.is_err() {
            // As it was. The pages that were dropped are made again: what they held was free.
            inside.space.pin(start, len_bytes, self.node)?;
        }
        Ok(dropped?)
    }
}

impl Backend for XpuFrames {
    /// Less than was asked for while others have pinned the node's frames.
    fn capacity_frames(&self) -> u64 {
        self.nr_rights() + self.room().unwrap_or(0)
    }

    fn reserve(&mut self, nr_pages: u64) -> Result<PageNr, BackendError> {
        let mapped = self.gmm.enter().and_then(|inside| {
            let len_bytes = nr_pages * PAGE_SIZE;
            Ok(inside.space.mmap(len_bytes, Protection::ReadWrite, WINDOW_NAME)?)
        });
        let range = self.refuse(mapped)?;
        self.windows.push(range);
        Ok(range.start)
    }

    fn unreserve(&mut self, at: PageNr, _nr_pages: u64) {
        let Some(which) = self.windows.iter().position(|window| window.start == at) else { return };
        let window = self.windows[which];
        let unmapped = self.gmm.enter().and_then(|inside| {
            Ok(inside.space.munmap(window.start.start(), window.len_bytes())?)
        });
        // What can't be unmapped now is when this is dropped.
        if unmapped.is_ok() {
            self.windows.swap_remove(which);
        }
    }

    fn import(&mut self, nr_frames: u64, frames: &mut Vec<FrameNr>) -> Result<(), BackendError> {
        let room = self.room();
        let room = self.refuse(room)?;
        for _ in 0..nr_frames.min(room) {
            frames.push(self.returned.pop().unwrap_or_else(|| {
                self.next_right += 1;
                FrameNr(self.next_right - 1)
            }));
        }
        Ok(())
    }

    fn release(&mut self, frames: &[FrameNr]) -> Result<(), BackendError> {
        self.returned.extend_from_slice(frames);
        Ok(())
    }

    fn map(&mut self, at: PageNr, frames: &[FrameNr]) -> Result<(), BackendError> {
        let pinned = self.pin(PageRange { start: at, nr_pages: frames.len() as u64 });
        self.refuse(pinned)?;
        self.used.extend((at.0..).map(PageNr).zip(frames.iter().copied()));
        Ok(())
    }

    fn unmap(
        &mut self,
        at: PageNr,
        nr_pages: u64,
        frames: &mut Vec<FrameNr>,
    ) -> Result<(), BackendError> {
        let unpinned = self.unpin(PageRange { start: at, nr_pages });
        self.refuse(unpinned)?;
        let pages = (at.0..at.0 + nr_pages).map(PageNr);
        frames.extend(pages.filter_map(|page| self.used.remove(&page)));
        Ok(())
    }

    fn mark(&mut self, stream: StreamId) -> Mark {
        self.queues.get_mut(&stream).map_or(Mark(0), Queue::mark)
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> bool {
        self.queues.get_mut(&stream).is_none_or(|queue| queue.reached(mark))
    }

    /// The host XPU's streams can't wait for one another: the caller does.
    fn order(&mut self, _: StreamId, stream: StreamId, mark: Mark) -> Result<(), BackendError> {
        self.wait(stream, mark)
    }

    fn wait(&mut self, stream: StreamId, mark: Mark) -> Result<(), BackendError> {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.wait(mark);
        }
        Ok(())
    }
}

impl Drop for XpuFrames {
    fn drop(&mut self) {
        // In a forked child nothing is ours.
        if self.gmm.enter().is_err() {
            return;
        }
        // What was freed may still be in use by launches that are under way.
        self.queues.values_mut().for_each(Queue::drain);
        let Ok(inside) = self.gmm.enter() else { return };
        for window in &self.windows {
            // A launch that nobody told this allocator of holds it: then it stays.
            let _ = inside.space.munmap(window.start.start(), window.len_bytes());
        }
    }
}
