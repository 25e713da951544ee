//! The threads that serve faults: they allocate nothing (every test here runs with an allocator
//! that aborts if they do), block every signal, and serve many threads at once.

mod common;

use common::*;
use gmm_core::driver::{Clear, DriverError, Enter, Examine, Mmu, Partial, Protection};
use gmm_core::{Config, PageRange, Space};

#[test]
fn every_path_of_a_fault_runs_without_the_allocator() {
    let rig = Rig::new(16);
    let memory = rig.mmap(16, Protection::ReadWrite);
    memory.fill(0, 8 * PAGE, 1); // Zero-fill.
    memory.discard(0, PAGE); // Refill, whole and in part.
    assert_eq!(memory.read(0), 0);
    memory.discard(PAGE, SMALL);
    assert_eq!(memory.read(PAGE), 0);
    rig.space.discard(memory.addr(2 * PAGE), PAGE as u64).unwrap();
    assert_eq!(memory.read(2 * PAGE), 0);
    rig.space.protect(memory.addr(8 * PAGE), 8 * PAGE as u64, Protection::ReadOnly).unwrap();
    assert_eq!(memory.read(8 * PAGE), 0); // Read-only.
    // Out of memory, and so poisoned: told to the kernel by an error, not a signal.
    let more = rig.mmap(8, Protection::ReadWrite);
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut failed = 0;
    for n in 0..8 {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&writer);
        // SAFETY: the kernel reads a byte or says EFAULT.
        failed += usize::from(unsafe { libc::write(fd, more.at(n * PAGE).cast(), 1) } != 1);
    }
    assert!(failed > 0 && failed < 8, "{failed} of 8 pages did not fit in 16 frames");
    rig.space.check().unwrap();
}

#[test]
fn they_block_every_signal_that_can_be_blocked() {
    let _rig = Rig::new(1);
    let mut seen = 0;
    // A thread names itself, some time after it was made.
    wait_until("both handler threads have their names", || {
        seen = check_masks();
        seen >= 2
    });
}

/// Checks the signal masks of all handler threads; says how many there are.
fn check_masks() -> usize {
    let mut handlers = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        // Other tests' threads come and go.
        let Ok(status) = task.and_then(|t| std::fs::read_to_string(t.path().join("status"))) else {
            continue;
        };
        if !status.starts_with("Name:\tgmm-fault-") {
            continue;
        }
        let blocked = status.lines().find_map(|l| l.strip_prefix("SigBlk:\t")).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        // All but SIGKILL and SIGSTOP, and those that the C library keeps for itself (32, 33).
        let free =
            !blocked & !(1 << (libc::SIGKILL - 1)) & !(1 << (libc::SIGSTOP - 1)) & !(3 << 31);
        assert_eq!(free, 0, "{free:#x} can be delivered");
        handlers += 1;
    }
    handlers
}

#[test]
fn a_signal_handler_may_touch_unified_memory() {
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
    static TARGET: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
    static TOUCHED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn touch(_: i32) {
        let at = TARGET.load(Ordering::SeqCst);
        let n = TOUCHED.load(Ordering::SeqCst);
        Memory(at).write(n % 4 * PAGE + SMALL, 1);
        TOUCHED.fetch_add(1, Ordering::SeqCst);
    }
    let rig = Rig::new(8);
    let memory = rig.mmap(4, Protection::ReadWrite);
    TARGET.store(memory.0, Ordering::SeqCst);
    // SAFETY: the handler touches unified memory and counts.
    unsafe { libc::signal(libc::SIGUSR1, touch as extern "C" fn(i32) as usize) };
    for n in 1..=100 {
        memory.discard(0, 4 * PAGE);
        // To the process: any thread that does not block it may get it. (ThreadSanitizer holds it
        // back until that thread calls something, which the harness' own may never do.)
        // SAFETY: the handler is installed.
        unsafe {
            match cfg!(gmm_tsan) {
                true => libc::raise(libc::SIGUSR1),
                false => libc::kill(libc::getpid(), libc::SIGUSR1),
            }
        };
        memory.write(PAGE, 1);
        wait_until("the handler has run", || TOUCHED.load(Ordering::SeqCst) == n);
    }
}

#[test]
fn many_threads_fault_on_the_same_pages() {
    let rig = Rig::new(32);
    let memory = rig.mmap(32, Protection::ReadWrite);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for t in 0..8 {
            let (rig, barrier) = (&rig, &barrier);
            scope.spawn(move || {
                for round in 0..5_u8 {
                    barrier.wait();
                    if t == 0 {
                        rig.space.discard(memory.addr(0), 32 * PAGE as u64).unwrap();
                    }
                    barrier.wait();
                    for page in 0..32 {
                        let at = page * PAGE + t * SMALL;
                        assert_eq!(memory.read(at), 0);
                        memory.write(at, round + 1);
                    }
                    barrier.wait();
                    for page in 0..32 {
                        let all = (0..8).all(|t| memory.read(page * PAGE + t * SMALL) == round + 1);
                        assert!(all, "page {page}, round {round}");
                    }
                }
            });
        }
    });
    rig.space.check().unwrap();
}

/// The CPU's page table, but for a bug.
struct Panics(std::sync::Arc<gmm_cpu::CpuMmu>);

impl Mmu for Panics {
    fn va_examine(&self, range: PageRange) -> Result<Examine, DriverError> {
        self.0.va_examine(range)
    }

    fn va_release(&self, range: PageRange) {
        self.0.va_release(range);
    }

    fn pmap_enter(&self, _: &[Enter]) -> Result<(), Partial> {
        panic!("a bug");
    }

    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        self.0.pmap_clear(mappings)
    }
}

#[test]
fn a_panic_on_a_handler_thread_ends_the_process_instead_of_hanging_it() {
    let name = "a_panic_on_a_handler_thread_ends_the_process_instead_of_hanging_it";
    let output = in_child(name, || {
        let cpu = gmm_cpu::CpuDriver::new(options(4)).unwrap();
        let config = Config { window: cpu.window(), ..Config::default() };
        let clock = std::sync::Arc::new(gmm_cpu::MonotonicClock::new());
        let mmu = std::sync::Arc::new(Panics(cpu.mmu()));
        let space = Space::new(config, cpu.host(), mmu, clock).unwrap();
        let _handlers = cpu.start(&space).unwrap();
        let range = space.mmap(PAGE as u64, Protection::ReadWrite, "test").unwrap();
        Memory(range.start.start().0 as *mut u8).write(0, 1);
    });
    assert_eq!(signal_of(&output), Some(libc::SIGABRT), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a thread that serves page faults panicked; aborting"), "{said}");
}
