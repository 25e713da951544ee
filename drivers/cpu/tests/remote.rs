//! Pages that map a frame of another node: a piece of a memory file.

mod common;
mod stand_in;

use common::{Memory, PAGE, SMALL, huge_kib, huge_pages_work, in_child, report_signal, signal_of};
use gmm_core::driver::{DriverError, Enter, MappingKind, Mmu, Protection, RemoteHandle};
use stand_in::{At, stand_in};

#[test]
fn a_touch_finds_the_data_while_it_goes_to_the_device_and_back() {
    let (_cpu, _handlers, core, _) = stand_in(2);
    core.count_meanwhile(3, || {
        std::thread::scope(|scope| {
            for n in 0..2 {
                let core = &core;
                scope.spawn(move || {
                    for round in 0..300 {
                        core.go(n, At::Remote);
                        core.go(n, if round % 2 == 0 { At::Slot } else { At::Local });
                    }
                });
            }
        });
    });
}

/// More threads wait for the page than serve faults, so that those who could read the kernel's
/// message about the clear are all busy waiting for it to end.
#[test]
fn a_clear_ends_though_all_who_serve_faults_wait_for_it() {
    let (_cpu, _handlers, core, memory) = stand_in(4);
    (0..4).for_each(|n| core.go(n, At::Remote));
    std::thread::scope(|scope| {
        for round in 0..200 {
            let core = &core;
            let touching: Vec<_> =
                (0..4).map(|n| scope.spawn(move || memory.read(n * PAGE))).collect();
            (0..4).for_each(|n| core.go(n, At::Slot));
            touching.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 0));
            (0..4).for_each(|n| core.go(n, At::Remote));
            assert_eq!(core.at(round % 4), At::Remote);
        }
    });
}

#[test]
fn both_sides_see_each_others_writes() {
    let (_cpu, _handlers, core, memory) = stand_in(2);
    memory.fill(PAGE, PAGE, 1);
    core.go(1, At::Remote);
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
    memory.write(PAGE + 5, 77);
    assert_eq!(core.device(1).read(5), 77);
    core.device(1).write(6, 78);
    assert_eq!(memory.read(PAGE + 6), 78);
    core.go(1, At::Local);
    assert_eq!((memory.read(PAGE + 5), memory.read(PAGE + 6)), (77, 78));
    core.device(1).write(6, 1);
    assert_eq!(memory.read(PAGE + 6), 78, "the device's frame is its own again");
}

/// How many mappings of this process lie in a range.
fn mappings(memory: Memory, len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let (start, end) = (memory.0 as usize, memory.0 as usize + len);
    let overlaps = |line: &&str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let at = |text| usize::from_str_radix(text, 16).unwrap();
        at(from) < end && start < at(to)
    };
    maps.lines().filter(overlaps).count()
}

#[test]
fn nothing_is_left_of_a_mapping_that_was_cleared() {
    let (_cpu, _handlers, core, memory) = stand_in(8);
    (0..8).for_each(|n| memory.fill(n * PAGE, PAGE, n as u8));
    assert_eq!(mappings(memory, 8 * PAGE), 1);
    for _ in 0..3 {
        (2..6).for_each(|n| core.go(n, At::Remote));
        assert_eq!(mappings(memory, 8 * PAGE), 3, "pieces in a row are one mapping");
        (2..6).for_each(|n| core.go(n, At::Local));
        assert_eq!(mappings(memory, 8 * PAGE), 1);
    }
    (0..8).for_each(|n| assert_eq!(memory.differences(n * PAGE, PAGE, n as u8), 0));
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, 8 * PAGE), 8 * 2048, "and pages are as huge as before");
    }
}

#[test]
fn a_batch_of_them_is_cleared_at_once() {
    let (_cpu, _handlers, core, memory) = stand_in(6);
    let kinds = [At::Remote, At::Remote, At::Local, At::Remote, At::Replica, At::Local];
    (0..6).for_each(|n| memory.fill(n * PAGE, PAGE, n as u8));
    (0..6).for_each(|n| core.go(n, kinds[n]));
    let mut clears: Vec<_> = (0..6).map(|n| core.clear(n, kinds[n])).collect();
    core.mmu.pmap_clear(&mut clears).unwrap();
    assert!(clears.iter().all(|clear| !clear.was_empty));
    for n in [0, 1, 3] {
        assert_eq!(core.device(n).read(64), memory_byte(n));
    }
    let enters: Vec<_> = (0..6).map(|n| core.mapping(n, kinds[n])).collect();
    core.mmu.pmap_enter(&enters).unwrap();
    (0..6).for_each(|n| assert_eq!(memory.read(n * PAGE + 64), memory_byte(n)));
}

