//! The stitching allocator: addresses are plentiful, frames are not.
//!
//! One heap over a window of addresses several times as large as the device. What is allocated
//! lies anywhere in it, large blocks at any multiple of 512 bytes like small ones, so all that is
//! lost is what is left of pages of which a part is in use. A page that nothing lives in is a
//! frame that can be mapped anywhere else.
//!
//! - A request goes to idle memory (free, still mapped) if there is a range that is long enough.
//!   Else it goes where the fewest frames are missing (`place.rs`), and exactly those are mapped
//!   there: from the pool of unmapped frames; imported; when the device has no more, taken from
//!   the pages that have been idle longest (`rests.rs`).
//! - Freed memory stays mapped until then. Frames belong to no stream and no size: nothing is ever
//!   kept back, and nothing but live memory keeps a frame.
//! - Memory that changes streams is ordered (`fences.rs`): the new stream waits on the device for
//!   what the last users had been given when it was freed. The caller waits only where a page is
//!   unmapped that work may still use.
//! - A failure of the back end leaves everything as it was, but for pages that were moved to the
//!   pool or mapped already.

mod place;
mod rests;
mod space;

use std::ops::Range;

use gmm_core::{PAGE_SIZE, PageNr, VirtAddr};

use crate::block::Live;
use crate::fences::Fences;
use crate::memory::{Memory, Request, rounded_up};
use crate::pieces::Index;
use crate::{Allocation, Allocator, Backend, BlockId, Error, Result, Stats, StreamId};
use place::Placement;
use space::{Claim, Space, State, pages_within};

/// What requests are rounded up to.
const GRANULARITY_BYTES: u64 = 512;

/// How many times the device's frames the pages of a window are.
const WINDOW_TIMES: u64 = 4;

/// The stitching allocator: assembles free frames, from anywhere, under ranges of addresses, so that
/// nothing but live memory keeps a frame. All streams share its frames; freed memory stays mapped
/// until the device has no more and its pages are those that have been idle longest.
pub struct Stitching<B> {
    memory: Memory<B>,
    space: Space,
    windows: Vec<Window>,
}

/// Addresses reserved at one time.
struct Window {
    at: PageNr,
    nr_pages: u64,
}

impl<B: Backend> Stitching<B> {
    /// An allocator that holds nothing yet.
    pub fn new(backend: B) -> Self {
        Self { memory: Memory::new(backend), space: Space::new(), windows: Vec::new() }
    }

    /// What it stands on.
    pub fn backend(&self) -> &B {
        self.memory.backend()
    }

    /// What it stands on.
    pub fn backend_mut(&mut self) -> &mut B {
        self.memory.backend_mut()
    }

    /// Frames that can be had without taking any from idle pages.
    fn unused_frames(&self) -> u64 {
        self.memory.nr_pooled() + self.memory.unreserved_bytes() / PAGE_SIZE
    }

    fn place(&mut self, request: Request) -> Result<Placement> {
        let len = request.needed_bytes;
        if let Some(placement) = self.space.place_idle(len) {
            return Ok(placement);
        }
        let frames = self.unused_frames();
        if let Some(placement) = self.space.place_stitched(len, frames) {
            return Ok(placement);
        }
        let available = frames + self.space.rests.nr_pages();
        if len.div_ceil(PAGE_SIZE) > available {
            return Err(self.out_of_memory(request));
        }
        if let Some(first) = self.space.oldest_void(len) {
            let start = self.space.pieces[first].start;
            return Ok(Placement { first, start, new_frames: len.div_ceil(PAGE_SIZE) });
        }
        let nr_pages = WINDOW_TIMES * self.memory.backend().capacity_frames();
        let at = self.memory.reserve(nr_pages)?;
        self.windows.push(Window { at, nr_pages });
        self.memory.stats.segments += 1;
        let first = self.space.add_window(at, nr_pages);
        Ok(Placement { first, start: at.start().0, new_frames: len.div_ceil(PAGE_SIZE) })
    }

    fn out_of_memory(&self, request: Request) -> Error {
        let space = &self.space;
        let pooled = self.memory.nr_pooled() * PAGE_SIZE;
        let stitched = (self.unused_frames() + space.rests.nr_pages()) * PAGE_SIZE;
        let hole = stitched.max(space.idle.last().map_or(0, |run| run.0));
        self.memory.out_of_memory(request, space.idle_bytes + pooled, hole)
    }

    /// Makes the placement's memory all mapped, and one live piece.
    fn make(&mut self, placement: Placement, request: Request) -> Result<Index> {
        let bytes = placement.start..placement.start + request.needed_bytes;
        let live = Live::new(request.size_bytes, request.stream);
        if self.space.is_within(placement.first, &bytes) {
            self.space.fences(placement.first).order(&mut self.memory, request.stream)?;
            return Ok(self.space.take(placement.first, bytes, live));
        }
        let (first, last) = self.space.claim(placement.first, bytes.clone());
        let mapped = self.map_claim(first, last, placement.new_frames, request);
        if let Err(error) = mapped {
            self.space.unclaim(first, last);
            return Err(error);
        }
        Ok(self.space.settle(first, last, bytes, live))
    }

