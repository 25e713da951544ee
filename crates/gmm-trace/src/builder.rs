//! Puts a recording together, event by event, and works out what was alive at its beginning.
//!
//! A recording that lost its beginning, as the ring buffers of snapshots do, mentions blocks whose
//! allocation it does not have. Whatever is freed without having been allocated was alive at the
//! beginning; so was whatever is in use at the end, by the segments, and mentioned by no event.

use std::collections::HashMap;
use std::collections::HashSet;

use crate::recording::{
    Block, BlockId, BlockState, Event, Gaps, OutOfMemory, Recording, Segment, SegmentChange,
    StreamUse,
};
use crate::sites::SiteId;

/// The largest block, in bytes; so sums over many fit in 128 bits. No device has as much memory.
pub const MAX_SIZE_BYTES: u64 = 1 << 48;

/// Devices are numbered below this.
pub const MAX_DEVICES: u32 = 1024;

/// How many blocks there may be: the top bit of a number says that a free is under way.
pub(crate) const MAX_BLOCKS: u32 = (1 << 31) - 1;

/// How many events there may be: they hold numbers of 32 bits. One may end a block beside its own.
const MAX_EVENTS: usize = u32::MAX as usize - 3;

/// Marks a block, in `known`, whose `FreeRequested` has been.
const REQUESTED: u32 = 1 << 31;
/// What `known` has where blocks were, but are no more.
const FREED: u32 = u32::MAX;

/// When and where an event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// In microseconds; 0 counts as none.
    pub time_us: Option<u64>,
    /// In the program.
    pub site: Option<SiteId>,
}

/// Makes a [`Recording`]. Blocks go by a key: their address, or an id in formats without.
///
/// What does not fit together is counted in [`Gaps`] and put right as it says there.
#[derive(Debug)]
pub struct RecordingBuilder {
    recording: Recording,
    /// The block at each key that was ever mentioned, with `REQUESTED`; or `FREED`.
    known: HashMap<u64, u32>,
    /// Those blocks that were alive at the beginning.
    at_start: Vec<BlockId>,
}

impl RecordingBuilder {
    /// For a device. `has_addresses` says that keys are addresses.
    ///
    /// # Panics
    ///
    /// If `device` is not below [`MAX_DEVICES`].
    pub fn new(device: u32, has_addresses: bool) -> Self {
        assert!(device < MAX_DEVICES, "device {device} is not below {MAX_DEVICES}");
        let recording = Recording {
            device,
            has_addresses,
            blocks: Vec::new(),
            nr_at_start: 0,
            events: Vec::new(),
            times_us: Vec::new(),
            sites: Vec::new(),
            changes: Vec::new(),
            uses: Vec::new(),
            out_of_memory: Vec::new(),
            segments: Vec::new(),
            gaps: Gaps::default(),
        };
        Self { recording, known: HashMap::new(), at_start: Vec::new() }
    }

    /// How many events there are.
    pub fn nr_events(&self) -> usize {
        self.recording.events.len()
    }

    /// Is there no number left for another event or block? No real program comes near.
    pub(crate) fn is_full(&self) -> bool {
        let Recording { blocks, events, .. } = &self.recording;
        blocks.len() >= MAX_BLOCKS as usize || events.len() >= MAX_EVENTS
    }

    /// The block at `key`, unless it is freed.
    pub fn live(&self, key: u64) -> Option<BlockId> {
        let known = *self.known.get(&key)?;
        (known != FREED).then_some(BlockId(known & !REQUESTED))
    }

    /// The stream that a block was allocated on.
    pub(crate) fn stream(&self, block: BlockId) -> u64 {
        self.recording.blocks[block.index()].stream
    }

    fn push(&mut self, event: Event, stamp: Stamp) {
        let recording = &mut self.recording;
        // What no event had so far is filled in when the first one has it.
        if let Some(time) = stamp.time_us {
            recording.times_us.resize(recording.events.len(), 0);
            recording.times_us.push(time);
        }
        if stamp.site.is_some() {
            recording.sites.resize(recording.events.len(), None);
            recording.sites.push(stamp.site);
        }
        recording.events.push(event);
    }

    fn add_block(&mut self, key: u64, block: Block) -> BlockId {
        assert!(!self.is_full(), "a recording of {MAX_BLOCKS} blocks or {MAX_EVENTS} events");
        assert!(block.size_bytes <= MAX_SIZE_BYTES, "a block of {} bytes", block.size_bytes);
        let id = BlockId(self.recording.blocks.len() as u32);
        let address = if self.recording.has_addresses { key } else { 0 };
        self.recording.blocks.push(Block { address, ..block });
        self.known.insert(key, id.0);
        id
    }

