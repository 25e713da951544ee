//! A back end, what was taken from it, and the counts: what every allocator has beneath it.

use gmm_core::{FrameNr, PAGE_SIZE, PageNr};

use crate::error::Action;
use crate::{Backend, BackendError, Cause, Error, Mark, OutOfMemory, Result, Stats, StreamId};

/// A back end with the frames that an allocator holds but has mapped nowhere. Every call to the
/// back end goes through here, is counted here, and fails with what it was about.
pub(crate) struct Memory<B> {
    backend: B,
    /// Frames that are held and not mapped.
    pool: Vec<FrameNr>,
    pub(crate) stats: Stats,
}

impl<B: Backend> Memory<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self { backend, pool: Vec::new(), stats: Stats::default() }
    }

    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    pub(crate) fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.backend.capacity_frames() * PAGE_SIZE
    }

    /// What the device could still give.
    pub(crate) fn unreserved_bytes(&self) -> u64 {
        self.capacity_bytes().saturating_sub(self.stats.reserved_bytes)
    }

    /// How many frames are held and mapped nowhere.
    pub(crate) fn nr_pooled(&self) -> u64 {
        self.pool.len() as u64
    }

    /// Brings the pool to `nr_frames` frames at least, importing what is missing. False if the
    /// device has no more; what came stays in the pool.
    pub(crate) fn fill_pool(&mut self, nr_frames: u64) -> Result<bool> {
        let missing = nr_frames.saturating_sub(self.nr_pooled());
        // A device may hand over less than it has: asked until it gives nothing.
        while self.nr_pooled() < nr_frames && self.unreserved_bytes() > 0 {
            let before = self.nr_pooled();
            let wanted = (nr_frames - before).min(self.unreserved_bytes() / PAGE_SIZE);
            let result = self.backend.import(wanted, &mut self.pool);
            self.held_changed((self.nr_pooled() - before) as i64);
            result.map_err(failed(Action::Import(missing)))?;
            if self.nr_pooled() == before {
                break;
            }
        }
        Ok(self.nr_pooled() >= nr_frames)
    }

    /// Gives the device all frames of the pool that `keep` does not speak for.
    pub(crate) fn drain_pool(&mut self, keep: u64) -> Result<()> {
        let keep = self.pool.len().min(keep as usize);
        let going = &self.pool[keep..];
        if going.is_empty() {
            return Ok(());
        }
        let nr_frames = going.len() as u64;
        self.backend.release(going).map_err(failed(Action::Release(nr_frames)))?;
        self.pool.truncate(keep);
        self.held_changed(-(nr_frames as i64));
        Ok(())
    }

    fn held_changed(&mut self, frames: i64) {
        let stats = &mut self.stats;
        stats.reserved_bytes = stats.reserved_bytes.wrapping_add_signed(frames * PAGE_SIZE as i64);
        stats.peak_reserved_bytes = stats.peak_reserved_bytes.max(stats.reserved_bytes);
    }

    /// Maps frames of the pool, which has as many, at `nr_pages` pages.
    pub(crate) fn map(&mut self, at: PageNr, nr_pages: u64) -> Result<()> {
        let rest = self.pool.len() - nr_pages as usize;
        let result = self.backend.map(at, &self.pool[rest..]);
        result.map_err(failed(Action::Map { at: at.0, nr_pages }))?;
        self.pool.truncate(rest);
        self.stats.frames_mapped += nr_pages;
        self.stats.map_runs += 1;
        Ok(())
    }

    /// Unmaps `nr_pages` pages; their frames go to the pool.
    pub(crate) fn unmap(&mut self, at: PageNr, nr_pages: u64) -> Result<()> {
        let result = self.backend.unmap(at, nr_pages, &mut self.pool);
        result.map_err(failed(Action::Unmap { at: at.0, nr_pages }))?;
        self.stats.frames_unmapped += nr_pages;
        self.stats.unmap_runs += 1;
        Ok(())
    }

    pub(crate) fn reserve(&mut self, nr_pages: u64) -> Result<PageNr> {
        self.backend.reserve(nr_pages).map_err(failed(Action::Reserve(nr_pages)))
    }

    pub(crate) fn unreserve(&mut self, at: PageNr, nr_pages: u64) {
        self.backend.unreserve(at, nr_pages);
    }

    /// Adjoining pages with memory: what a caching allocator gets from its device. None if there
    /// are not enough frames. No frame stays in the pool.
    pub(crate) fn open_segment(&mut self, nr_pages: u64) -> Result<Option<PageNr>> {
        let opened = self.try_open_segment(nr_pages);
        if !matches!(opened, Ok(Some(_))) {
            // What can't go back stays in the pool, counted as reserved, for the next segment.
            let _ = self.drain_pool(0);
        }
        opened
    }

    fn try_open_segment(&mut self, nr_pages: u64) -> Result<Option<PageNr>> {
        if self.unreserved_bytes() / PAGE_SIZE + self.nr_pooled() < nr_pages {
            return Ok(None);
        }
        if !self.fill_pool(nr_pages)? {
            return Ok(None);
        }
        let at = self.reserve(nr_pages)?;
        if let Err(error) = self.map(at, nr_pages) {
            self.unreserve(at, nr_pages);
            return Err(error);
        }
        self.stats.segments += 1;
        Ok(Some(at))
    }

    /// Maps new memory at reserved pages. False if there are not enough frames. No frame stays in
    /// the pool.
    pub(crate) fn map_new(&mut self, at: PageNr, nr_pages: u64) -> Result<bool> {
        let enough = self.unreserved_bytes() / PAGE_SIZE + self.nr_pooled() >= nr_pages;
        let mapped = match enough {
            true => self.fill_pool(nr_pages).and_then(|filled| match filled {
                true => self.map(at, nr_pages).map(|()| true),
                false => Ok(false),
            }),
            false => Ok(false),
        };
        if !matches!(mapped, Ok(true)) {
            // What can't go back stays in the pool, counted as reserved, for the next time.
            let _ = self.drain_pool(0);
        }
        mapped
    }

    /// Unmaps a segment and gives its addresses back; its memory is in the pool then. If it fails
    /// the segment is as it was.
    pub(crate) fn close_segment(&mut self, at: PageNr, nr_pages: u64) -> Result<()> {
        self.unmap(at, nr_pages)?;
        self.unreserve(at, nr_pages);
        self.stats.segments -= 1;
        Ok(())
    }

    pub(crate) fn mark(&mut self, stream: StreamId) -> Mark {
        self.backend.mark(stream)
    }

    pub(crate) fn reached(&mut self, stream: StreamId, mark: Mark) -> bool {
        self.backend.reached(stream, mark)
    }

    pub(crate) fn order(&mut self, waiter: StreamId, stream: StreamId, mark: Mark) -> Result<()> {
        let result = self.backend.order(waiter, stream, mark);
        result.map_err(failed(Action::Order { waiter, stream }))?;
        self.stats.stream_orders += 1;
        Ok(())
    }

    pub(crate) fn wait(&mut self, stream: StreamId, mark: Mark) -> Result<()> {
        self.backend.wait(stream, mark).map_err(failed(Action::Wait(stream)))?;
        self.stats.host_waits += 1;
        Ok(())
    }

    /// The error of a request that takes `needed_bytes` and does not fit, `free_bytes` being free
    /// in what is held.
    pub(crate) fn out_of_memory(
        &self,
        request: Request,
        free_bytes: u64,
        largest_hole_bytes: u64,
    ) -> Error {
        let free_bytes = free_bytes + self.unreserved_bytes();
        let exhausted = free_bytes < request.needed_bytes;
        Error::OutOfMemory(OutOfMemory {
            requested_bytes: request.size_bytes,
            stream: request.stream,
            cause: if exhausted { Cause::Exhausted } else { Cause::Fragmented },
            capacity_bytes: self.capacity_bytes(),
            reserved_bytes: self.stats.reserved_bytes,
            live_bytes: self.stats.live_bytes,
            free_bytes,
            largest_hole_bytes,
        })
    }
}

/// `bytes` as a multiple of `granularity_bytes`, a power of two. What is too large for any device
/// stays so.
pub(crate) fn rounded_up(bytes: u64, granularity_bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(granularity_bytes).unwrap_or(!(granularity_bytes - 1))
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// By the caller.
    pub(crate) size_bytes: u64,
    /// Rounded up as the allocator does.
    pub(crate) needed_bytes: u64,
    pub(crate) stream: StreamId,
}

fn failed(action: Action) -> impl FnOnce(BackendError) -> Error {
    move |source| Error::Backend { action, source }
}
