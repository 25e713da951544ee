//! Unmapping: with threads that wait in a fault on the range, in part, and what is left.

mod common;

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use common::*;
use gmm_core::Error;
use gmm_core::driver::Protection;

static SEGVS: AtomicUsize = AtomicUsize::new(0);

/// Counts the thread and keeps it.
extern "C" fn count_and_stay(_: i32) {
    SEGVS.fetch_add(1, Ordering::SeqCst);
    loop {
        // SAFETY: waits.
        unsafe { libc::pause() };
    }
}

#[test]
fn threads_that_wait_in_a_fault_are_freed_by_munmap() {
    let output = in_child("threads_that_wait_in_a_fault_are_freed_by_munmap", || {
        const THREADS: usize = 3;
        let handler = count_and_stay as extern "C" fn(i32) as usize;
        // SAFETY: the handler counts and waits.
        unsafe { libc::signal(libc::SIGSEGV, handler) };
        // Nobody serves faults, so that they wait for sure.
        let rig = Rig::unserved(8);
        let memory = rig.mmap(4, Protection::ReadWrite);
        static TIDS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];
        for (n, slot) in TIDS.iter().enumerate() {
            std::thread::spawn(move || {
                // SAFETY: asks for a number.
                slot.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                memory.write(n * PAGE + n, 1);
            });
        }
        wait_until("all threads wait in a fault", || {
            TIDS.iter().map(|t| t.load(Ordering::SeqCst)).all(|t| t != 0 && thread_sleeps(t))
        });
        assert_eq!(SEGVS.load(Ordering::SeqCst), 0);
        rig.space.munmap(memory.addr(0), 4 * PAGE as u64).unwrap();
        wait_until("all have got SIGSEGV", || SEGVS.load(Ordering::SeqCst) == THREADS);
        assert!(rig.space.regions().is_empty());
        println!("all were freed");
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all were freed"), "{output:?}");
}

#[test]
fn faults_that_started_early_are_served_when_handlers_start() {
    let mut rig = Rig::unserved(8);
    let memory = rig.mmap(2, Protection::ReadWrite);
    let early = std::thread::spawn(move || {
        memory.write(3, 9);
        memory.read(3)
    });
    rig.handlers = Some(rig.cpu.start(&rig.space).unwrap());
    assert_eq!(early.join().unwrap(), 9);
    // And when they start again.
    rig.handlers = None;
    rig.handlers = Some(rig.cpu.start(&rig.space).unwrap());
    assert_eq!(memory.read(PAGE), 0);
}

#[test]
fn a_part_is_unmapped_and_the_rest_stays() {
    let rig = Rig::with_window(8, 4);
    let memory = rig.mmap(4, Protection::ReadWrite);
    memory.fill(0, 4 * PAGE, 1);
    rig.space.munmap(memory.addr(PAGE), 2 * PAGE as u64).unwrap();
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    assert_eq!(memory.differences(3 * PAGE, PAGE, 1), 0);
    let twice = rig.space.munmap(memory.addr(PAGE), PAGE as u64);
    assert_eq!(twice, Err(Error::NotMapped { addr: memory.addr(PAGE) }));
    // The kernel knows that nothing is there.
    let mut vec = [0_u8; 1];
    assert!(memory.advise(PAGE, PAGE, libc::MADV_POPULATE_READ).is_err());
    // SAFETY: asks about pages only.
    assert_eq!(unsafe { libc::mincore(memory.at(PAGE).cast(), SMALL, vec.as_mut_ptr()) }, 0);
    assert_eq!(vec[0] & 1, 0);
    // The hole is used again, and reads as zero.
    let again = rig.mmap(2, Protection::ReadWrite);
    assert_eq!(again.0, memory.at(PAGE));
    assert!((0..2 * PAGE).step_by(SMALL).all(|i| again.read(i) == 0));
    rig.space.check().unwrap();
}

#[test]
fn regions_come_and_go_while_others_are_used() {
    let rig = Rig::new(32);
    std::thread::scope(|scope| {
        for t in 0..3_u8 {
            let rig = &rig;
            scope.spawn(move || {
                for i in 0..40 {
                    let memory = rig.mmap(3, Protection::ReadWrite);
                    for n in 0..3 {
                        assert_eq!(memory.read(n * PAGE + 64), 0, "fresh");
                        memory.write(n * PAGE + 64, t + 1);
                    }
                    if i % 2 == 0 {
                        rig.space.discard(memory.addr(PAGE), PAGE as u64).unwrap();
                        assert_eq!(memory.read(PAGE + 64), 0, "discarded");
                    }
                    assert_eq!(memory.read(64), t + 1);
                    rig.space.munmap(memory.addr(0), 3 * PAGE as u64).unwrap();
                }
            });
        }
    });
    assert!(rig.space.regions().is_empty());
    rig.space.check().unwrap();
}
