//! A program run for real, on memory that exists: [`execute`].
//!
//! The stitching allocator hands out frames of a host XPU's node ([`gmm::alloc`]), the recording's
//! streams are streams of the XPU, and sizes are divided so that what lives fits. A kernel tags each
//! block when it is allocated; another, behind all that the block's stream was given, counts right
//! before it is freed how many words are still as they were written, and so does each other stream
//! that uses it. Nobody waits for these launches but where a stream must come after another's. What
//! they found is looked at in the end: a word that is missing is one that the memory manager or the
//! allocator lost, or gave to two.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gmm::alloc::{AllocatorError, DeviceAllocator, DeviceMemory};
use gmm::{
    Error, Gmm, HostXpu, Kernel, Launch, PAGE_SIZE, Stream, Unified, Xpu, display_bytes, probe,
};
use gmm_kernels::tags;

use super::executed::{Damage, Executed};
use super::player::Ending;
use super::program::{Operation, Program};
use super::scaled::Scale;
use crate::demo::host_xpu;

/// The node of the XPU: the only one.
const NODE: u8 = 1;
/// How many streams there are at most; the recording's further ones share them.
const MAX_STREAMS: usize = 8;
/// What the XPU has beyond what lives: so many percent, and so many frames, of which some are not the
/// allocator's, but for what the kernels find.
const SPARE_PERCENT: u64 = 5;
const SPARE_FRAMES: u64 = 8;
const RESULT_FRAMES: u64 = 2;
/// A launch has an item for each so many bytes, and so many at most: a host XPU has few cores.
const ITEM_BYTES: u64 = 4 << 20;
const MAX_ITEMS: u64 = 4;

/// Executes a program within that much live memory, telling `played` of each operation.
///
/// # Errors
/// If this can't be run here, so many blocks don't fit, or a launch fails. That memory runs out, or is
/// not as it should be, is a result.
pub(super) fn execute(
    program: &Program<'_>,
    memory_bytes: u64,
    mut played: impl FnMut(),
) -> Result<Executed> {
    let scale = Scale::fitting(program, memory_bytes)?;
    let available = [probe::memory_available_bytes(), probe::cgroup_memory_max_bytes()];
    check_room(scale, available.into_iter().flatten().min())?;
    let mut run = Run::new(program, scale).context("no XPU to execute it on")?;
    let begun = Instant::now();
    let ending = run.play(&mut played)?;
    run.check_live()?;
    run.wait()?;
    Ok(run.executed(ending, begun.elapsed()))
}

/// The memory of the XPU.
fn nr_frames(scale: Scale) -> u64 {
    let spare = scale.peak_live_bytes.div_ceil(100 / SPARE_PERCENT);
    (scale.peak_live_bytes + spare).div_ceil(PAGE_SIZE) + SPARE_FRAMES
}

/// Has this machine as much memory as the XPU shall have? What it lacks would end some process, later.
fn check_room(scale: Scale, available_bytes: Option<u64>) -> Result<()> {
    let memory_bytes = nr_frames(scale) * PAGE_SIZE;
    let Some(available) = available_bytes.filter(|available| *available < memory_bytes) else {
        return Ok(());
    };
    let (wanted, available) = (display_bytes(memory_bytes), display_bytes(available));
    bail!(
        "the XPU would have {wanted}, but only {available} of this machine's memory are available: \
         give less with --execute-memory"
    );
}

/// A program under way. What is first is dropped first: memory, then the allocator, which waits for
/// the streams; then nobody uses the counts.
struct Run<'p> {
    program: &'p Program<'p>,
    scale: Scale,
    /// By block; none where it is not alive.
    blocks: Vec<Option<DeviceMemory>>,
    allocator: DeviceAllocator,
    lanes: Vec<Lane>,
    /// Which lane a stream of the recording has.
    lane_of: HashMap<u64, usize>,
    tag_words: Kernel,
    count_tagged: Kernel,
    checks: Vec<Check>,
    /// How many words each check found right.
    counts: Unified<u64>,
    nr_played: usize,
    gmm: Gmm,
}

