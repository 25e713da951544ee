//! The allocator of device memory, over a host XPU: what kernels write stays, whoever frees and
//! allocates on whichever stream meanwhile, with no one waiting for a launch.

mod common;

use std::collections::BTreeSet;

use common::*;
use gmm::alloc::{AllocatorError, Cause, DeviceAllocator, DeviceMemory, OutOfMemory};
use gmm::{Error, Gmm, Kernel, Stream, Xpu};

const FRAMES: u64 = 16;
const CAPACITY_BYTES: u64 = 10 * PAGE as u64;

/// Long enough for a launch to be under way when the next calls are made.
const SPINS: u64 = 300_000;

/// An XPU with kernels and streams, and an allocator of a part of its memory.
struct Machine {
    gmm: Gmm,
    allocator: DeviceAllocator,
    streams: Vec<Stream>,
    fill: Kernel,
    multiply: Kernel,
    spin: Kernel,
}

/// An allocation whose words all have one value, once its stream has come so far.
struct Held {
    memory: DeviceMemory,
    own: usize,
    value: f32,
}

impl Machine {
    fn new(nr_streams: usize) -> Self {
        let gmm = machine(FRAMES);
        let xpu: Xpu = gmm.xpu(1).unwrap();
        Self {
            allocator: DeviceAllocator::new(&xpu, CAPACITY_BYTES).unwrap(),
            streams: (0..nr_streams).map(|_| xpu.stream().unwrap()).collect(),
            fill: kernel(&xpu, "fill"),
            multiply: kernel(&xpu, "multiply"),
            spin: kernel(&xpu, "spin"),
            gmm,
        }
    }

    /// Launches a kernel that does nothing for a while.
    fn delay(&self, stream: usize) {
        let args = (0_u64, SPINS, 0_u64);
        // SAFETY: it touches no memory.
        let _ = unsafe { self.streams[stream].launch_using(&self.spin, 1, args, &[]) }.unwrap();
    }

    /// Launches a fill, after a while.
    fn fill(&self, memory: &DeviceMemory, value: f32, stream: usize) {
        self.delay(stream);
        let args = (memory.as_mut_ptr(), memory.len_bytes() / 4, value);
        let pages = [memory.pages()];
        // SAFETY: the memory has room for it; who else uses it is what is tested.
        let _ = unsafe { self.streams[stream].launch_using(&self.fill, 1, args, &pages) }.unwrap();
    }

    fn allocate(&self, size_bytes: u64, own: usize, value: f32) -> gmm::Result<Held> {
        let memory = self.allocator.allocate(size_bytes, &self.streams[own])?;
        assert!(memory.len_bytes() >= size_bytes.max(1));
        self.fill(&memory, value, own);
        Ok(Held { memory, own, value })
    }

    /// Waits for what was launched on a stream.
    fn wait(&self, stream: usize) {
        // SAFETY: it touches no memory.
        let last =
            unsafe { self.streams[stream].launch_using(&self.spin, 1, (0_u64, 1_u64, 0_u64), &[]) };
        last.unwrap().wait().unwrap();
    }

    /// Sees that all of an allocation has its value.
    fn verify(&self, held: &Held) {
        self.wait(held.own);
        let mut copy = vec![0.0_f32; held.memory.len_bytes() as usize / 4];
        let (dst, src) = (copy.as_mut_ptr().cast(), held.memory.as_mut_ptr());
        // SAFETY: all launches on it have completed, and the vector is as long.
        unsafe { self.gmm.gmemcpy(dst, src, held.memory.len_bytes(), 0) }.unwrap();
        let wrong = copy.iter().filter(|word| **word != held.value).count();
        assert_eq!(wrong, 0, "of {} words, that should be {}", copy.len(), held.value);
    }

    /// What must hold at any time.
    fn check(&self, held: &[Held]) {
        let stats = self.allocator.stats();
        assert_eq!(stats.live_blocks, held.len() as u64);
        assert!(stats.reserved_bytes <= CAPACITY_BYTES, "{stats:?}");
        let mut ranges: Vec<_> = held
            .iter()
            .map(|held| (held.memory.as_mut_ptr().addr() as u64, held.memory.len_bytes()))
            .collect();
        ranges.sort_unstable();
        let overlap = ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        assert_eq!(overlap, None, "two allocations overlap");
        // Each page in use has one frame, on the XPU, and no frame is two pages'.
        let mut pages = BTreeSet::new();
        let mut frames = BTreeSet::new();
        for (start, len) in ranges {
            pages.extend(start / PAGE as u64..(start + len).div_ceil(PAGE as u64));
        }
        for &page in &pages {
            let at = std::ptr::without_provenance((page * PAGE as u64) as usize);
            let copies = self.gmm.inspect(at).unwrap().copies;
            assert_eq!(copies.len(), 1, "page {page:#x}: {copies:?}");
            assert_eq!(copies[0].node.0, 1);
            frames.insert(copies[0].nr.0);
        }
        assert_eq!(frames.len(), pages.len(), "a frame is two pages'");
    }

    fn pinned(&self) -> u32 {
        self.gmm.snapshot().nodes[1].pinned_frames
    }
}