    /// Maps what is void in a claim, and lets the stream wait for who used the rest.
    fn map_claim(
        &mut self,
        first: Index,
        last: Index,
        new_frames: u64,
        request: Request,
    ) -> Result<()> {
        if !self.gather(new_frames)? {
            return Err(self.out_of_memory(request));
        }
        let mut index = first;
        loop {
            match self.space.claim_at(index) {
                Claim::Idle(fences) => fences.order(&mut self.memory, request.stream)?,
                Claim::Void(_) => {
                    let pages = pages_within(self.space.range(index));
                    self.memory.map(PageNr(pages.start), pages.end - pages.start)?;
                    *self.space.claim_at(index) = Claim::Idle(Fences::default());
                }
            }
            if index == last {
                return Ok(());
            }
            index = self.space.pieces[index].next().expect("a claim is one run");
        }
    }

    /// Brings the pool to `nr_frames` frames: imports what is missing, then takes the frames of
    /// the pages that have been idle longest. False if there are not as many: a device may have
    /// fewer than its capacity, if others use it.
    fn gather(&mut self, nr_frames: u64) -> Result<bool> {
        self.memory.fill_pool(nr_frames)?;
        while self.memory.nr_pooled() < nr_frames {
            let missing = nr_frames - self.memory.nr_pooled();
            let Some(oldest) = self.space.rests.oldest() else {
                return Ok(false);
            };
            self.unmap(oldest.start..oldest.end.min(oldest.start + missing))?;
        }
        Ok(true)
    }

    /// Moves the frames of idle pages, which are of one run, to the pool.
    fn unmap(&mut self, pages: Range<u64>) -> Result<()> {
        let index = self.space.idle_at(pages.start);
        self.space.fences(index).clone().wait(&mut self.memory)?;
        self.memory.unmap(PageNr(pages.start), pages.end - pages.start)?;
        self.space.vacate(index, pages);
        Ok(())
    }

    /// Gives back windows in which nothing is left.
    fn close_windows(&mut self) {
        let (space, memory) = (&mut self.space, &mut self.memory);
        self.windows.retain(|window| {
            let start = window.at.start().0;
            let index = space.voids.get(&start).copied();
            let Some(index) = index.filter(|&index| space.pieces.is_alone(index)) else {
                return true;
            };
            space.voids.remove(&start);
            space.pieces.remove(index);
            memory.unreserve(window.at, window.nr_pages);
            memory.stats.segments -= 1;
            false
        });
    }
}

impl<B: Backend> Allocator for Stitching<B> {
    fn name(&self) -> &'static str {
        "stitching"
    }

    fn allocate(&mut self, size_bytes: u64, stream: StreamId) -> Result<Allocation> {
        let needed_bytes = rounded_up(size_bytes.max(1), GRANULARITY_BYTES);
        let request = Request { size_bytes, needed_bytes, stream };
        if needed_bytes > self.memory.capacity_bytes() {
            return Err(self.out_of_memory(request));
        }
        self.space.now += 1;
        let placement = self.place(request)?;
        let index = self.make(placement, request)?;
        self.memory.stats.allocated(size_bytes);
        self.space.placed(index);
        let piece = &self.space.pieces[index];
        let (addr, usable_bytes) = (VirtAddr(piece.start), piece.len);
        Ok(Allocation { block: self.space.pieces.block(index), addr, usable_bytes })
    }

    fn record_use(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let index = self.space.pieces.find(block)?;
        match &mut self.space.pieces[index].data {
            State::Live(live) => live.record_use(stream),
            _ => return Err(Error::NotLive { block }),
        }
        Ok(())
    }

    fn free(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let index = self.space.pieces.find(block)?;
        let State::Live(live) = &self.space.pieces[index].data else {
            return Err(Error::NotLive { block });
        };
        self.space.now += 1;
        self.memory.stats.freed(live.requested_bytes);
        let fences = Fences::of(&mut self.memory, live.users(stream));
        self.space.pieces.retire(index);
        self.space.set_free(index, State::Idle(fences));
        Ok(())
    }

    fn trim(&mut self) -> Result<u64> {
        let before = self.memory.stats.reserved_bytes;
        while let Some(pages) = self.space.rests.oldest() {
            self.unmap(pages)?;
        }
        self.close_windows();
        self.memory.drain_pool(0)?;
        Ok(before - self.memory.stats.reserved_bytes)
    }

    fn stats(&self) -> Stats {
        self.memory.stats
    }
}