/// A stream, and what it was given last.
struct Lane {
    stream: Stream,
    last: Option<Launch>,
}

/// A look at a block that was launched.
#[derive(Clone, Copy)]
struct Check {
    block: u32,
    operation: usize,
    nr_words: u64,
}

impl<'p> Run<'p> {
    fn new(program: &'p Program<'p>, scale: Scale) -> Result<Self> {
        let nr_frames = nr_frames(scale);
        let device = HostXpu::with_memory(nr_frames * PAGE_SIZE);
        let gmm = Gmm::builder().xpu(device).build()?;
        let for_blocks = nr_frames - RESULT_FRAMES;
        gmm.set_pin_limit(NODE, u32::try_from(for_blocks)?)?;
        let xpu = gmm.xpu(NODE)?;
        let module = xpu.load(host_xpu::library())?;
        let (lane_of, lanes) = lanes(program, &xpu)?;
        // Each block is looked at once, at the end of its life, and at each use.
        let nr_blocks = program.recording.blocks().len();
        let most_checks = nr_blocks + program.recording.uses().len();
        Ok(Self {
            program,
            scale,
            blocks: (0..nr_blocks).map(|_| None).collect(),
            allocator: DeviceAllocator::new(&xpu, for_blocks * PAGE_SIZE)?,
            lanes,
            lane_of,
            tag_words: module.kernel("tag_words")?,
            count_tagged: module.kernel("count_tagged")?,
            checks: Vec::with_capacity(most_checks),
            counts: gmm.mmap_named(most_checks.max(1), "words that are right")?,
            nr_played: 0,
            gmm,
        })
    }

    /// Plays all operations that are left, or until one gets no memory.
    fn play(&mut self, played: &mut impl FnMut()) -> Result<Ending> {
        while let Some(&operation) = self.program.operations.get(self.nr_played) {
            match self.step(operation) {
                Ok(()) => {}
                Err(Error::Allocator(AllocatorError::OutOfMemory(why))) => {
                    return Ok(Ending::OutOfMemory { operation: self.nr_played + 1, why });
                }
                Err(error) => {
                    return Err(error).context(format!("operation {}", self.nr_played + 1));
                }
            }
            self.nr_played += 1;
            played();
        }
        Ok(Ending::Complete)
    }

    fn step(&mut self, operation: Operation) -> gmm::Result<()> {
        match operation {
            Operation::Allocate(block) => {
                let size_bytes = self.program.recording.blocks()[block as usize].size_bytes;
                let size_bytes = self.scale.size_bytes(size_bytes);
                let stream = &self.lanes[self.own_lane(block)].stream;
                let memory = self.allocator.allocate(size_bytes, stream)?;
                self.blocks[block as usize] = Some(memory);
                self.tag(block)
            }
            Operation::Free(block) => {
                let own = self.own_lane(block);
                self.check(block, own)?;
                match self.blocks[block as usize].take() {
                    Some(memory) => memory.free(&self.lanes[own].stream),
                    None => Ok(()),
                }
            }
            Operation::Use(at) => {
                let used = self.program.recording.uses()[at as usize];
                let block = used.block.index() as u32;
                let (own, user) = (self.own_lane(block), self.lane_of[&used.stream]);
                // The user comes after what filled it. The host XPU's streams can't wait for one
                // another, so the host does.
                self.lanes[own].wait()?;
                self.check(block, user)?;
                match &self.blocks[block as usize] {
                    Some(memory) => memory.record_use(&self.lanes[user].stream),
                    None => Ok(()),
                }
            }
            // Its program knows nothing of what would have become of it.
            Operation::Retry(_) => Ok(()),
        }
    }

    fn own_lane(&self, block: u32) -> usize {
        self.lane_of[&self.program.recording.blocks()[block as usize].stream]
    }

