//! PyTorch's published caching policy, written anew from its documentation and its description in
//! `torch.cuda`'s memory notes: the baseline.
//!
//! - Requests are rounded up to 512 bytes. Those of up to 1 MiB come from *small* segments of
//!   2 MiB, those below 10 MiB from *large* ones of 20 MiB, others get a segment of their own size
//!   rounded up to 2 MiB.
//! - Each stream has pools of its own. A request takes the smallest free block that fits, split if
//!   at least 512 bytes (small) or more than 1 MiB (large) would be left; neighbours coalesce.
//! - A block that other streams were said to use is free once their work has ended, which is
//!   looked at when something is allocated.
//! - If the device has no more memory, first blocks that are too large to be split are given back,
//!   then every segment that nothing lives in; then it is out of memory.
//! - With *expandable* segments, each pool of each stream has one segment that grows by pages of
//!   2 MiB or 20 MiB. Blocks are always split; if memory runs out, all pages that nothing lives in
//!   are unmapped.
//!
//! What recordings of PyTorch itself say of it, `tests/recorded.rs` compares.

mod conf_text;
mod config;
mod expandable;
mod pools;

use gmm_core::{PAGE_SIZE, PageNr, VirtAddr};

use crate::block::Live;
use crate::fences::Fences;
use crate::memory::{Memory, Request};
use crate::pending::Pending;
use crate::pieces::{Index, Pieces};
use crate::{Allocation, Allocator, Backend, BlockId, Error, Result, Stats, StreamId};
pub use conf_text::ConfigError;
pub use config::{CachingConfig, Divisions};
use config::{MIN_BLOCK_BYTES, SMALL_BYTES, segment_bytes};
use pools::{Block, Pool, Pools, State};

/// PyTorch's published policy: small and large pools for each stream, best fit within segments that
/// stay until memory runs out, or grow and shrink.
pub struct Caching<B> {
    config: CachingConfig,
    memory: Memory<B>,
    pieces: Pieces<Block>,
    pools: Pools,
    /// Blocks that were freed while other streams used them.
    pending: Pending,
}

impl<B: Backend> Caching<B> {
    /// PyTorch's allocator with its default settings.
    pub fn new(backend: B) -> Self {
        Self::with_config(backend, CachingConfig::default())
    }

    /// PyTorch's allocator with expandable segments, else its default settings.
    pub fn expandable(backend: B) -> Self {
        let config = CachingConfig { expandable_segments: true, ..CachingConfig::default() };
        Self::with_config(backend, config)
    }

