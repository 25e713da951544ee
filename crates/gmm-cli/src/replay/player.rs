//! Plays a program on an allocator, operation by operation.

use gmm_alloc::{Allocation, Allocator, Error, OutOfMemory, Stats, StreamId};
use gmm_trace::Block;

use super::program::{Operation, Program};

/// How a replay ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// All operations ran.
    Complete,
    /// An operation, counted from 1, got no memory.
    OutOfMemory { operation: usize, why: OutOfMemory },
}

impl Ending {
    pub(super) fn out_of_memory_at(&self) -> Option<usize> {
        match self {
            Self::Complete => None,
            Self::OutOfMemory { operation, .. } => Some(*operation),
        }
    }
}

/// A program under way.
pub(super) struct Player<'p> {
    program: &'p Program<'p>,
    allocator: Box<dyn Allocator>,
    /// By block; none where it is not alive.
    allocations: Vec<Option<Allocation>>,
    nr_played: usize,
}

impl<'p> Player<'p> {
    pub(super) fn new(program: &'p Program<'p>, allocator: Box<dyn Allocator>) -> Self {
        let allocations = vec![None; program.recording.blocks().len()];
        Self { program, allocator, allocations, nr_played: 0 }
    }

    /// The operation that comes next, and its number from 0.
    pub(super) fn next(&self) -> Option<(usize, Operation)> {
        self.program.operations.get(self.nr_played).map(|next| (self.nr_played, *next))
    }

    /// Plays one operation; false if there is none left.
    pub(super) fn step(&mut self) -> Result<bool, Error> {
        let Some((_, next)) = self.next() else { return Ok(false) };
        match next {
            Operation::Allocate(block) => {
                let Block { size_bytes, stream, .. } = *self.block(block);
                let allocation = self.allocator.allocate(size_bytes, StreamId(stream))?;
                self.allocations[block as usize] = Some(allocation);
            }
            Operation::Free(block) => {
                let stream = StreamId(self.block(block).stream);
                if let Some(allocation) = self.allocations[block as usize].take() {
                    self.allocator.free(allocation.block, stream)?;
                }
            }
            Operation::Use(at) => {
                let used = self.program.recording.uses()[at as usize];
                if let Some(allocation) = self.allocations[used.block.index()] {
                    self.allocator.record_use(allocation.block, StreamId(used.stream))?;
                }
            }
            Operation::Retry(at) => {
                let request = self.program.recording.out_of_memory()[at as usize];
                let stream = StreamId(request.stream);
                let allocation = self.allocator.allocate(request.size_bytes, stream)?;
                self.allocator.free(allocation.block, stream)?;
            }
        }
        self.nr_played += 1;
        Ok(true)
    }

    /// Plays all that is left, telling `watch` after each operation. An error is anything but a lack
    /// of memory.
    pub(super) fn run(&mut self, watch: impl FnMut(&Self)) -> Result<Ending, Error> {
        self.run_until(usize::MAX, watch)
    }

    /// The same, up to so many operations in all.
    pub(super) fn run_until(
        &mut self,
        nr_operations: usize,
        mut watch: impl FnMut(&Self),
    ) -> Result<Ending, Error> {
        loop {
            if self.nr_played >= nr_operations {
                return Ok(Ending::Complete);
            }
            match self.step() {
                Ok(true) => watch(self),
                Ok(false) => return Ok(Ending::Complete),
                Err(Error::OutOfMemory(why)) => {
                    return Ok(Ending::OutOfMemory { operation: self.nr_played + 1, why });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// How many operations have been played.
    pub(super) fn nr_played(&self) -> usize {
        self.nr_played
    }

    pub(super) fn stats(&self) -> Stats {
        self.allocator.stats()
    }

    /// Where the blocks that are alive lie.
    pub(super) fn alive(&self) -> impl Iterator<Item = (u32, Allocation)> + '_ {
        (0..).zip(&self.allocations).filter_map(|(block, at)| at.map(|at| (block, at)))
    }

    /// Where one block lies, if it is alive.
    pub(super) fn allocation(&self, block: u32) -> Option<Allocation> {
        self.allocations[block as usize]
    }

    fn block(&self, block: u32) -> &'p Block {
        &self.program.recording.blocks()[block as usize]
    }
}