    /// Has a block's own stream write to it.
    fn tag(&mut self, block: u32) -> gmm::Result<()> {
        let own = self.own_lane(block);
        let Some(memory) = &self.blocks[block as usize] else { return Ok(()) };
        let (at, len_bytes) = (memory.as_mut_ptr(), memory.len_bytes());
        let (lane, args) = (&mut self.lanes[own], (at, len_bytes, tag_of(block)));
        // SAFETY: the block is this long, and lives; whoever had the memory before is done with it
        // at this point of the stream.
        let launch = unsafe { lane.stream.launch(&self.tag_words, nr_items(len_bytes), args)? };
        lane.last = Some(launch);
        Ok(())
    }

    /// Has a stream count which of a block's words are right.
    fn check(&mut self, block: u32, lane: usize) -> gmm::Result<()> {
        let Some(memory) = &self.blocks[block as usize] else { return Ok(()) };
        let (at, len_bytes) = (memory.as_mut_ptr(), memory.len_bytes());
        // By its address: a reference into what the XPU writes to would claim it.
        let (nr, nr_counts) = (self.checks.len(), self.counts.len_bytes() as usize / 8);
        assert!(nr < nr_counts, "a check more than blocks and uses");
        let count = self.counts.as_mut_ptr().wrapping_add(nr);
        let (lane, args) = (&mut self.lanes[lane], (at, len_bytes, tag_of(block), count));
        // SAFETY: the block is this long, and lives until after the launch: it is freed behind it. What
        // wrote to it has run before. Nobody else has this count; nobody reads it before `wait`.
        let launch = unsafe { lane.stream.launch(&self.count_tagged, nr_items(len_bytes), args)? };
        lane.last = Some(launch);
        let nr_words = tags::nr_tagged(len_bytes as usize);
        self.checks.push(Check { block, operation: self.nr_played + 1, nr_words });
        Ok(())
    }

    /// Looks at all that is alive.
    fn check_live(&mut self) -> gmm::Result<()> {
        (0..self.blocks.len() as u32).try_for_each(|block| self.check(block, self.own_lane(block)))
    }

    /// Waits for all launches.
    fn wait(&mut self) -> gmm::Result<()> {
        self.lanes.iter_mut().try_for_each(Lane::wait)
    }

    /// The result, when all launches have ended.
    fn executed(&self, ending: Ending, took: Duration) -> Executed {
        let damages = self.checks.iter().zip(self.counts.iter()).filter_map(|(check, right)| {
            let block = &self.program.recording.blocks()[check.block as usize];
            let wrong_words = check.nr_words.abs_diff(*right);
            (wrong_words > 0).then_some(Damage {
                block: check.block,
                size_bytes: self.scale.size_bytes(block.size_bytes),
                stream: block.stream,
                operation: check.operation,
                wrong_words,
                checked_words: check.nr_words,
            })
        });
        let stats = self.allocator.stats();
        let nodes = self.gmm.snapshot().nodes;
        let of_xpu = nodes.iter().find(|node| node.node.0 == NODE);
        let nr_frames = of_xpu.map_or(0, |node| u64::from(node.capacity_frames));
        Executed {
            scale: self.scale.divisor,
            peak_live_bytes: self.scale.peak_live_bytes,
            xpu_memory_bytes: nr_frames * PAGE_SIZE,
            operations: self.nr_played,
            seconds: took.as_secs_f64(),
            frames_mapped: stats.frames_mapped,
            frames_unmapped: stats.frames_unmapped,
            host_waits: stats.host_waits,
            stream_orders: stats.stream_orders,
            checked_words: self.checks.iter().map(|check| check.nr_words).sum(),
            wrong_words: damages.clone().map(|damage| damage.wrong_words).sum(),
            first_wrong: damages.clone().next(),
            out_of_memory_at: ending.out_of_memory_at(),
            out_of_memory: match ending {
                Ending::Complete => None,
                Ending::OutOfMemory { why, .. } => Some(why.into()),
            },
        }
    }
}