    /// PyTorch's allocator as a user has set it up.
    pub fn with_config(backend: B, config: CachingConfig) -> Self {
        Self {
            config,
            memory: Memory::new(backend),
            pieces: Pieces::new(),
            pools: Pools::default(),
            pending: Pending::default(),
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

    /// Waits for the work of all pending blocks and frees them.
    fn free_pending(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        let waited = self.pending.wait(&mut self.memory, &mut ended);
        for index in ended {
            self.make_free(index);
        }
        waited
    }

    /// Puts a block into its pool, one with its free neighbours; returns what they are together.
    fn make_free(&mut self, mut index: Index) -> Index {
        let since = self.pools.now(self.pieces[index].data.pool);
        self.pieces[index].data.state = State::Free { since };
        let is_free = |pieces: &Pieces<Block>, index: Index| pieces[index].data.is_free();
        if let Some(next) = self.pieces[index].next()
            && is_free(&self.pieces, next)
        {
            self.pools.remove(&self.pieces, next);
            self.pieces.merge_next(index);
        }
        if let Some(prev) = self.pieces[index].prev()
            && is_free(&self.pieces, prev)
        {
            self.pools.remove(&self.pieces, prev);
            self.pieces.merge_next(prev);
            index = prev;
            self.pieces[index].data.state = State::Free { since };
        }
        self.pools.insert(&self.pieces, index);
        index
    }

    /// The smallest free block that fits, if the settings let the request have it.
    fn find(&self, pool: Pool, request: Request) -> Option<Index> {
        let needed = request.needed_bytes;
        let mut fitting = self.pools.fitting(pool, request.stream, needed);
        let (mut len, mut index) = fitting.next()?;
        if self.config.expandable_segments {
            // The end of what is mapped counts as being as long as it can grow.
            while let Some((next_len, next)) = fitting.next()
                && self.expandable_len(next) < self.expandable_len(index)
            {
                (len, index) = (next_len, next);
            }
        }
        let max_split = self.config.max_split();
        let spared = needed < max_split && len >= max_split;
        let too_large = needed >= max_split && len - needed >= self.config.max_non_split_rounding();
        (!spared && !too_large).then_some(index)
    }

    /// Makes a segment for a request; none if the device has no more memory.
    fn grow(&mut self, pool: Pool, request: Request) -> Result<Option<Index>> {
        if self.config.expandable_segments {
            return self.expand(pool, request);
        }
        let len = segment_bytes(request.needed_bytes);
        let Some(at) = self.memory.open_segment(len / PAGE_SIZE)? else { return Ok(None) };
        let state = State::Free { since: self.pools.now(pool) };
        let block = Block { stream: request.stream, pool, expandable: None, state };
        let index = self.pieces.insert(at.start().0, len, block);
        self.pools.insert(&self.pieces, index);
        Ok(Some(index))
    }

    /// Gives a segment back that nothing lives in, waiting for its stream.
    fn close(&mut self, index: Index) -> Result<()> {
        let piece = &self.pieces[index];
        let (at, nr_pages) = (PageNr(piece.start / PAGE_SIZE), piece.len / PAGE_SIZE);
        let stream = piece.data.stream;
        Fences::of(&mut self.memory, [stream]).wait(&mut self.memory)?;
        self.memory.close_segment(at, nr_pages)?;
        self.pools.remove(&self.pieces, index);
        self.pieces.remove(index);
        self.memory.drain_pool(0)
    }

    /// Segments of a pool that nothing lives in.
    fn empty_segments(&self, pool: Pool) -> Vec<Index> {
        self.pools.of(pool).filter(|&index| self.pieces.is_alone(index)).collect()
    }

    /// Gives back segments that were not used for longer than others, until the threshold is
    /// reached.
    fn collect_garbage(&mut self) -> Result<()> {
        let Some(threshold) = self.config.garbage_collection_threshold else { return Ok(()) };
        let limit = (self.memory.capacity_bytes() as f64 * threshold) as u64;
        let target = self.memory.stats.reserved_bytes.saturating_sub(limit);
        if target == 0 {
            return Ok(());
        }
        let now = self.pools.now(Pool::Large);
        let mut ages: Vec<(Index, u64)> = Vec::new();
        for index in self.empty_segments(Pool::Large) {
            if let State::Free { since } = self.pieces[index].data.state {
                ages.push((index, now - since));
            }
        }
        let mut reclaimed = 0;
        while reclaimed < target && !ages.is_empty() {
            // Those that are as old as the mean, or older.
            let (nr, sum) = (ages.len() as u64, ages.iter().map(|(_, age)| age).sum::<u64>());
            let (old, young): (Vec<_>, Vec<_>) = ages.iter().partition(|(_, age)| *age * nr >= sum);
            for (index, _) in old {
                reclaimed += self.pieces[index].len;
                self.close(index)?;
            }
            ages = young;
        }
        Ok(())
    }

    /// Gives back blocks too large to be split, enough for a request: one that has its size, or
    /// several, the largest first. False if there are not enough.
    fn close_oversize(&mut self, pool: Pool, request: Request) -> Result<bool> {
        let Some(max_split) = self.config.max_split_size_bytes else { return Ok(false) };
        let wanted = request.needed_bytes.max(max_split);
        let best = self.pools.fitting(pool, request.stream, wanted).next();
        if let Some((_, index)) = best
            && self.pieces.is_alone(index)
        {
            self.close(index)?;
            return Ok(true);
        }
        let mut closed = 0;
        while closed < wanted
            && let Some((len, index)) = self.pools.below(pool, request.stream, wanted)
            && len >= max_split
            && self.pieces.is_alone(index)
        {
            self.close(index)?;
            closed += len;
        }
        Ok(closed >= wanted)
    }

    /// Gives back all segments that nothing lives in, once all work on them has ended.
    fn close_empty(&mut self) -> Result<()> {
        self.free_pending()?;
        if self.config.expandable_segments {
            let free: Vec<Index> = self.pools.all().collect();
            return free.into_iter().try_for_each(|index| self.contract(index));
        }
        for pool in [Pool::Large, Pool::Small] {
            for index in self.empty_segments(pool) {
                self.close(index)?;
            }
        }
        Ok(())
    }

    /// A free block for a request: cached, or of a new segment.
    fn obtain(&mut self, pool: Pool, request: Request) -> Result<Index> {
        if let Some(found) = self.find(pool, request) {
            return Ok(found);
        }
        // Neither looks at expandable segments.
        let fixed = !self.config.expandable_segments;
        if fixed {
            self.collect_garbage()?;
        }
        if let Some(grown) = self.grow(pool, request)? {
            return Ok(grown);
        }
        if fixed
            && self.close_oversize(pool, request)?
            && let Some(grown) = self.grow(pool, request)?
        {
            return Ok(grown);
        }
        self.close_empty()?;
        match self.grow(pool, request)? {
            Some(grown) => Ok(grown),
            None => Err(self.out_of_memory(request)),
        }
    }

    fn out_of_memory(&self, request: Request) -> Error {
        let unreserved = self.memory.unreserved_bytes();
        // The end of an expandable segment can be continued with what is not reserved.
        let growth = |index: Index| match self.pieces[index].next() {
            Some(next) if self.pieces[next].data.is_unmapped() => unreserved,
            _ => 0,
        };
        let holes = self.pools.all().map(|index| self.pieces[index].len + growth(index));
        let hole = holes.max().unwrap_or(0).max(unreserved);
        self.memory.out_of_memory(request, self.pools.free_bytes, hole)
    }

    fn splits(&self, pool: Pool, len: u64, needed_bytes: u64) -> bool {
        let rest = len - needed_bytes;
        if pool == Pool::Small || self.config.expandable_segments {
            rest >= MIN_BLOCK_BYTES
        } else {
            needed_bytes < self.config.max_split() && rest > SMALL_BYTES
        }
    }

    fn live(&mut self, block: BlockId) -> Result<(Index, &mut Live)> {
        let index = self.pieces.find(block)?;
        match &mut self.pieces[index].data.state {
            State::Live(live) => Ok((index, live)),
            _ => Err(Error::NotLive { block }),
        }
    }
}

impl<B: Backend> Allocator for Caching<B> {
    fn name(&self) -> &'static str {
        if self.config.expandable_segments { "pytorch-expandable" } else { "pytorch" }
    }

    fn allocate(&mut self, size_bytes: u64, stream: StreamId) -> Result<Allocation> {
        for index in self.pending.take_reached(&mut self.memory) {
            self.make_free(index);
        }
        let needed_bytes = self.config.rounded(size_bytes);
        let request = Request { size_bytes, needed_bytes, stream };
        let pool = if needed_bytes <= SMALL_BYTES { Pool::Small } else { Pool::Large };
        self.pools.request(pool);
        let index = self.obtain(pool, request)?;
        self.pools.remove(&self.pieces, index);
        if self.splits(pool, self.pieces[index].len, needed_bytes) {
            let state = State::Free { since: self.pools.now(pool) };
            let expandable = self.pieces[index].data.expandable;
            let rest = Block { stream, pool, expandable, state };
            let rest = self.pieces.split(index, needed_bytes, rest);
            self.pools.insert(&self.pieces, rest);
        }
        let piece = &mut self.pieces[index];
        piece.data.state = State::Live(Live::new(size_bytes, stream));
        let (addr, usable_bytes) = (VirtAddr(piece.start), piece.len);
        self.memory.stats.allocated(size_bytes);
        Ok(Allocation { block: self.pieces.block(index), addr, usable_bytes })
    }

    fn record_use(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        self.live(block).map(|(_, live)| live.record_use(stream))
    }

    fn free(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let (index, live) = self.live(block)?;
        live.record_use(stream);
        let live = live.clone();
        self.memory.stats.freed(live.requested_bytes);
        self.pieces.retire(index);
        // Its own stream is in order with what is allocated next in its pools.
        let others: Vec<StreamId> =
            live.users(stream).filter(|user| *user != live.stream).collect();
        if others.is_empty() {
            self.make_free(index);
        } else {
            self.pieces[index].data.state = State::Pending;
            self.pending.push(&mut self.memory, index, &others);
        }
        Ok(())
    }

    fn trim(&mut self) -> Result<u64> {
        let before = self.memory.stats.reserved_bytes;
        self.close_empty()?;
        self.memory.drain_pool(0)?;
        Ok(before - self.memory.stats.reserved_bytes)
    }

    fn stats(&self) -> Stats {
        self.memory.stats
    }
}
