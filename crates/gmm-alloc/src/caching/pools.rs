//! Free blocks of the caching allocator, by stream and kind of pool.

use std::collections::BTreeSet;

use crate::StreamId;
use crate::block::Live;
use crate::pieces::{Index, Pieces};

/// Which requests a segment serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Pool {
    Small,
    Large,
}

pub(super) enum State {
    /// Free since so many requests to the pool.
    Free {
        since: u64,
    },
    Live(Live),
    /// Freed, and waiting for the work of other streams.
    Pending,
}

pub(super) struct Block {
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    pub(super) state: State,
}

impl Block {
    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, State::Free { .. })
    }
}

/// Pool, stream, length, address: the order in which a fit is looked for.
type Key = (Pool, StreamId, u64, u64, Index);

/// All free blocks.
#[derive(Default)]
pub(super) struct Pools {
    blocks: BTreeSet<Key>,
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

    /// The smallest block of a pool of a stream that has `len` bytes, and its length.
    pub(super) fn best(&self, pool: Pool, stream: StreamId, len: u64) -> Option<(u64, Index)> {
        let from = (pool, stream, len, 0, 0);
        let upto = (pool, stream, u64::MAX, u64::MAX, Index::MAX);
        self.blocks.range(from..=upto).next().map(|found| (found.2, found.4))
    }

    /// The largest block of a pool of a stream that has less than `len` bytes, and its length.
    pub(super) fn below(&self, pool: Pool, stream: StreamId, len: u64) -> Option<(u64, Index)> {
        let from = (pool, stream, 0, 0, 0);
        self.blocks
            .range(from..(pool, stream, len, 0, 0))
            .next_back()
            .map(|found| (found.2, found.4))
    }

    /// All free blocks of a pool, of every stream.
    pub(super) fn of(&self, pool: Pool) -> impl Iterator<Item = Index> {
        self.blocks.iter().filter(move |found| found.0 == pool).map(|found| found.4)
    }

    /// The largest there is.
    pub(super) fn largest(&self) -> u64 {
        self.blocks.iter().map(|found| found.2).max().unwrap_or(0)
    }
}