impl Lane {
    fn wait(&mut self) -> gmm::Result<()> {
        self.last.take().map_or(Ok(()), Launch::wait)
    }
}

/// Streams for those of the recording, and which has which: they take turns.
fn lanes(program: &Program<'_>, xpu: &Xpu) -> Result<(HashMap<u64, usize>, Vec<Lane>)> {
    let of_blocks = program.recording.blocks().iter().map(|block| block.stream);
    let of_uses = program.recording.uses().iter().map(|used| used.stream);
    let mut lane_of = HashMap::new();
    for stream in of_blocks.chain(of_uses) {
        let next = lane_of.len() % MAX_STREAMS;
        lane_of.entry(stream).or_insert(next);
    }
    let nr_lanes = lane_of.len().min(MAX_STREAMS);
    let lane = |_| Ok(Lane { stream: xpu.stream()?, last: None });
    Ok((lane_of, (0..nr_lanes).map(lane).collect::<Result<_>>()?))
}

/// What is written to a block: far from what is written to others, and never 0 at its start.
fn tag_of(block: u32) -> u64 {
    // 2^64 by the golden ratio, as in Knuth's multiplicative hashing.
    (u64::from(block) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn nr_items(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(ITEM_BYTES).clamp(1, MAX_ITEMS)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use gmm_trace::{Recording, RecordingBuilder, Stamp};

    use super::super::program::Failed;
    use super::*;

    const MEMORY_BYTES: u64 = 64 << 20;

    /// 60 blocks of up to 8 MiB on 11 streams, each used by a second one. Every other one is freed.
    fn recording() -> Recording {
        let mut builder = RecordingBuilder::new(0, false);
        for nr in 0..60_u64 {
            let size_bytes = nr * 7_654_321 % (8 << 20);
            let block = builder.allocate(nr, size_bytes, nr % 11, Stamp::default());
            builder.use_on_stream(block, (nr + 1) % 11, Stamp::default());
            if nr % 2 > 0 {
                builder.free(nr - 1, 0, 0, Stamp::default());
            }
        }
        builder.finish(Vec::new())
    }

    fn run<'p>(program: &'p Program<'_>) -> Run<'p> {
        let scale = Scale::fitting(program, MEMORY_BYTES).unwrap();
        assert!(scale.divisor > 1);
        Run::new(program, scale).unwrap()
    }

    /// Looks at what is there, and says what was found.
    fn ended(run: &mut Run<'_>) -> Executed {
        run.check_live().unwrap();
        run.wait().unwrap();
        run.executed(Ending::Complete, Duration::ZERO)
    }

    /// One test after another: a process has room for few spaces.
    fn turn() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let scale = Scale { divisor: 3, peak_live_bytes: 100 * PAGE_SIZE };
        // 105 frames and 8.
        check_room(scale, Some(113 * PAGE_SIZE)).unwrap();
        check_room(scale, None).unwrap();
        let error = check_room(scale, Some(113 * PAGE_SIZE - 1)).unwrap_err().to_string();
        assert!(error.contains("226.0 MiB") && error.contains("--execute-memory"), "{error}");
    }

    #[test]
    fn one_word_that_another_writes_is_found() {
        let _turn = turn();
        let recording = recording();
        let program = Program::new(&recording, Failed::LeftOut);
        let mut run = run(&program);
        assert_eq!(run.play(&mut || ()).unwrap(), Ending::Complete);
        let block = (0..60).rfind(|&nr| run.blocks[nr].is_some()).unwrap() as u32;
        let own = run.own_lane(block);
        let memory = run.blocks[block as usize].as_ref().unwrap();
        let stray = memory.as_mut_ptr().wrapping_add(4096);
        // SAFETY: it writes 8 bytes of a block of ours, between what else its stream does with it.
        let launch = unsafe {
            let stream = &run.lanes[own].stream;
            stream.launch(&run.tag_words, 1, (stray, 8_u64, 1_u64))
        };
        run.lanes[own].last = Some(launch.unwrap());
        let checked_words = tags::nr_tagged(memory.len_bytes() as usize);
        let executed = ended(&mut run);
        let found = executed.first_wrong.unwrap();
        assert_eq!(found.block, block);
        assert_eq!((found.wrong_words, found.checked_words), (1, checked_words));
        assert_eq!(found.operation, program.len() + 1);
        assert_eq!(executed.wrong_words, 1);
        let error = executed.intact().unwrap_err().to_string();
        assert!(error.contains(&format!("block {block} (")), "{error}");
    }

    #[test]
    fn what_was_not_looked_at_is_not_taken_for_right() {
        let _turn = turn();
        let recording = recording();
        let program = Program::new(&recording, Failed::LeftOut);
        let mut run = run(&program);
        assert_eq!(run.play(&mut || ()).unwrap(), Ending::Complete);
        ended(&mut run).intact().unwrap();
        run.counts[3] = 0;
        let Check { block, operation, nr_words } = run.checks[3];
        let executed = run.executed(Ending::Complete, Duration::ZERO);
        let found = executed.first_wrong.unwrap();
        assert_eq!((found.block, found.operation), (block, operation));
        assert_eq!((executed.wrong_words, found.wrong_words), (nr_words, nr_words));
    }

    #[test]
    fn memory_is_kept_until_a_second_stream_that_is_late_has_looked_at_it() {
        let _turn = turn();
        let mut builder = RecordingBuilder::new(0, false);
        // There is room for one of them.
        let block = builder.allocate(0, 48 << 20, 0, Stamp::default());
        builder.use_on_stream(block, 1, Stamp::default());
        builder.free(0, 0, 0, Stamp::default());
        builder.allocate(0, 48 << 20, 0, Stamp::default());
        let recording = builder.finish(Vec::new());
        let program = Program::new(&recording, Failed::LeftOut);
        let scale = Scale::fitting(&program, MEMORY_BYTES).unwrap();
        let mut run = Run::new(&program, scale).unwrap();
        let module = run.gmm.xpu(NODE).unwrap().load(host_xpu::library()).unwrap();
        let spin = module.kernel("spin").unwrap();
        // SAFETY: it touches no memory.
        let late = unsafe { run.lanes[1].stream.launch(&spin, 1, (0_u64, 3_000_000_u64, 0_u64)) };
        let _ = late.unwrap();
        assert_eq!(run.play(&mut || ()).unwrap(), Ending::Complete);
        ended(&mut run).intact().unwrap();
    }

    #[test]
    fn a_run_that_is_recorded_is_the_same_program() {
        let _turn = turn();
        let recording = recording();
        let program = Program::new(&recording, Failed::LeftOut);
        let mut run = run(&program);
        let path = std::env::temp_dir().join(format!("gmm-executed-{}.txt", std::process::id()));
        let guard = run.gmm.record_allocations(&path).unwrap();
        assert_eq!(run.play(&mut || ()).unwrap(), Ending::Complete);
        guard.finish().unwrap();
        ended(&mut run).intact().unwrap();
        let again = gmm_trace::read_file(&path, &mut |_| {}).unwrap();
        std::fs::remove_file(path).unwrap();
        let again = &again.recordings[0];
        // Stream 0 has the regions: the counts were there before.
        let sizes = again.blocks().iter().filter(|block| block.stream > 0);
        let sizes: Vec<_> = sizes.map(|block| block.size_bytes).collect();
        let blocks = recording.blocks().iter();
        let scaled: Vec<_> = blocks.map(|block| run.scale.size_bytes(block.size_bytes)).collect();
        assert_eq!(sizes, scaled);
        let counts_bytes = run.counts.pages().len_bytes();
        assert_eq!(again.peak_live_bytes(), run.scale.peak_live_bytes + counts_bytes);
        let replayed = Program::new(again, Failed::LeftOut);
        let nr_uses = recording.uses().len();
        assert_eq!(replayed.len(), program.len() - nr_uses + 1);
    }
}
