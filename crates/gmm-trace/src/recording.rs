//! What happened to the memory of one device.

use crate::sites::SiteId;

/// A block: its number in [`Recording::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub(crate) u32);

impl BlockId {
    /// Its place in [`Recording::blocks`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Memory that a program asked for, once, and had until it freed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// What was asked for, in bytes.
    pub size_bytes: u64,
    /// Where it lay. 0 if the recording has no addresses.
    pub address: u64,
    /// The stream it was allocated on, as the recording calls it (0 is the default stream).
    pub stream: u64,
    /// Where in the program it was allocated, if that was recorded.
    pub site: Option<SiteId>,
}

/// Something that happened. Numbers are places in the recording's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was allocated.
    Allocate(BlockId),
    /// The program gave a block up. Streams may still be using it.
    FreeRequested(BlockId),
    /// A block that was given up may be used for other things. `FreeRequested` comes before.
    FreeCompleted(BlockId),
    /// A stream other than its own uses a block: a place in [`Recording::uses`].
    Use(u32),
    /// A segment was taken from the device: a place in [`Recording::segment_changes`].
    SegmentAlloc(u32),
    /// A segment was given back.
    SegmentFree(u32),
    /// Memory was mapped at the end or in a hole of an expandable segment.
    SegmentMap(u32),
    /// Memory of an expandable segment was unmapped.
    SegmentUnmap(u32),
    /// A request failed: a place in [`Recording::out_of_memory`].
    OutOfMemory(u32),
}

/// A range that became, or ceased to be, memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentChange {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The stream whose requests it serves.
    pub stream: u64,
}

/// A stream's use of a block of another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamUse {
    /// The block.
    pub block: BlockId,
    /// The stream that uses it.
    pub stream: u64,
}

/// A request that could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for, in bytes.
    pub size_bytes: u64,
    /// What the device said was free, in bytes, if that was recorded.
    pub device_free_bytes: Option<u64>,
    /// On which stream.
    pub stream: u64,
}

/// Memory that an allocator held when the recording ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub address: u64,
    /// What the allocator held of it, in bytes: its share of reserved memory.
    pub size_bytes: u64,
    /// The stream whose requests it serves.
    pub stream: u64,
    /// Of which of PyTorch's pools it is.
    pub kind: SegmentKind,
    /// The pool it belongs to; (0, 0) is the common one, others belong to CUDA graphs.
    pub pool: (u64, u64),
    /// It grows and shrinks by pages.
    pub is_expandable: bool,
    /// Where in the program it was allocated.
    pub site: Option<SiteId>,
    /// What lies in it, in address order as recorded.
    pub blocks: Vec<SegmentBlock>,
}

/// PyTorch's two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// For requests of up to 1 MiB.
    Small,
    /// For larger ones.
    Large,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBlock {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// What was asked for, in bytes.
    pub requested_bytes: u64,
    /// Is it used?
    pub state: BlockState,
    /// Where in the program it was allocated.
    pub site: Option<SiteId>,
}

/// Is a part of a segment used?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// By the program.
    Active,
    /// The program gave it up; a stream may still use it.
    AwaitingFree,
    /// It is free.
    Inactive,
}

/// What of a recording does not fit together: a sign that it lost something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Allocations at an address where a block was alive. That block was taken for freed.
    pub allocated_over: u64,
    /// Frees of what had been freed. They were left out.
    pub freed_again: u64,
    /// Blocks in use at the end, by the segments, but freed, by the events. They were left out.
    pub alive_after_free: u64,
    /// Blocks in use at the end, by the events, but not by the segments. They were kept.
    pub missing_at_end: u64,
    /// Events of kinds that are not known. They were left out.
    pub unknown_events: u64,
}

impl Gaps {
    /// All of them together.
    pub fn total(self) -> u64 {
        let Self { allocated_over, freed_again, alive_after_free, missing_at_end, unknown_events } =
            self;
        allocated_over + freed_again + alive_after_free + missing_at_end + unknown_events
    }
}

