//! What the tests share: a turn for each (a process has room for four spaces), a deadline, unified
//! memory by raw accesses, kernels by name, and children for what ends in a signal.
#![expect(dead_code, reason = "each test file uses a part")]
#![expect(unreachable_pub, reason = "a module of each test file")]

pub mod child;
mod memory;
mod modes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gmm::hostxpu::{Death, KernelArgs};
use gmm::{Advice, Gmm, Kernel, Protection, RegionInfo, Snapshot, Xpu};
pub use memory::*;
pub use modes::*;

/// How long a test may take. Reaching it is a hang, not slowness: most take a second.
const DEADLINE: Duration = Duration::from_secs(300);

/// A test's turn: no other of this process runs meanwhile, and it ends the process if it is not
/// dropped in time.
pub struct Turn {
    done: Option<Sender<()>>,
    watchdog: Option<JoinHandle<()>>,
    _alone: MutexGuard<'static, ()>,
}

/// Waits for this test's turn. The first statement of each test.
pub fn turn() -> Turn {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let (done, wait) = channel();
    let watchdog = std::thread::spawn(move || {
        if wait.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            let message = format!("{name} HANGS: not done after {DEADLINE:?}; aborting\n");
            // Not through `eprintln`, which a test's output is kept from by the harness.
            // SAFETY: writes a string.
            unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
            std::process::abort();
        }
    });
    Turn { done: Some(done), watchdog: Some(watchdog), _alone: alone }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
    }
}

/// The library's unsafe calls, for memory that the tests use by raw accesses only.
pub trait RawCalls {
    fn unmap(&self, addr: *const u8, len_bytes: u64) -> gmm::Result<()>;
    fn protect(&self, addr: *const u8, len_bytes: u64, to: Protection) -> gmm::Result<()>;
    fn advise(&self, addr: *const u8, len: u64, advice: Advice, node: u8) -> gmm::Result<()>;
    fn core(&self) -> &std::sync::Arc<gmm_core::Space>;
}

impl RawCalls for Gmm {
    fn unmap(&self, addr: *const u8, len_bytes: u64) -> gmm::Result<()> {
        // SAFETY: nobody has a reference to the memory.
        unsafe { self.munmap(addr, len_bytes) }
    }

    fn protect(&self, addr: *const u8, len_bytes: u64, to: Protection) -> gmm::Result<()> {
        // SAFETY: as above.
        unsafe { self.mprotect(addr, len_bytes, to) }
    }

    fn advise(&self, addr: *const u8, len: u64, advice: Advice, node: u8) -> gmm::Result<()> {
        // SAFETY: as above.
        unsafe { self.gmadvise(addr, len, advice, node) }
    }

    fn core(&self) -> &std::sync::Arc<gmm_core::Space> {
        // SAFETY: the tests look, and hold pages; they have no references to unified memory.
        unsafe { self.space() }
    }
}

/// Unified memory with one host XPU of so many frames: node 1.
pub fn machine(frames: u64) -> Gmm {
    Gmm::builder().xpu(xpu_of(frames)).build().unwrap()
}

/// Finds a sample kernel.
pub fn kernel(xpu: &Xpu, name: &str) -> Kernel {
    xpu.load("libgmm_kernels.so").unwrap().kernel(name).unwrap()
}

/// Runs a sample kernel.
pub fn run(xpu: &Xpu, name: &str, grid: u64, args: impl KernelArgs) -> gmm::Result<()> {
    start(xpu, name, grid, args).wait()
}

/// Calls a sample kernel on the CPU, index by index.
pub fn run_on_cpu(name: &str, grid: u64, args: impl KernelArgs) {
    let kernel = gmm_kernels::KERNELS.iter().find(|k| k.name == name).unwrap();
    let words = args.words();
    for index in 0..grid {
        // SAFETY: as for `start`.
        unsafe { (kernel.entry)(index, grid, words.as_ptr()) };
    }
}

/// How a launch's context ended, and the kernel's name.
pub fn death_of(result: gmm::Result<()>) -> (String, Death) {
    match result {
        Err(gmm::Error::Xpu(gmm::hostxpu::Error::Launch { kernel, death })) => {
            (kernel.to_string(), death)
        }
        other => panic!("not a launch that its context's end has ended: {other:?}"),
    }
}

/// Invariants 1 to 3, on a space that nobody uses any more: faults of contexts that have died may
/// still be under way.
pub fn check(gmm: &Gmm) {
    wait_until("the last fault ends", || {
        gmm.snapshot().nodes.iter().all(|node| node.in_transit_frames == 0)
    });
    // Laundering may be under way, too; but what is wrong stays wrong.
    let mut checked = gmm.core().check();
    for _ in 0..20 {
        if checked.is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
        checked = gmm.core().check();
    }
    checked.unwrap();
}

/// Everything there is to see of a space that nothing happens on, to compare it later. (Without
/// the CPU's faults, which are counted after the thread that they are served for goes on.)
///
/// The program goes on before the fault that let it do so is recorded: this waits for that.
pub fn picture(gmm: &Gmm) -> (Vec<RegionInfo>, Snapshot) {
    let mut last = picture_now(gmm);
    wait_until("nothing is under way", || {
        std::thread::sleep(Duration::from_millis(10));
        let before = std::mem::replace(&mut last, picture_now(gmm));
        last == before && last.1.nodes.iter().all(|n| n.in_transit_frames == 0)
    });
    last
}

fn picture_now(gmm: &Gmm) -> (Vec<RegionInfo>, Snapshot) {
    let mut snapshot = gmm.snapshot();
    snapshot.processors.remove(0);
    let cpu = &mut snapshot.nodes[0];
    (cpu.faults, cpu.coalesced_faults, cpu.throttled_faults) = (0, 0, 0);
    cpu.fault_service = Default::default();
    (gmm.regions(), snapshot)
}

/// Bytes copied from one node to another so far.
pub fn migrated(gmm: &Gmm, from: u8, to: u8) -> u64 {
    let snapshot = gmm.snapshot();
    let pair = snapshot.migrated_bytes.iter().find(|(f, t, _)| (f.0, t.0) == (from, to));
    pair.map_or(0, |&(_, _, bytes)| bytes)
}

/// Waits for something that must happen; a minute is a failure, not a timing.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sets a flag when it is dropped, so also if what comes before it fails: who waits for the flag
/// ends then, too.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Repeatable numbers (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}
