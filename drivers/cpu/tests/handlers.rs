//! The threads that serve faults: they allocate nothing (every test here runs with an allocator
//! that aborts if they do), block every signal, and serve many threads at once.

mod common;

use common::*;
use gmm_core::driver::Protection;

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
    let mut handlers = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
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
    assert!(handlers >= 2);
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
        // To the process: any thread that does not block it may get it.
        // SAFETY: the handler is installed.
        unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
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
