//! A replay as a recording, with the addresses that its allocator gave out: for `--export`.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use gmm_alloc::Error;
use gmm_trace::{
    BlockState, Event, OutOfMemory, Recording, RecordingBuilder, Segment, SegmentBlock,
    SegmentChange, SegmentKind, Stamp,
};

use super::allocators::Recipe;
use super::player::Player;
use super::program::{Operation, Program};
use super::watched::{Change, Watch};

/// The largest segment of PyTorch's small pools. Other allocators have none; it is what PyTorch's
/// own tools go by.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// Replays a program, and records that. It ends where memory runs out.
pub(super) fn record(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    capacity_bytes: u64,
) -> Result<Recording> {
    let watch = Watch::default();
    let mut player = Player::new(program, recipe.make(capacity_bytes, Some(watch.clone())));
    let mut recorder = Recorder {
        builder: RecordingBuilder::new(program.recording.device(), true),
        streams: BTreeMap::new(),
    };
    let blocks = program.recording.blocks();
    while let Some((_, operation)) = player.next() {
        // Where it lay is forgotten when it is freed.
        if let Operation::Free(block) = operation
            && let Some(at) = player.allocation(block)
        {
            let block = blocks[block as usize];
            recorder.builder.free(at.addr.0, block.size_bytes, block.stream, Stamp::default());
        }
        let (size_bytes, stream) = asked(program, operation);
        let played = player.step();
        recorder.changes(watch.take_changes(), stream);
        match (played, operation) {
            (Ok(_), Operation::Allocate(number)) => {
                if let Some(at) = player.allocation(number) {
                    let stamp = Stamp { time_us: None, site: blocks[number as usize].site };
                    recorder.builder.allocate(at.addr.0, size_bytes, stream, stamp);
                }
            }
            (Ok(_), _) => {}
            (Err(Error::OutOfMemory(why)), _) => {
                let free = why.capacity_bytes.saturating_sub(why.reserved_bytes);
                let request = OutOfMemory { size_bytes, device_free_bytes: Some(free), stream };
                recorder.builder.run_out(request, Stamp::default());
                break;
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    let segments = segments(program, &player, &watch, &recorder.streams);
    Ok(recorder.builder.finish(segments))
}

/// The size and the stream that an operation is about.
fn asked(program: &Program<'_>, operation: Operation) -> (u64, u64) {
    let recording = program.recording;
    match operation {
        Operation::Allocate(block) | Operation::Free(block) => {
            let block = recording.blocks()[block as usize];
            (block.size_bytes, block.stream)
        }
        Operation::Use(at) => (0, recording.uses()[at as usize].stream),
        Operation::Retry(at) => {
            let request = recording.out_of_memory()[at as usize];
            (request.size_bytes, request.stream)
        }
    }
}

struct Recorder {
    builder: RecordingBuilder,
    /// The stream for which memory was mapped last, by its first byte.
    streams: BTreeMap<u64, u64>,
}

impl Recorder {
    fn changes(&mut self, changes: Vec<Change>, stream: u64) {
        for Change { bytes, is_mapped, is_whole } in changes {
            let event = match (is_mapped, is_whole) {
                (true, true) => Event::SegmentAlloc,
                (true, false) => Event::SegmentMap,
                (false, true) => Event::SegmentFree,
                (false, false) => Event::SegmentUnmap,
            };
            if is_mapped {
                self.streams.insert(bytes.start, stream);
            }
            let size_bytes = bytes.end - bytes.start;
            let change = SegmentChange { address: bytes.start, size_bytes, stream };
            self.builder.change_segment(event, change, Stamp::default());
        }
    }
}

/// What is mapped at the end, and what lies there.
fn segments(
    program: &Program<'_>,
    player: &Player<'_>,
    watch: &Watch,
    streams: &BTreeMap<u64, u64>,
) -> Vec<Segment> {
    let mut alive: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    for (block, at) in player.alive() {
        alive.insert(at.addr.0, (at.usable_bytes, block));
    }
    let mut segments = Vec::new();
    for parts in watch.segments() {
        let is_expandable = !parts.is_whole;
        for part in parts.mapped {
            let stream = streams.range(..=part.start).next_back().map_or(0, |(_, &stream)| stream);
            let size_bytes = part.end - part.start;
            let kind = if size_bytes > SMALL_SEGMENT_BYTES {
                SegmentKind::Large
            } else {
                SegmentKind::Small
            };
            segments.push(Segment {
                address: part.start,
                size_bytes,
                stream,
                kind,
                pool: (0, 0),
                is_expandable,
                site: None,
                blocks: blocks(program, part, &alive),
            });
        }
    }
    segments
}

/// What lies in a part of a segment, with the free memory between.
fn blocks(
    program: &Program<'_>,
    part: Range<u64>,
    alive: &BTreeMap<u64, (u64, u32)>,
) -> Vec<SegmentBlock> {
    let mut blocks = Vec::new();
    let free = |address: u64, end: u64| SegmentBlock {
        address,
        size_bytes: end - address,
        requested_bytes: 0,
        state: BlockState::Inactive,
        site: None,
    };
    let mut at = part.start;
    for (&address, &(size_bytes, block)) in alive.range(part.clone()) {
        if at < address {
            blocks.push(free(at, address));
        }
        let block = program.recording.blocks()[block as usize];
        blocks.push(SegmentBlock {
            address,
            size_bytes,
            requested_bytes: block.size_bytes,
            state: BlockState::Active,
            site: block.site,
        });
        at = address + size_bytes;
    }
    if at < part.end {
        blocks.push(free(at, part.end));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::allocators::ALLOCATORS;
    use super::super::program::Failed;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What a replay of the exported recording is asked for is what the first one was asked for.
    #[test]
    fn an_exported_replay_is_the_same_program_at_other_addresses() {
        let mut builder = RecordingBuilder::new(3, false);
        for id in 0..20 {
            builder.allocate(id, (id + 1) * MIB, id % 2, Stamp::default());
            if id % 3 == 2 {
                builder.free(id - 1, 0, 0, Stamp::default());
            }
        }
        let original = builder.finish(Vec::new());
        let program = Program::new(&original, Failed::LeftOut);
        for entry in &ALLOCATORS {
            let recording = record(&program, Recipe::Named(entry), 1 << 40).unwrap();
            assert_eq!(recording.device(), 3);
            assert!(recording.has_addresses());
            let again = Program::new(&recording, Failed::LeftOut);
            assert_eq!(again.operations, program.operations, "{}", entry.name);
            assert_eq!(recording.peak_live_bytes(), original.peak_live_bytes());
            assert_eq!(recording.gaps(), gmm_trace::Gaps::default(), "{}", entry.name);
            // The segments are those that the events leave.
            assert_eq!(recording.reserved_at_start_bytes(), Some(0), "{}", entry.name);
            let in_blocks = recording.segments().iter().flat_map(|segment| &segment.blocks);
            let sum: u64 = in_blocks.map(|block| block.size_bytes).sum();
            assert_eq!(sum, recording.reserved_at_end_bytes(), "{}", entry.name);
        }
    }

    #[test]
    fn where_memory_runs_out_the_export_ends() {
        let mut builder = RecordingBuilder::new(0, false);
        for id in 0..4 {
            builder.allocate(id, 30 * MIB, 0, Stamp::default());
        }
        let original = builder.finish(Vec::new());
        let program = Program::new(&original, Failed::LeftOut);
        let recording = record(&program, Recipe::Named(&ALLOCATORS[0]), 100 * MIB).unwrap();
        let failed =
            OutOfMemory { size_bytes: 30 * MIB, device_free_bytes: Some(10 * MIB), stream: 0 };
        assert_eq!(recording.out_of_memory(), [failed]);
        assert_eq!(recording.blocks().len(), 3);
    }
}
