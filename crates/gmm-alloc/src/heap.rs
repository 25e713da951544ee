//! Best fit with coalescing, over segments of device memory: the general allocator, and
//! TensorFlow's.

use std::collections::BTreeSet;

use gmm_core::{PAGE_SIZE, PageNr, VirtAddr};

use crate::block::Live;
use crate::fences::Fences;
use crate::memory::{Memory, Request, rounded_up};
use crate::pieces::{Index, Pieces};
use crate::{Allocation, Allocator, Backend, BlockId, Error, Result, Stats, StreamId};

/// In what the two differ.
#[derive(Clone, Copy)]
struct Policy {
    name: &'static str,
    /// Requests are rounded up to a multiple of this, a power of two.
    granularity_bytes: u64,
    /// A hole is handed out whole if it is smaller than this many times the request...
    whole_below_times: u64,
    /// ...and has less than this many bytes more.
    whole_below_bytes: u64,
    /// The smallest segment, which doubles with each one made; 0: segments cut to measure.
    first_segment_bytes: u64,
    /// Whether segments that nothing lives in go back to the device when it has no more memory.
    gives_back: bool,
}

/// The general one: a segment for each request that fits nowhere, holes cut at 512 bytes.
const BEST_FIT: Policy = Policy {
    name: "best-fit",
    granularity_bytes: 512,
    whole_below_times: 1,
    whole_below_bytes: 1,
    first_segment_bytes: 0,
    gives_back: true,
};

/// TensorFlow's BFC allocator with `allow_growth` and its defaults: 256 bytes; a chunk is split if
/// it has twice the request or 128 MiB more; regions begin at 2 MiB and double; nothing goes back.
/// Its bins hold chunks in order of size and are searched in order of size, which is best fit.
const BFC: Policy = Policy {
    name: "bfc",
    granularity_bytes: 256,
    whole_below_times: 2,
    whole_below_bytes: 128 << 20,
    first_segment_bytes: 2 << 20,
    gives_back: false,
};

/// By how much `bfc` asks for less when its device refuses a region.
const BACKPEDAL: f64 = 0.9;

enum State {
    Free(Fences),
    Live(Live),
}

/// Holes of all segments in one index, by size and then address; all streams share them, and wait
/// for each other where memory changes hands.
pub struct Heap<B> {
    policy: Policy,
    memory: Memory<B>,
    pieces: Pieces<State>,
    /// Length, address and index of each free piece.
    holes: BTreeSet<(u64, u64, Index)>,
    free_bytes: u64,
    next_segment_bytes: u64,
}

impl<B: Backend> Heap<B> {
    /// Best fit with coalescing, 512-byte granularity, segments of the size asked for (rounded up
    /// to frames), which go back when memory runs out.
    pub fn best_fit(backend: B) -> Self {
        Self::new(backend, BEST_FIT)
    }

    /// TensorFlow's published policy with `allow_growth`: regions that double, 256-byte
    /// granularity, chunks split only if much would be left over.
    pub fn bfc(backend: B) -> Self {
        Self::new(backend, BFC)
    }

    fn new(backend: B, policy: Policy) -> Self {
        Self {
            policy,
            memory: Memory::new(backend),
            pieces: Pieces::new(),
            holes: BTreeSet::new(),
            free_bytes: 0,
            next_segment_bytes: policy.first_segment_bytes,
        }
    }

    /// What it stands on.
    pub fn backend(&self) -> &B {
        self.memory.backend()
    }

    /// What it stands on.
    pub fn backend_mut(&mut self) -> &mut B {
        self.memory.backend_mut()
    }

    fn add_hole(&mut self, index: Index) {
        let piece = &self.pieces[index];
        self.free_bytes += piece.len;
        self.holes.insert((piece.len, piece.start, index));
    }

    fn remove_hole(&mut self, index: Index) {
        let piece = &self.pieces[index];
        self.free_bytes -= piece.len;
        self.holes.remove(&(piece.len, piece.start, index));
    }

    fn fences(&self, index: Index) -> &Fences {
        match &self.pieces[index].data {
            State::Free(fences) => fences,
            State::Live(_) => unreachable!("only free pieces are in the index"),
        }
    }

    fn best(&self, needed_bytes: u64) -> Option<Index> {
        self.holes.range((needed_bytes, 0, 0)..).next().map(|hole| hole.2)
    }

