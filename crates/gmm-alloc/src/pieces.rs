//! Memory cut into pieces, which know their neighbours: the shape of every heap here.

use crate::{BlockId, Error, Result};

/// Where a piece is kept. Valid until it is removed or merged away.
pub(crate) type Index = u32;

/// No neighbour.
const NONE: Index = Index::MAX;

/// A run of bytes. What lies before it and after it in memory is a pointer away. It is aligned to a
/// cache line: with many pieces each access is one to memory, and should not be two.
#[repr(align(64))]
pub(crate) struct Piece<T> {
    /// The address of its first byte.
    pub(crate) start: u64,
    pub(crate) len: u64,
    prev: Index,
    next: Index,
    /// Counts the blocks that were kept at this index, so that a stale [`BlockId`] is noticed.
    generation: u32,
    pub(crate) data: T,
}

impl<T> Piece<T> {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    pub(crate) fn prev(&self) -> Option<Index> {
        (self.prev != NONE).then_some(self.prev)
    }

    pub(crate) fn next(&self) -> Option<Index> {
        (self.next != NONE).then_some(self.next)
    }
}

/// All pieces of a heap, in any number of runs of memory.
pub(crate) struct Pieces<T> {
    slots: Vec<Piece<T>>,
    vacant: Vec<Index>,
}

impl<T> Pieces<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }

    /// A run of memory of its own.
    pub(crate) fn insert(&mut self, start: u64, len: u64, data: T) -> Index {
        self.place(Piece { start, len, prev: NONE, next: NONE, generation: 0, data })
    }

    fn place(&mut self, mut piece: Piece<T>) -> Index {
        match self.vacant.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                piece.generation = slot.generation;
                *slot = piece;
                index
            }
            None => {
                // More pieces than indices would be more than 100 GiB of them.
                let index = Index::try_from(self.slots.len()).expect("fewer than 2^32 pieces");
                self.slots.push(piece);
                index
            }
        }
    }

    /// Cuts a piece: it keeps its first `len` bytes, the rest becomes a piece with `data`.
    pub(crate) fn split(&mut self, index: Index, len: u64, data: T) -> Index {
        let piece = &self[index];
        debug_assert!(0 < len && len < piece.len, "a piece of {} is cut at {len}", piece.len);
        let (start, rest, next) = (piece.start + len, piece.len - len, piece.next);
        let new = self.place(Piece { start, len: rest, prev: index, next, generation: 0, data });
        if next != NONE {
            self[next].prev = new;
        }
        let piece = &mut self[index];
        piece.len = len;
        piece.next = new;
        new
    }

    /// Lets a piece take over the one after it, which is gone then.
    pub(crate) fn merge_next(&mut self, index: Index) {
        let gone = self[index].next;
        let (len, next) = (self[gone].len, self[gone].next);
        if next != NONE {
            self[next].prev = index;
        }
        let piece = &mut self[index];
        piece.len += len;
        piece.next = next;
        self.vacate(gone);
    }

    /// Removes a piece that is a run of memory of its own.
    pub(crate) fn remove(&mut self, index: Index) {
        debug_assert!(self.is_alone(index), "a piece with neighbours is removed");
        self.vacate(index);
    }

    fn vacate(&mut self, index: Index) {
        let piece = &mut self[index];
        piece.generation = piece.generation.wrapping_add(1);
        piece.len = 0;
        self.vacant.push(index);
    }

    /// Whether the piece is all that there is of its run of memory.
    pub(crate) fn is_alone(&self, index: Index) -> bool {
        self[index].prev == NONE && self[index].next == NONE
    }

    /// The name under which the piece is handed out, until [`Pieces::retire`].
    pub(crate) fn block(&self, index: Index) -> BlockId {
        BlockId::new(index, self[index].generation)
    }

    /// The piece that was handed out as `block`.
    pub(crate) fn find(&self, block: BlockId) -> Result<Index> {
        let (index, generation) = block.parts();
        let piece = self.slots.get(index as usize);
        match piece.filter(|piece| piece.generation == generation && piece.len > 0) {
            Some(_) => Ok(index),
            None => Err(Error::NotLive { block }),
        }
    }

    /// Makes the name under which the piece was handed out void.
    pub(crate) fn retire(&mut self, index: Index) {
        let piece = &mut self[index];
        piece.generation = piece.generation.wrapping_add(1);
    }
}

impl<T> core::ops::Index<Index> for Pieces<T> {
    type Output = Piece<T>;

    fn index(&self, index: Index) -> &Piece<T> {
        &self.slots[index as usize]
    }
}

impl<T> core::ops::IndexMut<Index> for Pieces<T> {
    fn index_mut(&mut self, index: Index) -> &mut Piece<T> {
        &mut self.slots[index as usize]
    }
}