/// What happened to the memory of one device, in order.
///
/// # Invariants
///
/// - The blocks that were alive at the beginning come first, in address order; then the others in
///   the order in which they were allocated, each of which has one `Allocate`.
/// - A block has at most one `FreeRequested` and one `FreeCompleted`, in this order, after its
///   `Allocate`. One that lacks them was alive at the end.
/// - Where there are addresses, no two blocks lie at the same one at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    pub(crate) device: u32,
    pub(crate) has_addresses: bool,
    pub(crate) blocks: Vec<Block>,
    pub(crate) nr_at_start: usize,
    pub(crate) events: Vec<Event>,
    /// Empty if no event has one, else as long as `events`; 0 is none.
    pub(crate) times_us: Vec<u64>,
    /// Empty if no event has one, else as long as `events`.
    pub(crate) sites: Vec<Option<SiteId>>,
    pub(crate) changes: Vec<SegmentChange>,
    pub(crate) uses: Vec<StreamUse>,
    pub(crate) out_of_memory: Vec<OutOfMemory>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) gaps: Gaps,
}

impl Recording {
    /// The device's number.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Do blocks have addresses?
    pub fn has_addresses(&self) -> bool {
        self.has_addresses
    }

    /// All blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// One block.
    ///
    /// # Panics
    ///
    /// If it is one of another recording, which has more.
    pub fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.index()]
    }

    /// The blocks that were alive at the beginning.
    pub fn blocks_at_start(&self) -> &[Block] {
        &self.blocks[..self.nr_at_start]
    }

    /// What happened, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// When the event happened, in microseconds of the recording's clock.
    pub fn time_us(&self, event: usize) -> Option<u64> {
        self.times_us.get(event).copied().filter(|&time| time != 0)
    }

    /// Where in the program the event happened.
    pub fn site(&self, event: usize) -> Option<SiteId> {
        self.sites.get(event).copied().flatten()
    }

    /// The ranges of the `Segment...` events.
    pub fn segment_changes(&self) -> &[SegmentChange] {
        &self.changes
    }

    /// The uses of the `Use` events.
    pub fn uses(&self) -> &[StreamUse] {
        &self.uses
    }

    /// The failures of the `OutOfMemory` events.
    pub fn out_of_memory(&self) -> &[OutOfMemory] {
        &self.out_of_memory
    }

    /// The segments at the end. Empty if the format has none.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Is nothing known of the device?
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.segments.is_empty() && self.gaps == Gaps::default()
    }

    /// What does not fit together.
    pub fn gaps(&self) -> Gaps {
        self.gaps
    }

    /// What the allocator held at the end, in bytes. 0 if the format has no segments.
    pub fn reserved_at_end_bytes(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.size_bytes))
    }

    /// What the allocator held at the beginning, in bytes: what it held at the end, without what
    /// was taken since, with what was given back. None if that is less than nothing: segments
    /// and events are not of the same run.
    pub fn reserved_at_start_bytes(&self) -> Option<u64> {
        let mut reserved = i128::from(self.reserved_at_end_bytes());
        for event in &self.events {
            reserved -= self.reserved_change_bytes(*event);
        }
        u64::try_from(reserved).ok()
    }

    /// By how much an event changes what the allocator holds, in bytes.
    pub fn reserved_change_bytes(&self, event: Event) -> i128 {
        let size = |change: u32| i128::from(self.changes[change as usize].size_bytes);
        match event {
            Event::SegmentAlloc(change) | Event::SegmentMap(change) => size(change),
            Event::SegmentFree(change) | Event::SegmentUnmap(change) => -size(change),
            _ => 0,
        }
    }

    /// The most that was alive at once, in bytes as they were asked for. A block is alive until
    /// its `FreeCompleted`.
    pub fn peak_live_bytes(&self) -> u64 {
        let size = |block: BlockId| u128::from(self.block(block).size_bytes);
        let mut live: u128 = self.blocks_at_start().iter().map(|b| u128::from(b.size_bytes)).sum();
        let mut peak = live;
        for event in &self.events {
            match event {
                Event::Allocate(block) => live += size(*block),
                Event::FreeCompleted(block) => live -= size(*block),
                _ => {}
            }
            peak = peak.max(live);
        }
        u64::try_from(peak).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_the_memory_bound_counts_them() {
        assert_eq!(size_of::<Event>(), 8);
        assert_eq!(size_of::<Block>(), 32);
    }
}