    /// Makes a segment that `needed_bytes` fit in; none if the device has no more.
    fn grow(&mut self, needed_bytes: u64) -> Result<Option<Index>> {
        let needed_pages = needed_bytes.div_ceil(PAGE_SIZE);
        let mut doubled = false;
        while 0 < self.next_segment_bytes && self.next_segment_bytes < needed_bytes {
            self.next_segment_bytes *= 2;
            doubled = true;
        }
        let available_pages = self.memory.unreserved_bytes() / PAGE_SIZE + self.memory.nr_pooled();
        let mut nr_pages =
            needed_pages.max(available_pages.min(self.next_segment_bytes / PAGE_SIZE));
        loop {
            if let Some(at) = self.memory.open_segment(nr_pages)? {
                if !doubled {
                    self.next_segment_bytes *= 2;
                }
                let state = State::Free(Fences::default());
                let index = self.pieces.insert(at.start().0, nr_pages * PAGE_SIZE, state);
                self.add_hole(index);
                return Ok(Some(index));
            }
            if nr_pages == needed_pages {
                return Ok(None);
            }
            nr_pages = needed_pages.max((nr_pages as f64 * BACKPEDAL) as u64);
        }
    }

    /// Closes the segments that nothing lives in. Stops at the first failure.
    fn close_empty(&mut self) -> Result<()> {
        let empty: Vec<Index> =
            self.holes.iter().map(|hole| hole.2).filter(|&i| self.pieces.is_alone(i)).collect();
        for index in empty {
            self.fences(index).clone().wait(&mut self.memory)?;
            let (at, len) = (PageNr(self.pieces[index].start / PAGE_SIZE), self.pieces[index].len);
            self.memory.close_segment(at, len / PAGE_SIZE)?;
            self.remove_hole(index);
            self.pieces.remove(index);
        }
        self.memory.drain_pool(0)
    }

    fn out_of_memory(&self, request: Request) -> Error {
        let largest = self.holes.last().map_or(0, |hole| hole.0);
        let hole = largest.max(self.memory.unreserved_bytes());
        self.memory.out_of_memory(request, self.free_bytes, hole)
    }

    /// A free piece of `needed_bytes` or more.
    fn find(&mut self, request: Request) -> Result<Index> {
        if let Some(found) = self.best(request.needed_bytes) {
            return Ok(found);
        }
        if request.needed_bytes > self.memory.capacity_bytes() {
            return Err(self.out_of_memory(request));
        }
        if let Some(grown) = self.grow(request.needed_bytes)? {
            return Ok(grown);
        }
        if self.policy.gives_back {
            self.close_empty()?;
            if let Some(grown) = self.grow(request.needed_bytes)? {
                return Ok(grown);
            }
        }
        Err(self.out_of_memory(request))
    }

    fn keeps_whole(&self, len: u64, needed_bytes: u64) -> bool {
        len / needed_bytes < self.policy.whole_below_times
            && len - needed_bytes < self.policy.whole_below_bytes
            || len == needed_bytes
    }
}

impl<B: Backend> Allocator for Heap<B> {
    fn name(&self) -> &'static str {
        self.policy.name
    }

    fn allocate(&mut self, size_bytes: u64, stream: StreamId) -> Result<Allocation> {
        let granularity = self.policy.granularity_bytes;
        let needed_bytes = rounded_up(size_bytes.max(1), granularity);
        let request = Request { size_bytes, needed_bytes, stream };
        let index = self.find(request)?;
        let fences = self.fences(index).clone();
        fences.order(&mut self.memory, stream)?;
        self.remove_hole(index);
        if !self.keeps_whole(self.pieces[index].len, needed_bytes) {
            let rest = self.pieces.split(index, needed_bytes, State::Free(fences));
            self.add_hole(rest);
        }
        let piece = &mut self.pieces[index];
        piece.data = State::Live(Live::new(size_bytes, stream));
        let (addr, usable_bytes) = (VirtAddr(piece.start), piece.len);
        self.memory.stats.allocated(size_bytes);
        Ok(Allocation { block: self.pieces.block(index), addr, usable_bytes })
    }

    fn record_use(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let index = self.pieces.find(block)?;
        match &mut self.pieces[index].data {
            State::Live(live) => live.record_use(stream),
            State::Free(_) => return Err(Error::NotLive { block }),
        }
        Ok(())
    }

    fn free(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let mut index = self.pieces.find(block)?;
        let State::Live(live) = &self.pieces[index].data else {
            return Err(Error::NotLive { block });
        };
        self.memory.stats.freed(live.requested_bytes);
        let mut fences = Fences::of(&mut self.memory, live.users(stream));
        self.pieces.retire(index);
        if let Some(next) = self.pieces[index].next()
            && let State::Free(theirs) = &self.pieces[next].data
        {
            fences.merge(theirs);
            self.remove_hole(next);
            self.pieces.merge_next(index);
        }
        if let Some(prev) = self.pieces[index].prev()
            && let State::Free(theirs) = &self.pieces[prev].data
        {
            fences.merge(theirs);
            self.remove_hole(prev);
            self.pieces.merge_next(prev);
            index = prev;
        }
        self.pieces[index].data = State::Free(fences);
        self.add_hole(index);
        Ok(())
    }

    fn trim(&mut self) -> Result<u64> {
        let before = self.memory.stats.reserved_bytes;
        self.close_empty()?;
        Ok(before - self.memory.stats.reserved_bytes)
    }

    fn stats(&self) -> Stats {
        self.memory.stats
    }
}
