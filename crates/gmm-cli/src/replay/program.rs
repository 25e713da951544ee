//! What a recording asks an allocator for: operations in order, without what the allocator of that
//! time made of them.

use gmm_trace::{Event, Recording};

/// One call. Numbers are places in the recording's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// The block is allocated.
    Allocate(u32),
    /// Its memory may be used for other things: the end of its life.
    Free(u32),
    /// A stream other than its own uses a block.
    Use(u32),
    /// A request that failed when it was recorded, tried again: allocated, and freed at once, since
    /// the recording can't say how long it would have lived.
    Retry(u32),
}

/// What to do with the requests that failed in the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// They never got memory: leave them out.
    LeftOut,
    /// Would they have got it?
    Retried,
}

/// The operations of one device. Those of blocks that were alive when the recording began come
/// first. They are counted from 1: in an event list, by line.
pub(super) struct Program<'r> {
    pub(super) recording: &'r Recording,
    pub(super) operations: Vec<Operation>,
    /// How many operations come before each request that failed.
    pub(super) before_failures: Vec<usize>,
}

impl<'r> Program<'r> {
    pub(super) fn new(recording: &'r Recording, failed: Failed) -> Self {
        let at_start = recording.blocks_at_start().len() as u32;
        let mut operations: Vec<_> = (0..at_start).map(Operation::Allocate).collect();
        let mut before_failures = Vec::new();
        for event in recording.events() {
            operations.extend(match *event {
                Event::Allocate(block) => Some(Operation::Allocate(block.index() as u32)),
                // Other streams are done with it only now; a replay can't know when that was but
                // from this.
                Event::FreeCompleted(block) => Some(Operation::Free(block.index() as u32)),
                Event::Use(at) => Some(Operation::Use(at)),
                Event::OutOfMemory(at) => {
                    before_failures.push(operations.len());
                    (failed == Failed::Retried).then_some(Operation::Retry(at))
                }
                _ => None,
            });
        }
        Self { recording, operations, before_failures }
    }

    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    /// The largest sum of the sizes that are asked for at once, failed requests included if they are
    /// retried.
    pub(super) fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes_by(|size_bytes| size_bytes)
    }

    /// The same if something else than its size is asked for a block.
    pub(super) fn peak_live_bytes_by(&self, scaled: impl Fn(u64) -> u64) -> u64 {
        let size = |block: u32| scaled(self.recording.blocks()[block as usize].size_bytes);
        let (mut live, mut peak) = (0_u64, 0);
        for operation in &self.operations {
            let mut briefly = 0;
            match *operation {
                Operation::Allocate(block) => live = live.saturating_add(size(block)),
                Operation::Free(block) => live = live.saturating_sub(size(block)),
                Operation::Retry(at) => {
                    briefly = scaled(self.recording.out_of_memory()[at as usize].size_bytes);
                }
                Operation::Use(_) => {}
            }
            peak = peak.max(live.saturating_add(briefly));
        }
        peak
    }

    /// The blocks that are alive before the operation that is the so many-th, from 0 on.
    pub(super) fn alive_before(&self, nr: usize) -> Vec<u32> {
        let mut alive = vec![false; self.recording.blocks().len()];
        for operation in &self.operations[..nr.min(self.operations.len())] {
            match *operation {
                Operation::Allocate(block) => alive[block as usize] = true,
                Operation::Free(block) => alive[block as usize] = false,
                Operation::Use(_) | Operation::Retry(_) => {}
            }
        }
        (0..).zip(alive).filter_map(|(block, alive)| alive.then_some(block)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gmm_trace::{OutOfMemory, RecordingBuilder, Stamp};

    use super::*;

    const NONE: Stamp = Stamp { time_us: None, site: None };

    #[test]
    fn operations_begin_with_what_was_alive() {
        let mut builder = RecordingBuilder::new(0, true);
        let first = builder.allocate(4096, 100, 0, NONE);
        builder.use_on_stream(first, 3, NONE);
        builder.run_out(OutOfMemory { size_bytes: 9, device_free_bytes: None, stream: 0 }, NONE);
        builder.free(8192, 50, 0, NONE);
        let recording = builder.finish(Vec::new());
        use Operation::{Allocate, Free, Retry, Use};
        let program = Program::new(&recording, Failed::Retried);
        assert_eq!(program.operations, [Allocate(0), Allocate(1), Use(0), Retry(0), Free(0)]);
        assert_eq!(program.alive_before(2), [0, 1]);
        assert_eq!(program.peak_live_bytes(), 150 + 9);
        assert_eq!(program.alive_before(5), [1]);
        let program = Program::new(&recording, Failed::LeftOut);
        assert_eq!(program.peak_live_bytes(), recording.peak_live_bytes());
        assert_eq!(program.operations, [Allocate(0), Allocate(1), Use(0), Free(0)]);
        assert_eq!(program.before_failures, [3]);
    }
}
