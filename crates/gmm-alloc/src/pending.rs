//! Blocks that were freed while other streams used them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::memory::Memory;
use crate::pieces::Index;
use crate::{Backend, Mark, Result, StreamId};

/// What waits for the work of streams, in the order of that work. A block may wait for several.
#[derive(Default)]
pub(crate) struct Pending {
    /// For each stream, the blocks that wait for it, and for which of its points.
    blocks: BTreeMap<StreamId, VecDeque<(Index, Mark)>>,
    /// For how many streams each block waits.
    nr_streams: HashMap<Index, usize>,
}

impl Pending {
    /// Lets a block wait for what `streams`, each named once, have been given so far.
    pub(crate) fn push<B: Backend>(
        &mut self,
        memory: &mut Memory<B>,
        index: Index,
        streams: &[StreamId],
    ) {
        for &stream in streams {
            let mark = memory.mark(stream);
            self.blocks.entry(stream).or_default().push_back((index, mark));
        }
        self.nr_streams.insert(index, streams.len());
    }

    /// Takes out the blocks whose work has ended. Streams are asked in the order of their work,
    /// each until one says no.
    pub(crate) fn take_reached<B: Backend>(&mut self, memory: &mut Memory<B>) -> Vec<Index> {
        let mut taken = Vec::new();
        for (&stream, blocks) in &mut self.blocks {
            while let Some(&(index, mark)) = blocks.front()
                && memory.reached(stream, mark)
            {
                blocks.pop_front();
                taken.extend(ended(&mut self.nr_streams, index));
            }
        }
        self.blocks.retain(|_, blocks| !blocks.is_empty());
        taken
    }

    /// Waits for all work and appends the blocks to `taken`; up to the first failure.
    pub(crate) fn wait<B: Backend>(
        &mut self,
        memory: &mut Memory<B>,
        taken: &mut Vec<Index>,
    ) -> Result<()> {
        for (&stream, blocks) in &mut self.blocks {
            while let Some(&(index, mark)) = blocks.front() {
                if !memory.reached(stream, mark) {
                    memory.wait(stream, mark)?;
                }
                blocks.pop_front();
                taken.extend(ended(&mut self.nr_streams, index));
            }
        }
        self.blocks.clear();
        Ok(())
    }
}

/// A block waits for one stream less; the block, if that was the last.
fn ended(nr_streams: &mut HashMap<Index, usize>, index: Index) -> Option<Index> {
    let left = nr_streams.get_mut(&index)?;
    *left -= 1;
    if *left > 0 {
        return None;
    }
    nr_streams.remove(&index);
    Some(index)
}
