//! Everything at once for a while: many regions, threads and XPU cores, four times as much data as
//! the XPUs have memory, hints in between. Every byte is checked; memory, file descriptors and
//! processes do not grow; how long the longest operation took is said, and in the long form
//! (`cargo xtask soak`) may not be a second.
//!
//! `GMM_SOAK_SECONDS` and `GMM_SOAK_CYCLES` say how long and how often.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use gmm::{Advice, Gmm, Launch, Stream, Xpu};

const NR_REGIONS: usize = 1000;
const NR_XPUS: usize = 4;
const CORES_EACH: usize = 16;
const NR_THREADS: usize = 32;
/// In frames: with the others a fourth of all pages.
const FRAMES_EACH: u64 = 62;
/// Where in each page threads and cores count, beyond what is written once.
const SLOTS: usize = PAGE - SMALL;
/// The longest that any operation may take, in the long form.
const MAX_STALL: Duration = Duration::from_secs(1);
/// What the processes may use more at the end than after the first quarter of the time.
const MAX_GROWTH_KIB: u64 = 96 << 10;

fn number(key: &str) -> Option<u64> {
    std::env::var(key).ok().map(|n| n.parse().unwrap_or_else(|_| panic!("{key} is a number")))
}

/// What one thread counted, in each region.
struct Counts(Vec<u32>);