/// Allocations and frees at random on `nr_streams` streams. Nothing is waited for but to look at
/// what is there.
fn run_at_random(nr_streams: usize, seed: u64, steps: usize) {
    let machine = Machine::new(nr_streams);
    let mut random = Random::new(seed);
    let mut held: Vec<Held> = Vec::new();
    let mut refused = 0;
    for step in 0..steps {
        let stream = random.below(nr_streams as u64) as usize;
        match random.below(8) {
            0..4 => {
                let size_bytes = match random.below(3) {
                    0 => random.below(4096),
                    1 => random.below(PAGE as u64),
                    _ => random.below(CAPACITY_BYTES / 2),
                };
                match machine.allocate(size_bytes, stream, step as f32) {
                    Ok(new) => held.push(new),
                    Err(Error::Allocator(AllocatorError::OutOfMemory(_))) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            4 if !held.is_empty() => {
                machine.verify(&held[random.below(held.len() as u64) as usize]);
            }
            5 if !held.is_empty() => {
                // Another stream works on it after the own one has, and frees it.
                let Held { memory, own, .. } =
                    held.swap_remove(random.below(held.len() as u64) as usize);
                machine.wait(own);
                memory.record_use(&machine.streams[stream]).unwrap();
                machine.fill(&memory, -1.0, stream);
                memory.free(&machine.streams[own]).unwrap();
            }
            6 if random.below(8) == 0 => {
                machine.allocator.trim().unwrap();
            }
            _ if !held.is_empty() => {
                let Held { memory, own, .. } =
                    held.swap_remove(random.below(held.len() as u64) as usize);
                machine.fill(&memory, -2.0, own);
                memory.free(&machine.streams[own]).unwrap();
            }
            _ => {}
        }
        machine.check(&held);
    }
    held.iter().for_each(|held| machine.verify(held));
    assert!(refused > 0, "memory never ran out: the test tests little");
    // Dropped, each is freed on its own stream. Then nothing is kept.
    drop(held);
    machine.allocator.trim().unwrap();
    let stats = machine.allocator.stats();
    assert_eq!((stats.live_bytes, stats.reserved_bytes, stats.segments), (0, 0, 0));
    assert_eq!(stats.frames_mapped, stats.frames_unmapped);
    assert_eq!(machine.pinned(), 0);
    let whole = machine.allocate(CAPACITY_BYTES, 0, 1.0).unwrap();
    machine.verify(&whole);
    drop(whole);
    let Machine { gmm, allocator, .. } = machine;
    drop(allocator);
    assert_eq!(gmm.regions().len(), 0, "addresses stay mapped");
    check(&gmm);
}

#[test]
fn nothing_mixes_on_one_stream() {
    let _turn = turn();
    run_at_random(1, 11, 150);
}

#[test]
fn nothing_mixes_on_three_streams() {
    let _turn = turn();
    for seed in [1, 2] {
        run_at_random(3, seed, 150);
    }
}

#[test]
fn memory_that_changes_streams_waits_for_the_launches_of_both() {
    let _turn = turn();
    let machine = Machine::new(3);
    for round in 0..20 {
        let first = machine.allocate(CAPACITY_BYTES, 0, 1.0).unwrap();
        machine.wait(0);
        // Streams 0 and 1 are still at work on it when stream 2 gets it.
        first.memory.record_use(&machine.streams[1]).unwrap();
        machine.delay(1);
        machine.fill(&first.memory, 2.0, 1);
        machine.delay(0);
        let args = (first.memory.as_mut_ptr(), first.memory.as_mut_ptr(), 0_u64);
        let pages = [first.memory.pages()];
        // SAFETY: it is of no numbers.
        let _ =
            unsafe { machine.streams[0].launch_using(&machine.multiply, 1, args, &pages) }.unwrap();
        let addr = first.memory.as_mut_ptr();
        first.memory.free(&machine.streams[0]).unwrap();
        let second = machine.allocate(CAPACITY_BYTES, 2, round as f32).unwrap();
        assert_eq!(second.memory.as_mut_ptr(), addr, "freed memory is handed out again");
        machine.verify(&second);
        second.memory.free(&machine.streams[2]).unwrap();
    }
    assert!(machine.allocator.stats().stream_orders > 0);
}

fn out_of_memory(result: gmm::Result<Held>) -> OutOfMemory {
    match result {
        Err(Error::Allocator(AllocatorError::OutOfMemory(why))) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("there was room"),
    }
}

#[test]
fn out_of_memory_says_how_much_is_left_beside_what_others_have_pinned() {
    let _turn = turn();
    let machine = Machine::new(1);
    let page = PAGE as u64;
    let half = machine.allocate(4 * page, 0, 1.0).unwrap();
    let why = out_of_memory(machine.allocate(7 * page, 0, 1.0));
    assert_eq!((why.cause, why.capacity_bytes), (Cause::Exhausted, CAPACITY_BYTES));
    assert_eq!((why.free_bytes, why.live_bytes), (6 * page, 4 * page));
    // Three quarters of the node may be pinned: 12 frames, of which 4 are left now.
    let others = machine.gmm.mmap::<u8>(4 * PAGE).unwrap();
    others.pin(1).unwrap();
    let why = out_of_memory(machine.allocate(5 * page, 0, 1.0));
    assert_eq!(
        (why.cause, why.capacity_bytes, why.free_bytes),
        (Cause::Exhausted, 8 * page, 4 * page)
    );
    others.unpin(1).unwrap();
    machine.verify(&machine.allocate(6 * page, 0, 3.0).unwrap());
    machine.verify(&half);
}

#[test]
fn a_dead_context_keeps_no_memory() {
    let _turn = turn();
    let machine = Machine::new(1);
    let xpu = machine.gmm.xpu(1).unwrap();
    let held = machine.allocate(CAPACITY_BYTES, 0, 1.0).unwrap();
    machine.verify(&held);
    let wild = kernel(&xpu, "wild");
    // SAFETY: it is caught.
    let wild = unsafe { machine.streams[0].launch_using(&wild, 1, (8_u64, 1_u64), &[]) }.unwrap();
    held.memory.free(&machine.streams[0]).unwrap();
    assert_eq!(machine.allocator.trim().unwrap(), CAPACITY_BYTES);
    wild.wait().unwrap_err();
    assert_eq!(machine.pinned(), 0);
}
