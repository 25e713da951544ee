//! Threads that serve faults never allocate: the program's allocator may hold a lock while it
//! waits for a fault of its own. Here the program's allocator ends the process if they do.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use gmm::{Gmm, PAGE_SIZE};

/// Whether such threads may not allocate: they do when they start.
static ARMED: AtomicBool = AtomicBool::new(false);
/// How often they did before that.
static SEEN: AtomicU64 = AtomicU64::new(0);

struct NoneOnFaultThreads;

/// Whether this thread serves faults of the CPU or of an XPU, or copies pages, by its name.
fn serves_faults() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: writes the thread's name, at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    [&b"gmm-fault-"[..], b"gmm-xpu-fault-", b"gmm-dma"].iter().any(|n| name.starts_with(n))
}

fn look() {
    let on_cpu_handler = gmm_cpu::on_handler_thread();
    if !on_cpu_handler && !serves_faults() {
        return;
    }
    SEEN.fetch_add(1, Ordering::SeqCst);
    if on_cpu_handler || ARMED.load(Ordering::SeqCst) {
        let message = b"a thread that serves faults used the allocator\n";
        // SAFETY: writes a static message.
        unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
        std::process::abort();
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for NoneOnFaultThreads {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        look();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: NoneOnFaultThreads = NoneOnFaultThreads;

/// Until dropped, no such thread may allocate.
struct Armed;

impl Armed {
    fn new() -> Self {
        ARMED.store(true, Ordering::SeqCst);
        Self
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        ARMED.store(false, Ordering::SeqCst);
    }
}

const PAGES: usize = 14;

/// Faults in all directions, evictions of clean and of dirty pages, copies between XPUs.
fn exercise(gmm: &Gmm, memory: Memory, rounds: u64) {
    let contexts = [gmm.xpu(1).unwrap(), gmm.xpu(2).unwrap()];
    for round in 0..rounds {
        let launches = contexts.each_ref().map(|xpu| {
            let slot = 2 * usize::from(xpu.node());
            let args = (memory.at(0), PAGES, PAGE, 2_u64, slot, round);
            start(xpu, "count_pages", 2, args)
        });
        run_on_cpu("count_pages", 2, (memory.at(0), PAGES, PAGE, 2_u64, 0_usize, round));
        launches.into_iter().for_each(|launch| launch.wait().unwrap());
        contexts.iter().for_each(|xpu| memory.touch_on(xpu, PAGES, false));
        // What the application discards is filled again.
        memory.discard(SMALL, PAGE);
        assert_eq!(memory.read_word(2 * SMALL), 0);
    }
}

#[test]
fn no_fault_needs_the_allocator() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = Gmm::builder().xpu(xpu_of(5)).xpu(xpu_of(4)).build().unwrap();
    let memory = mmap(&gmm, PAGES);
    // Every thread has begun, and frames are imported.
    exercise(&gmm, memory, 3);
    assert!(SEEN.load(Ordering::SeqCst) > 0, "the threads' own start shows that looking works");
    let before = gmm.snapshot();
    let armed = Armed::new();
    exercise(&gmm, memory, 5);
    drop(armed);
    let after = gmm.snapshot();
    for (before, after) in before.nodes.iter().zip(&after.nodes) {
        assert!(after.faults > before.faults, "{after:?}");
    }
    let evicted = |s: &gmm::Snapshot| {
        let (all, clean) = (s.nodes[1].evicted_pages, s.nodes[1].evicted_clean_pages);
        [all - clean, clean]
    };
    let more = [0, 1].map(|i| evicted(&after)[i] > evicted(&before)[i]);
    assert_eq!(more, [true, true], "dirty and clean pages were evicted");
    check(&gmm);
}

/// Not even when a thread has something to record for the first time.
#[test]
fn nor_does_the_event_trace() {
    let _turn = turn();
    let gmm = Gmm::builder().xpu(xpu_of(5)).xpu(xpu_of(4)).build().unwrap();
    let memory = mmap(&gmm, PAGES);
    exercise(&gmm, memory, 3);
    let path = std::env::temp_dir().join(format!("gmm-no-alloc-{}.json", std::process::id()));
    let trace = gmm.trace_to(&path).unwrap();
    let armed = Armed::new();
    exercise(&gmm, memory, 2);
    drop(armed);
    let summary = trace.finish().unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(summary.records > 0, "{summary:?}");
}

#[test]
fn nor_do_first_touches_and_faults_that_fail() {
    let _turn = turn();
    let gmm = Gmm::builder().host_memory(6 * PAGE_SIZE).xpu(xpu_of(4)).build().unwrap();
    let memory = mmap(&gmm, 12);
    let xpu = gmm.xpu(1).unwrap();
    // Every thread has begun; no frame but one of each node has been asked for.
    memory.touch_on(&xpu, 1, true);
    memory.write(0, 1);
    let armed = Armed::new();
    (0..6).for_each(|page| memory.write(page * PAGE, 1));
    assert!(!memory.is_readable(6 * PAGE), "the host is full");
    memory.from(7 * PAGE).touch_on(&xpu, 4, true);
    drop(armed);
    check(&gmm);
}