/// What all share.
struct Soak {
    gmm: Gmm,
    regions: Vec<Memory>,
    stop: AtomicBool,
    operations: AtomicU64,
    longest: Mutex<(Duration, &'static str)>,
}

impl Soak {
    fn timed<T>(&self, name: &'static str, what: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = what();
        let took = begun.elapsed();
        let mut longest = self.longest.lock().unwrap();
        if took > longest.0 {
            *longest = (took, name);
        }
        drop(longest);
        self.operations.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A CPU thread: counts in its own slot, looks at what others must not have changed, hints,
    /// and has memory of its own come and go.
    fn use_from_cpu(&self, thread: usize) -> Counts {
        let mut random = Random::new(thread as u64 + 1);
        let (mut counts, mut coming) = (vec![0; NR_REGIONS], None);
        while !self.is_over() {
            let index = random.below(NR_REGIONS as u64) as usize;
            let region = self.regions[index];
            match random.below(16) {
                0 => {
                    let wrong = self
                        .timed("looking at a page", || region.differences(0, SLOTS, index as u64));
                    assert_eq!(wrong, 0, "region {index}");
                }
                1..=2 => {
                    let node = any_node(&mut random);
                    let advice = match random.below(10) {
                        0 => Advice::ReadMostly,
                        1 => Advice::NotReadMostly,
                        2 => Advice::AccessedBy,
                        3 => Advice::NotAccessedBy,
                        4 => Advice::Preferred,
                        5 => Advice::NotPreferred,
                        _ => Advice::WillNeed,
                    };
                    // A node all of whose frames are in use just now can't have it.
                    let _ = self.timed("a hint", || {
                        self.gmm.advise(region.at(0), PAGE as u64, advice, node)
                    });
                }
                3 => {
                    let begun =
                        self.gmm.prefetch_async(region.at(0), PAGE as u64, any_node(&mut random));
                    let previous = coming.replace(begun.unwrap());
                    // Or dropped, which cancels it.
                    if random.below(2) == 0
                        && let Some(previous) = previous
                    {
                        let _ = self.timed("waiting for a prefetch", || previous.wait());
                    }
                }
                4 => self.use_own(&mut random, index),
                _ => {
                    let at = SLOTS + thread * 8;
                    self.timed("counting", || region.write_word(at, region.read_word(at) + 1));
                    counts[index] += 1;
                    assert_eq!(region.read_word(at), u64::from(counts[index]), "region {index}");
                }
            }
        }
        Counts(counts)
    }

    /// Memory that only this thread uses comes and goes: the one that others do not write, so that
    /// it may be pinned. What is copied to it from a region are bytes that nobody changes, of a page
    /// that others use meanwhile.
    fn use_own(&self, random: &mut Random, index: usize) {
        let (gmm, node, len) = (&self.gmm, any_node(random), 2 * PAGE as u64);
        let own = self.timed("mapping", || mmap(gmm, 4));
        self.timed("filling", || own.fill(0, 2 * PAGE, 7));
        let advise = |advice| {
            self.timed("a hint on memory of its own", || gmm.advise(own.at(0), len, advice, node))
        };
        match random.below(4) {
            0 => {
                advise(Advice::DontNeed).unwrap();
                assert_eq!(own.not_zero(0, 2 * PAGE), 0);
            }
            1 if advise(Advice::Pin).is_ok() => {
                assert_eq!(own.differences(0, 2 * PAGE, 7), 0, "pinned on {node}");
                advise(Advice::Unpin).unwrap();
            }
            2 => {
                let to = own.from(2 * PAGE);
                // SAFETY: nobody else uses this memory.
                self.timed("a copy", || unsafe { gmm.gmemcpy(to.at(0), own.at(0), len, node) })
                    .unwrap();
                assert_eq!(to.differences(0, 2 * PAGE, 7), 0, "copied to {node}");
            }
            _ => {
                let to = own.from(8 * random.below(1000) as usize);
                let from = self.regions[index].at(0);
                // SAFETY: nobody else uses the destination, or writes these bytes of the source.
                self.timed("a copy", || unsafe { gmm.gmemcpy(to.at(0), from, SLOTS as u64, node) })
                    .unwrap();
                let wrong = to.differences(0, SLOTS, index as u64);
                assert_eq!(wrong, 0, "copied from region {index} to {node}");
            }
        }
        let coming = gmm.prefetch_async(own.at(0), 2 * len, node).unwrap();
        self.timed("unmapping", || own.unmap(gmm, 4));
        let _ = self.timed("waiting for a prefetch of what is gone", || coming.wait());
    }

    /// A context: as many launches at a time as it has cores, each counting in a slot of its own.
    fn use_from_xpu(&self, nr: usize, xpu: &Xpu) -> Vec<Counts> {
        let mut random = Random::new(1000 + nr as u64);
        let streams: Vec<Stream> = (0..CORES_EACH).map(|_| xpu.stream().unwrap()).collect();
        let count = kernel(xpu, "count_pages");
        let mut counts: Vec<_> = (0..CORES_EACH).map(|_| Counts(vec![0; NR_REGIONS])).collect();
        while !self.is_over() {
            let launches: Vec<Launch> = (streams.iter().enumerate().zip(&mut counts))
                .map(|((core, stream), counts)| {
                    let index = random.below(NR_REGIONS as u64) as usize;
                    counts.0[index] += 1;
                    let slot = NR_THREADS + nr * CORES_EACH + core;
                    let base = self.regions[index].at(SLOTS);
                    let args = (base, 1_usize, PAGE, 1_u64, slot, 1_u64);
                    // SAFETY: the slot is this launch's own.
                    unsafe { stream.launch(&count, 1, args).unwrap() }
                })
                .collect();
            for launch in launches {
                self.timed("a launch", || launch.wait()).unwrap();
            }
        }
        counts
    }

    /// Every byte, once nobody is at work.
    fn check_bytes(&self, counts: &[Counts]) {
        for (index, region) in self.regions.iter().enumerate() {
            assert_eq!(region.differences(0, SLOTS, index as u64), 0, "region {index}");
            // Between the values of the list, and after it.
            for offset in (0..SLOTS).step_by(64) {
                let rest = (16..64).step_by(8).map(|at| region.read_word(offset + at));
                assert_eq!(rest.sum::<u64>(), 0, "region {index} at {offset}");
            }
            for slot in 0..SMALL / 8 {
                let wanted = counts.get(slot).map_or(0, |counts| counts.0[index]);
                let seen = region.read_word(SLOTS + slot * 8);
                assert_eq!(seen, u64::from(wanted), "region {index}, slot {slot}");
            }
        }
    }
}

fn any_node(random: &mut Random) -> u8 {
    random.below(1 + NR_XPUS as u64) as u8
}

/// What a process uses for itself, in KiB: host frames, heaps, stacks. (The XPUs' memory is shared
/// and of fixed size; how much of it a process has mapped comes and goes.)
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// These tests look at all of the process, and take longer than [`turn`] allows.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most that all processes used in the last three quarters of the time, beyond the most in the
/// first: samples are taken until `end`.
fn growth_kib(pids: &[u32], end: Instant) -> u64 {
    let begun = Instant::now();
    let quarter = (end - begun) / 4;
    let (mut first, mut later) = (0, 0);
    while Instant::now() < end {
        let sum: u64 = pids.iter().map(|&pid| resident_kib(pid)).sum();
        if begun.elapsed() < quarter {
            first = sum.max(first)
        } else {
            later = sum.max(later)
        };
        std::thread::sleep(Duration::from_millis(100));
    }
    later.saturating_sub(first)
}

#[test]
fn everything_at_once_for_a_while() {
    let _alone = alone();
    let asked = number("GMM_SOAK_SECONDS");
    let mut builder = Gmm::builder();
    for _ in 0..NR_XPUS {
        builder = builder.xpu(xpu_of(FRAMES_EACH).cores(CORES_EACH as u32));
    }
    let gmm = builder.build().unwrap();
    let xpus: Vec<_> = (1..=NR_XPUS as u8).map(|node| gmm.xpu(node).unwrap()).collect();
    let regions: Vec<_> = (0..NR_REGIONS).map(|_| mmap(&gmm, 1)).collect();
    for (index, region) in regions.iter().enumerate() {
        region.fill(0, SLOTS, index as u64);
    }
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let soak = Soak { gmm, regions, stop, operations, longest: Mutex::default() };
    let mut pids: Vec<u32> = xpus.iter().map(|xpu| xpu.context().pid() as u32).collect();
    pids.push(std::process::id());
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(10));
    let (counts, growth) = std::thread::scope(|scope| {
        let soak = &soak;
        let _stop = SetOnDrop(&soak.stop);
        let from_cpu: Vec<_> =
            (0..NR_THREADS).map(|thread| scope.spawn(move || soak.use_from_cpu(thread))).collect();
        let from_xpus: Vec<_> = (xpus.iter().enumerate())
            .map(|(nr, xpu)| scope.spawn(move || soak.use_from_xpu(nr, xpu)))
            .collect();
        let growth = growth_kib(&pids, end);
        soak.stop.store(true, Ordering::SeqCst);
        let mut counts: Vec<_> = from_cpu.into_iter().map(|t| t.join().unwrap()).collect();
        counts.extend(from_xpus.into_iter().flat_map(|t| t.join().unwrap()));
        (counts, growth)
    });
    let (longest, of) = *soak.longest.lock().unwrap();
    let operations = soak.operations.load(Ordering::SeqCst);
    println!(
        "{operations} operations, the longest {longest:?} ({of}); {growth} KiB more in the end"
    );
    check(&soak.gmm);
    soak.check_bytes(&counts);
    check(&soak.gmm);
    // A short run has not seen all of its memory in its first quarter.
    if asked.is_some() {
        assert!(growth < MAX_GROWTH_KIB, "the processes use {growth} KiB more in the end");
        assert!(longest < MAX_STALL, "{of} took {longest:?}");
    }
}

/// The file descriptors of this process.
fn nr_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The threads of this process.
fn nr_threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn contexts_come_and_go_and_leave_nothing() {
    let _alone = alone();
    let gmm = machine(8);
    let memory = mmap(&gmm, 2);
    memory.fill(0, 2 * PAGE, 1);
    let first = gmm.xpu(1).unwrap();
    let cycle = |nr: u64| {
        let xpu = first.new_context().unwrap();
        // One in four is used.
        if nr.is_multiple_of(4) {
            memory.touch_on(&xpu, 2, false);
        }
    };
    (0..4).for_each(cycle);
    let before = (nr_descriptors(), nr_threads());
    let (begun, asked) = (Instant::now(), number("GMM_SOAK_CYCLES"));
    let mut done = 0;
    while asked.map_or(begun.elapsed() < Duration::from_secs(8), |asked| done < asked) {
        cycle(done);
        done += 1;
    }
    println!("{done} cycles of attach and detach in {:?}", begun.elapsed());
    wait_until("all that contexts had is gone", || (nr_descriptors(), nr_threads()) == before);
    let mut children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path().join("children");
        children.push_str(&std::fs::read_to_string(path).unwrap_or_default());
    }
    let mut children: Vec<&str> = children.split_whitespace().collect();
    children.sort_unstable();
    children.dedup();
    assert_eq!(children, [first.context().pid().to_string()], "only the first context is left");
    assert_eq!(memory.differences(0, 2 * PAGE, 1), 0);
    let nodes = gmm.snapshot().nodes;
    assert!(nodes[1].resident_frames <= 2 && nodes[1].pinned_frames == 0, "{nodes:?}");
    check(&gmm);
}
