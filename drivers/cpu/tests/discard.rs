//! The application's own `madvise(MADV_DONTNEED)` on unified memory, and how pages that were split
//! by it get huge again.

mod common;

use common::*;
use gmm_core::driver::{Clear, Enter, Mmu, Protection};

#[test]
fn a_discarded_page_reads_as_zero_and_is_huge_again() {
    let rig = Rig::new(8);
    let memory = rig.mmap(2, Protection::ReadWrite);
    memory.fill(0, 2 * PAGE, 1);
    memory.discard(0, PAGE);
    assert!((0..PAGE).step_by(64).all(|i| memory.read(i) == 0));
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0, "the neighbour is as it was");
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, 2 * PAGE), 2 * 2048);
    }
    memory.fill(0, PAGE, 2);
    assert_eq!(memory.differences(0, PAGE, 2), 0);
    rig.space.check().unwrap();
}

#[test]
fn discarded_parts_read_as_zero_and_the_rest_stays() {
    let rig = Rig::new(8);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    memory.discard(3 * SMALL, SMALL);
    memory.discard(100 * SMALL, 2 * SMALL);
    assert_eq!(memory.read(3 * SMALL + 64), 0, "by a read");
    memory.write(100 * SMALL + 1, 5); // by a write
    assert_eq!((memory.read(100 * SMALL), memory.read(100 * SMALL + 1)), (0, 5));
    assert_eq!(memory.differences(0, 3 * SMALL, 1), 0);
    assert_eq!(memory.differences(4 * SMALL, 96 * SMALL, 1), 0);
    assert_eq!(memory.differences(102 * SMALL, PAGE - 102 * SMALL, 1), 0);
    assert_eq!(memory.read(101 * SMALL + 64), 0);
}

#[test]
fn many_threads_may_touch_what_is_being_discarded() {
    let rig = Rig::new(8);
    let memory = rig.mmap(2, Protection::ReadWrite);
    std::thread::scope(|scope| {
        for t in 0..4 {
            scope.spawn(move || {
                for i in 0..2000 {
                    let at = (i * 7 + t) % 1024 * SMALL + t;
                    memory.write(at, 1);
                    let seen = memory.read(at);
                    assert!(seen <= 1, "{seen} at {at}");
                }
            });
        }
        scope.spawn(move || {
            for i in 0..500 {
                match i % 3 {
                    0 => memory.discard(i % 2 * PAGE, PAGE),
                    _ => memory.discard(i * 5 % 1024 * SMALL, SMALL),
                }
            }
        });
    });
    rig.space.check().unwrap();
}

/// Takes page 0 out of the window, as an XPU's fault does, and brings it back.
fn out_and_in(rig: &Rig, memory: Memory) -> bool {
    let page = memory.page(0);
    let frame = rig.frame_of(page).unwrap();
    let mut clear = [Clear { page, frame, was_empty: false }];
    let mmu = rig.cpu.mmu();
    mmu.pmap_clear(&mut clear).unwrap();
    mmu.pmap_enter(&[Enter::local(page, frame, Protection::ReadWrite)]).unwrap();
    clear[0].was_empty
}

#[test]
fn a_split_page_moves_with_its_holes_and_is_healed() {
    let rig = Rig::new(8);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    memory.discard(7 * SMALL, SMALL);
    memory.discard(511 * SMALL, SMALL);
    assert_eq!(memory.read(7 * SMALL), 0); // One hole is refilled, one moves as a hole.
    assert!(!out_and_in(&rig, memory));
    assert_eq!(memory.differences(0, 7 * SMALL, 1), 0);
    assert_eq!(memory.differences(8 * SMALL, 503 * SMALL, 1), 0);
    for part in [7, 511] {
        assert!((0..SMALL).all(|i| memory.read(part * SMALL + i) == 0));
    }
    if !huge_pages_work() {
        return;
    }
    // The kernel may be unable to make a huge page just now; it is tried again later.
    wait_until("the page is healed", || huge_kib(memory, PAGE) == 2048 || out_and_in(&rig, memory));
    assert!(!out_and_in(&rig, memory));
    assert_eq!(huge_kib(memory, PAGE), 2048, "and it stays so");
    assert_eq!(memory.differences(8 * SMALL, 503 * SMALL, 1), 0);
}

#[test]
fn a_page_that_is_discarded_whole_by_parts_counts_as_empty() {
    let rig = Rig::new(8);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    (0..512).for_each(|part| memory.discard(part * SMALL, SMALL));
    let page = memory.page(0);
    let frame = rig.frame_of(page).unwrap();
    let mut clear = [Clear { page, frame, was_empty: false }];
    rig.cpu.mmu().pmap_clear(&mut clear).unwrap();
    assert!(clear[0].was_empty);
    let enter = Enter::local(page, frame, Protection::ReadWrite);
    rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
    assert!((0..PAGE).step_by(64).all(|i| memory.read(i) == 0));
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, PAGE), 2048);
    }
}

#[test]
fn a_read_only_page_may_be_discarded_too() {
    let rig = Rig::new(8);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    rig.space.protect(memory.addr(0), PAGE as u64, Protection::ReadOnly).unwrap();
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    memory.discard(SMALL, SMALL);
    assert_eq!(memory.read(SMALL + 64), 0);
    assert_eq!(memory.differences(2 * SMALL, PAGE - 2 * SMALL, 1), 0);
    memory.discard(0, PAGE);
    assert!((0..PAGE).step_by(64).all(|i| memory.read(i) == 0));
    rig.space.protect(memory.addr(0), PAGE as u64, Protection::ReadWrite).unwrap();
    memory.fill(0, PAGE, 2);
    assert_eq!(memory.differences(0, PAGE, 2), 0);
}
