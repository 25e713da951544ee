//! Pages that hold a read-only copy of a frame, which stays in its slot.

mod common;
mod stand_in;

use std::io::Read;

use common::{PAGE, SMALL, huge_kib, huge_pages_work, in_child, report_signal, signal_of};
use gmm_core::driver::{Enter, Mmu, Protection};
use gmm_cpu::uffd::AccessKind;
use stand_in::{At, stand_in};

#[test]
fn no_write_is_lost_while_a_page_becomes_a_replica_and_back() {
    let (_cpu, _handlers, core, _) = stand_in(2);
    core.count_meanwhile(3, || {
        for round in 0..200 {
            (0..2).for_each(|n| core.go(n, At::Replica));
            if round % 3 == 0 {
                (0..2).for_each(|n| core.go(n, At::Slot));
            }
        }
    });
}

#[test]
fn a_replica_is_read_and_a_write_is_a_fault() {
    let (_cpu, _handlers, core, memory) = stand_in(2);
    memory.fill(PAGE, PAGE, 1);
    core.go(1, At::Replica);
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
    assert_eq!(core.at(1), At::Replica);
    let slot = core.slot(1);
    assert_eq!((0..PAGE).step_by(64).filter(|&i| slot.read(i) != memory.read(PAGE + i)).count(), 0);
    memory.write(PAGE + 3 * SMALL, 77);
    assert_eq!(core.at(1), At::Local, "the write was asked for");
    assert_eq!(memory.read(PAGE + 3 * SMALL), 77);
    core.go(1, At::Slot);
    assert_eq!(slot.read(3 * SMALL), 77);
}

#[test]
fn a_system_calls_write_is_a_fault_too() {
    let (cpu, _handlers, core, memory) = stand_in(1);
    memory.fill(0, PAGE, 1);
    core.go(0, At::Replica);
    if cpu.uffd_access() == AccessKind::UserModeOnly {
        eprintln!("SKIPPED: system calls on replicas; only user-mode faults are served here");
        return;
    }
    let mut zero = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: bytes of the window that nobody else uses now.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.at(PAGE - 100), 100) };
    zero.read_exact(bytes).unwrap();
    assert_eq!(core.at(0), At::Local);
    assert!((PAGE - 100..PAGE).all(|i| memory.read(i) == 0));
    assert_eq!(memory.differences(0, PAGE - 128, 1), 0);
}

#[test]
fn a_discard_by_the_application_drops_the_copy_only() {
    let (_cpu, _handlers, core, memory) = stand_in(1);
    memory.fill(0, PAGE, 3);
    core.go(0, At::Replica);
    memory.discard(5 * SMALL, SMALL);
    assert_eq!(memory.differences(0, PAGE, 3), 0);
    memory.discard(0, PAGE);
    assert_eq!(memory.differences(0, PAGE, 3), 0);
    memory.discard(0, PAGE);
    core.go(0, At::Local);
    assert_eq!(memory.differences(0, PAGE, 3), 0);
}

#[test]
fn a_page_is_huge_again_after_it() {
    let (_cpu, _handlers, core, memory) = stand_in(3);
    (0..3).for_each(|n| memory.fill(n * PAGE, PAGE, 1));
    for _ in 0..3 {
        core.go(1, At::Replica);
        core.go(1, At::Local);
    }
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, 3 * PAGE), 3 * 2048);
    }
}

#[test]
fn a_poisoned_page_can_become_one() {
    let (_cpu, _handlers, core, memory) = stand_in(1);
    memory.fill(0, PAGE, 1);
    core.go(0, At::Slot);
    assert!(core.mmu.poison(core.page(0)));
    core.go(0, At::Replica);
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    core.mmu.unpoison(core.page(0));
    assert_eq!(memory.differences(0, PAGE, 1), 0);
}

#[test]
fn a_write_that_the_region_forbids_is_a_signal() {
    let output = in_child("a_write_that_the_region_forbids_is_a_signal", || {
        let (_cpu, _handlers, core, memory) = stand_in(1);
        memory.fill(0, PAGE, 1);
        core.go(0, At::Replica);
        let enter = |protection| {
            let mapping = Enter { protection, ..core.mapping(0, At::Replica) };
            core.mmu.pmap_enter(&[mapping]).unwrap();
        };
        enter(Protection::ReadOnly);
        assert_eq!(memory.differences(0, PAGE, 1), 0);
        enter(Protection::ReadWrite);
        memory.write(0, 1);
        assert_eq!(core.at(0), At::Local);
        core.go(0, At::Replica);
        enter(Protection::ReadOnly);
        report_signal(libc::SIGSEGV);
        memory.write(1, 1);
    });
    assert_eq!(output.status.code(), Some(40), "{output:?} {:?}", signal_of(&output));
}

#[test]
fn it_goes_with_its_region() {
    let (_cpu, _handlers, core, memory) = stand_in(2);
    memory.fill(0, PAGE, 1);
    core.go(0, At::Replica);
    core.mmu.va_release(core.range);
    assert!(core.mmu.va_examine(core.range).is_ok());
    core.mmu.pmap_enter(&[core.mapping(1, At::Local)]).unwrap();
    assert_eq!(memory.read(PAGE), 0);
}