    /// A block is allocated. If one is alive at `key`, it was freed before.
    ///
    /// # Panics
    ///
    /// If the block is larger than [`MAX_SIZE_BYTES`], or has no number because there are 2^31. So
    /// do the other methods that make blocks known.
    pub fn allocate(&mut self, key: u64, size_bytes: u64, stream: u64, stamp: Stamp) -> BlockId {
        if self.live(key).is_some() {
            self.recording.gaps.allocated_over += 1;
            self.free(key, 0, stream, Stamp { site: None, ..stamp });
        }
        let block = Block { size_bytes, address: 0, stream, site: stamp.site };
        let id = self.add_block(key, block);
        self.push(Event::Allocate(id), stamp);
        id
    }

    /// A block was alive when the recording began. Readers need not call this for blocks that
    /// are freed, or in use in a segment at the end.
    pub fn alive_at_start(&mut self, key: u64, size_bytes: u64, stream: u64, site: Option<SiteId>) {
        if !self.known.contains_key(&key) {
            let block = Block { size_bytes, address: 0, stream, site };
            let id = self.add_block(key, block);
            self.at_start.push(id);
        }
    }

    /// The program gives up the block at `key`. If none is known it was alive at the beginning,
    /// and `size_bytes` and `stream` say what it was like.
    pub fn request_free(&mut self, key: u64, size_bytes: u64, stream: u64, stamp: Stamp) {
        self.alive_at_start(key, size_bytes, stream, None);
        let known = self.known.entry(key).or_insert(FREED);
        if *known & REQUESTED != 0 {
            self.recording.gaps.freed_again += 1;
            return;
        }
        let block = BlockId(*known);
        *known |= REQUESTED;
        self.push(Event::FreeRequested(block), stamp);
    }

    /// The block at `key` may be used for other things from now on.
    pub fn complete_free(&mut self, key: u64, size_bytes: u64, stream: u64, stamp: Stamp) {
        match self.known.get(&key) {
            Some(&FREED) => {
                self.recording.gaps.freed_again += 1;
                return;
            }
            Some(known) if known & REQUESTED != 0 => {}
            _ => self.request_free(key, size_bytes, stream, stamp),
        }
        let Some(known) = self.known.insert(key, FREED) else { return };
        self.push(Event::FreeCompleted(BlockId(known & !REQUESTED)), stamp);
    }

    /// [`request_free`](Self::request_free) and [`complete_free`](Self::complete_free) at once.
    pub fn free(&mut self, key: u64, size_bytes: u64, stream: u64, stamp: Stamp) {
        self.complete_free(key, size_bytes, stream, stamp);
    }

    /// A stream uses a block that was allocated on another.
    pub fn use_on_stream(&mut self, block: BlockId, stream: u64, stamp: Stamp) {
        let at = self.recording.uses.len() as u32;
        self.recording.uses.push(StreamUse { block, stream });
        self.push(Event::Use(at), stamp);
    }

    /// A segment changes; `event` makes the event of the change's number, such as
    /// [`Event::SegmentMap`].
    pub fn change_segment(&mut self, event: fn(u32) -> Event, change: SegmentChange, stamp: Stamp) {
        let at = self.recording.changes.len() as u32;
        self.recording.changes.push(change);
        self.push(event(at), stamp);
    }

    /// A request fails.
    pub fn run_out(&mut self, request: OutOfMemory, stamp: Stamp) {
        let at = self.recording.out_of_memory.len() as u32;
        self.recording.out_of_memory.push(request);
        self.push(Event::OutOfMemory(at), stamp);
    }

    /// Something happened that is not known.
    pub fn unknown_event(&mut self) {
        self.recording.gaps.unknown_events += 1;
    }

    /// The recording ends, with these segments.
    pub fn finish(mut self, segments: Vec<Segment>) -> Recording {
        if !segments.is_empty() {
            self.compare_with(&segments);
        }
        let Self { mut recording, known, at_start } = self;
        drop(known);
        put_first(&mut recording, at_start);
        if !recording.times_us.is_empty() {
            recording.times_us.resize(recording.events.len(), 0);
        }
        if !recording.sites.is_empty() {
            recording.sites.resize(recording.events.len(), None);
        }
        recording.segments = segments;
        recording
    }