/// What [`Memory::fill`] writes to the second line of page `n` with `n` for the seed.
fn memory_byte(n: usize) -> u8 {
    ((n * PAGE + 64) / 64 + n) as u8 ^ n as u8
}

#[test]
fn a_discard_by_the_application_leaves_the_devices_data() {
    let (_cpu, _handlers, core, memory) = stand_in(1);
    core.go(0, At::Remote);
    memory.fill(0, PAGE, 3);
    memory.discard(0, PAGE);
    assert_eq!(memory.differences(0, PAGE, 3), 0);
    memory.discard(SMALL, SMALL);
    core.go(0, At::Local);
    assert_eq!(memory.differences(0, PAGE, 3), 0);
}

#[test]
fn a_poisoned_page_can_be_mapped_so() {
    let (_cpu, _handlers, core, memory) = stand_in(1);
    assert!(core.mmu.poison(core.page(0)));
    core.go(0, At::Remote);
    core.device(0).write(9, 9);
    assert_eq!(memory.read(9), 9);
    assert!(!core.mmu.poison(core.page(0)), "it is mapped");
    core.mmu.unpoison(core.page(0));
    assert_eq!(memory.read(9), 9);
}

#[test]
fn a_write_that_the_region_forbids_is_a_signal_and_the_protection_can_change() {
    let name = "a_write_that_the_region_forbids_is_a_signal_and_the_protection_can_change";
    let output = in_child(name, || {
        let (_cpu, _handlers, core, memory) = stand_in(1);
        core.go(0, At::Remote);
        let enter = |protection| {
            let mapping = Enter { protection, ..core.mapping(0, At::Remote) };
            core.mmu.pmap_enter(&[mapping]).unwrap();
        };
        enter(Protection::ReadOnly);
        assert_eq!(memory.read(0), 0);
        enter(Protection::ReadWrite);
        memory.write(0, 1);
        enter(Protection::ReadOnly);
        report_signal(libc::SIGSEGV);
        println!("expected at {:p}", memory.at(1));
        memory.write(1, 1);
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(40), "{text} {:?}", signal_of(&output));
}

#[test]
fn children_do_not_inherit_it() {
    let (_cpu, _handlers, core, memory) = stand_in(1);
    core.go(0, At::Remote);
    memory.write(0, 7);
    // SAFETY: the child reads one byte and leaves.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let byte = memory.at(0).read_volatile();
            libc::_exit(i32::from(byte));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:x}");
    }
    assert_eq!(memory.read(0), 7);
}

#[test]
fn it_goes_with_its_region() {
    let (_cpu, _handlers, core, memory) = stand_in(3);
    core.go(1, At::Remote);
    memory.fill(PAGE, PAGE, 1);
    core.mmu.va_release(core.range);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert_eq!(maps.matches("gmm:test-device").count(), 1, "the test's own");
    assert!(core.mmu.va_examine(core.range).is_ok());
    let enter = core.mapping(1, At::Local);
    core.mmu.pmap_enter(&[enter]).unwrap();
    assert_eq!(memory.read(PAGE), 0);
}

#[test]
fn what_is_no_file_of_a_device_is_an_error_and_changes_nothing() {
    let (_cpu, _handlers, core, memory) = stand_in(1);
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    for fd in [-1, i32::MAX, std::os::fd::AsRawFd::as_raw_fd(&eventfd)] {
        let handle = RemoteHandle { fd, offset_bytes: 0 };
        let kind = MappingKind::Remote(handle);
        let mapping = Enter { kind, ..core.mapping(0, At::Remote) };
        let failed = core.mmu.pmap_enter(&[mapping]).unwrap_err();
        assert_eq!(failed.done, 0);
        assert!(matches!(failed.error, DriverError::Os { .. } | DriverError::Broken(_)));
    }
    memory.fill(0, PAGE, 1);
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    core.go(0, At::Remote);
    let twice = core.mmu.pmap_enter(&[core.mapping(0, At::Local)]);
    assert!(matches!(twice.unwrap_err().error, DriverError::Broken(_)));
    assert_eq!(memory.differences(0, PAGE, 1), 0);
}
