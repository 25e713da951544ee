//! Free and unmapped blocks of the caching allocator, by stream and kind of pool.

use std::collections::BTreeSet;

use super::config::{LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES};
use crate::StreamId;
use crate::block::Live;
use crate::pieces::{Index, Pieces};

/// Which requests a segment serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Pool {
    Small,
    Large,
}

impl Pool {
    /// What an expandable segment grows and shrinks by.
    pub(super) fn granule_bytes(self) -> u64 {
        match self {
            Pool::Small => SMALL_SEGMENT_BYTES,
            Pool::Large => LARGE_SEGMENT_BYTES,
        }
    }
}

pub(super) enum State {
    /// Free since so many requests to the pool.
    Free {
        since: u64,
    },
    Live(Live),
    /// Freed, and waiting for the work of other streams.
    Pending,
    /// Addresses of an expandable segment that nothing is mapped at: whole granules.
    Unmapped,
}

pub(super) struct Block {
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    /// The first byte of the expandable segment that it is a part of.
    pub(super) expandable: Option<u64>,
    pub(super) state: State,
}

impl Block {
    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, State::Free { .. })
    }

    pub(super) fn is_unmapped(&self) -> bool {
        matches!(self.state, State::Unmapped)
    }
}

/// Pool, stream, length, address: the order in which a fit is looked for.
type Key = (Pool, StreamId, u64, u64, Index);

/// All free blocks.
#[derive(Default)]
pub(super) struct Pools {
    blocks: BTreeSet<Key>,
    /// Pool, stream and address of what is not mapped.
    unmapped: BTreeSet<(Pool, StreamId, u64, Index)>,
    pub(super) free_bytes: u64,
    /// Requests to the small pools and to the large ones: the clock of garbage collection.
    nr_requests: [u64; 2],
}

fn key(pieces: &Pieces<Block>, index: Index) -> Key {
    let piece = &pieces[index];
    (piece.data.pool, piece.data.stream, piece.len, piece.start, index)
}

impl Pools {
    /// Counts a request to a pool.
    pub(super) fn request(&mut self, pool: Pool) {
        self.nr_requests[pool as usize] += 1;
    }

    /// What the clock of a pool shows.
    pub(super) fn now(&self, pool: Pool) -> u64 {
        self.nr_requests[pool as usize]
    }

    pub(super) fn insert(&mut self, pieces: &Pieces<Block>, index: Index) {
        self.free_bytes += pieces[index].len;
        self.blocks.insert(key(pieces, index));
    }

    pub(super) fn remove(&mut self, pieces: &Pieces<Block>, index: Index) {
        if self.blocks.remove(&key(pieces, index)) {
            self.free_bytes -= pieces[index].len;
        }
    }

    pub(super) fn insert_unmapped(&mut self, pieces: &Pieces<Block>, index: Index) {
        let piece = &pieces[index];
        self.unmapped.insert((piece.data.pool, piece.data.stream, piece.start, index));
    }

    pub(super) fn remove_unmapped(&mut self, pieces: &Pieces<Block>, index: Index) {
        let piece = &pieces[index];
        self.unmapped.remove(&(piece.data.pool, piece.data.stream, piece.start, index));
    }

    /// The blocks of a pool of a stream that have `len` bytes, with their lengths, the smallest
    /// first.
    pub(super) fn fitting(
        &self,
        pool: Pool,
        stream: StreamId,
        len: u64,
    ) -> impl Iterator<Item = (u64, Index)> {
        let from = (pool, stream, len, 0, 0);
        let upto = (pool, stream, u64::MAX, u64::MAX, Index::MAX);
        self.blocks.range(from..=upto).map(|found| (found.2, found.4))
    }

    /// The largest block of a pool of a stream that has less than `len` bytes, and its length.
    pub(super) fn below(&self, pool: Pool, stream: StreamId, len: u64) -> Option<(u64, Index)> {
        let from = (pool, stream, 0, 0, 0);
        self.blocks
            .range(from..(pool, stream, len, 0, 0))
            .next_back()
            .map(|found| (found.2, found.4))
    }

    /// What is not mapped of a pool of a stream, in the order of addresses.
    pub(super) fn unmapped(&self, pool: Pool, stream: StreamId) -> impl Iterator<Item = Index> {
        let range = (pool, stream, 0, 0)..=(pool, stream, u64::MAX, Index::MAX);
        self.unmapped.range(range).map(|found| found.3)
    }

    /// All free blocks of a pool, of every stream.
    pub(super) fn of(&self, pool: Pool) -> impl Iterator<Item = Index> {
        self.blocks.iter().filter(move |found| found.0 == pool).map(|found| found.4)
    }

    /// All free blocks.
    pub(super) fn all(&self) -> impl Iterator<Item = Index> {
        self.blocks.iter().map(|found| found.4)
    }
}