    /// Finds the blocks that were alive all along, and what events and segments disagree on.
    fn compare_with(&mut self, segments: &[Segment]) {
        let mut in_use = HashSet::new();
        for segment in segments {
            for block in &segment.blocks {
                if block.state == BlockState::Inactive {
                    continue;
                }
                in_use.insert(block.address);
                match self.known.get(&block.address) {
                    Some(&FREED) => self.recording.gaps.alive_after_free += 1,
                    Some(_) => {}
                    None if self.is_full() => {}
                    None => {
                        let (size, stream) = (block.requested_bytes, segment.stream);
                        self.alive_at_start(block.address, size, stream, block.site);
                    }
                }
            }
        }
        let missing = self.known.iter().filter(|(address, known)| {
            **known != FREED && **known & REQUESTED == 0 && !in_use.contains(*address)
        });
        self.recording.gaps.missing_at_end = missing.count() as u64;
    }
}

/// Renumbers the blocks so that those in `at_start` come first, in address order.
fn put_first(recording: &mut Recording, mut at_start: Vec<BlockId>) {
    recording.nr_at_start = at_start.len();
    if recording.has_addresses {
        at_start.sort_by_key(|id| recording.blocks[id.index()].address);
    }
    if at_start.iter().enumerate().all(|(at, id)| at == id.index()) {
        return;
    }
    const OTHER: u32 = u32::MAX;
    let mut numbers = vec![OTHER; recording.blocks.len()];
    let mut blocks = Vec::with_capacity(recording.blocks.len());
    for id in at_start {
        numbers[id.index()] = blocks.len() as u32;
        blocks.push(recording.blocks[id.index()]);
    }
    for (number, block) in numbers.iter_mut().zip(&recording.blocks) {
        if *number == OTHER {
            *number = blocks.len() as u32;
            blocks.push(*block);
        }
    }
    recording.blocks = blocks;
    let renumber = |id: &mut BlockId| id.0 = numbers[id.index()];
    for event in &mut recording.events {
        if let Event::Allocate(id) | Event::FreeRequested(id) | Event::FreeCompleted(id) = event {
            renumber(id);
        }
    }
    recording.uses.iter_mut().for_each(|used| renumber(&mut used.block));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Stamp = Stamp { time_us: None, site: None };

    #[test]
    fn what_was_alive_at_the_start_comes_first_by_address() {
        let mut builder = RecordingBuilder::new(0, true);
        let used = builder.allocate(512, 10, 0, NONE);
        builder.use_on_stream(used, 7, NONE);
        builder.free(4096, 30, 0, NONE);
        builder.alive_at_start(1024, 20, 0, None);
        let recording = builder.finish(Vec::new());
        let blocks: Vec<_> = recording.blocks().iter().map(|b| (b.address, b.size_bytes)).collect();
        assert_eq!(blocks, [(1024, 20), (4096, 30), (512, 10)]);
        assert_eq!(recording.blocks_at_start().len(), 2);
        let [allocated, first, last] = [2, 1, 1].map(BlockId);
        let events = [
            Event::Allocate(allocated),
            Event::Use(0),
            Event::FreeRequested(first),
            Event::FreeCompleted(last),
        ];
        assert_eq!(recording.events(), events);
        assert_eq!(recording.uses()[0].block, allocated);
    }

    /// Times and sites are as long as the events, or not there at all.
    #[test]
    fn times_begin_when_the_first_event_has_one() {
        let mut builder = RecordingBuilder::new(0, false);
        builder.allocate(1, 10, 0, NONE);
        builder.allocate(2, 10, 0, Stamp { time_us: Some(5), site: None });
        builder.free(1, 10, 0, NONE);
        let recording = builder.finish(Vec::new());
        let times: Vec<_> = (0..4).map(|at| recording.time_us(at)).collect();
        assert_eq!(times, [None, Some(5), None, None]);
        assert_eq!(recording.times_us.len(), recording.events().len());
        assert!(recording.sites.is_empty());
    }

    #[test]
    #[should_panic(expected = "a block of 281474976710657 bytes")]
    fn a_block_that_no_device_can_have_is_refused() {
        RecordingBuilder::new(0, false).allocate(1, MAX_SIZE_BYTES + 1, 0, NONE);
    }

    #[test]
    #[should_panic(expected = "device 1024")]
    fn a_device_that_no_machine_has_is_refused() {
        RecordingBuilder::new(MAX_DEVICES, false);
    }
}
