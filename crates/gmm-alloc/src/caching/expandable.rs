//! Expandable segments: addresses for more than the whole device, mapped from the beginning on as
//! they are needed, a granule at a time.
//!
//! What is not mapped is a block too, in the list of its segment: free blocks never stand beside
//! free ones, nor unmapped beside unmapped.

use gmm_core::{PAGE_SIZE, PageNr};

use super::Caching;
use super::pools::{Block, Pool, State};
use crate::fences::Fences;
use crate::memory::Request;
use crate::pieces::Index;
use crate::{Backend, Result};

impl<B: Backend> Caching<B> {
    /// Maps what is missing for a request at the lowest addresses where there is room, beginning in
    /// a free block if one lies before them. None if the device has no more memory; what was mapped
    /// by then is free.
    pub(super) fn expand(&mut self, pool: Pool, request: Request) -> Result<Option<Index>> {
        if request.needed_bytes > self.memory.capacity_bytes() {
            return Ok(None);
        }
        let mut found = match self.place_with_room(pool, request) {
            Some(found) => found,
            None => self.reserve_expandable(pool, request)?,
        };
        if self.pieces[found].data.is_unmapped() {
            match self.map_first(found, request.needed_bytes)? {
                Some(mapped) => found = mapped,
                None => return Ok(None),
            }
        }
        while self.pieces[found].len < request.needed_bytes {
            let missing = request.needed_bytes - self.pieces[found].len;
            let next = self.pieces[found].next().expect("there was room");
            match self.map_first(next, missing)? {
                Some(mapped) => found = mapped,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// The first block that what is not mapped begins with, or follows on, and from which on enough
    /// is free or not mapped.
    fn place_with_room(&self, pool: Pool, request: Request) -> Option<Index> {
        let pieces = &self.pieces;
        let first = |index: Index| {
            pieces[index].prev().filter(|prev| pieces[*prev].data.is_free()).unwrap_or(index)
        };
        let has_room = |&first: &Index| {
            let (mut at, mut room) = (Some(first), 0);
            while let Some(index) = at
                && room < request.needed_bytes
                && (pieces[index].data.is_free() || pieces[index].data.is_unmapped())
            {
                room += pieces[index].len;
                at = pieces[index].next();
            }
            room >= request.needed_bytes
        };
        self.pools.unmapped(pool, request.stream).map(first).find(has_room)
    }

    /// Addresses for an eighth more than the device has, as PyTorch does.
    fn reserve_expandable(&mut self, pool: Pool, request: Request) -> Result<Index> {
        let capacity = self.memory.capacity_bytes();
        let len = rounded_to_multiple(capacity + capacity / 8, pool.granule_bytes());
        let start = self.memory.reserve(len / PAGE_SIZE)?.start().0;
        self.memory.stats.segments += 1;
        let block =
            Block { stream: request.stream, pool, expandable: Some(start), state: State::Unmapped };
        let index = self.pieces.insert(start, len, block);
        self.pools.insert_unmapped(&self.pieces, index);
        Ok(index)
    }

    /// Maps the first granules of an unmapped block, `wanted_bytes` or all of it; returns the free
    /// block that they are in then. None if the device has no more memory.
    fn map_first(&mut self, index: Index, wanted_bytes: u64) -> Result<Option<Index>> {
        let piece = &self.pieces[index];
        let Block { stream, pool, expandable, .. } = piece.data;
        let len = piece.len.min(rounded_to_multiple(wanted_bytes, pool.granule_bytes()));
        let mapped = self.memory.map_new(PageNr(piece.start / PAGE_SIZE), len / PAGE_SIZE);
        self.pools.remove_unmapped(&self.pieces, index);
        if !matches!(mapped, Ok(true)) {
            self.keep_unmapped(index);
            return mapped.map(|_| None);
        }
        if len < self.pieces[index].len {
            let rest = Block { stream, pool, expandable, state: State::Unmapped };
            let rest = self.pieces.split(index, len, rest);
            self.pools.insert_unmapped(&self.pieces, rest);
        }
        Ok(Some(self.make_free(index)))
    }

    /// Unmaps the whole granules of a free block, waiting for its stream, and gives their memory
    /// back; the addresses too if nothing of the segment is mapped any more.
    pub(super) fn contract(&mut self, index: Index) -> Result<()> {
        let piece = &self.pieces[index];
        let (start, end) = (piece.start, piece.start + piece.len);
        let Block { stream, pool, expandable, state: State::Free { since } } = piece.data else {
            unreachable!("only free blocks are in a pool");
        };
        let Some(base) = expandable else { unreachable!("a segment of another kind") };
        let granule = pool.granule_bytes();
        let first = base + rounded_to_multiple(start - base, granule);
        let last = base + (end - base) / granule * granule;
        if first >= last {
            return Ok(());
        }
        Fences::of(&mut self.memory, [stream]).wait(&mut self.memory)?;
        self.memory.unmap(PageNr(first / PAGE_SIZE), (last - first) / PAGE_SIZE)?;
        self.pools.remove(&self.pieces, index);
        let part = |state| Block { stream, pool, expandable, state };
        let mut middle = index;
        if start < first {
            middle = self.pieces.split(index, first - start, part(State::Unmapped));
            self.pools.insert(&self.pieces, index);
        }
        if last < end {
            let rest = self.pieces.split(middle, last - first, part(State::Free { since }));
            self.pools.insert(&self.pieces, rest);
        }
        self.make_unmapped(middle);
        self.memory.drain_pool(0)
    }

    /// A block becomes unmapped, one with its unmapped neighbours.
    fn make_unmapped(&mut self, mut index: Index) {
        self.pieces[index].data.state = State::Unmapped;
        if let Some(next) = self.pieces[index].next()
            && self.pieces[next].data.is_unmapped()
        {
            self.pools.remove_unmapped(&self.pieces, next);
            self.pieces.merge_next(index);
        }
        if let Some(prev) = self.pieces[index].prev()
            && self.pieces[prev].data.is_unmapped()
        {
            self.pools.remove_unmapped(&self.pieces, prev);
            self.pieces.merge_next(prev);
            index = prev;
        }
        self.keep_unmapped(index);
    }

    /// Remembers an unmapped block, unless its segment has nothing else: then it is given up.
    fn keep_unmapped(&mut self, index: Index) {
        if self.pieces.is_alone(index) {
            let piece = &self.pieces[index];
            self.memory.unreserve(PageNr(piece.start / PAGE_SIZE), piece.len / PAGE_SIZE);
            self.memory.stats.segments -= 1;
            self.pieces.remove(index);
        } else {
            self.pools.insert_unmapped(&self.pieces, index);
        }
    }

    /// How far a block could grow in place, its own length included.
    pub(super) fn expandable_len(&self, index: Index) -> u64 {
        let piece = &self.pieces[index];
        let next = piece.next().filter(|next| self.pieces[*next].data.is_unmapped());
        piece.len + next.map_or(0, |next| self.pieces[next].len)
    }
}

/// `bytes` as a multiple of `granule_bytes`, which is no power of two.
fn rounded_to_multiple(bytes: u64, granule_bytes: u64) -> u64 {
    bytes.div_ceil(granule_bytes) * granule_bytes
}
