//! Read-only regions: a write is a SIGSEGV with the right address, and never a hang.

mod common;

use common::*;
use gmm_core::driver::Protection;

fn region(protection: Protection) -> (Rig, Memory) {
    let rig = Rig::new(8);
    let memory = rig.mmap(4, protection);
    (rig, memory)
}

/// How the child's write at `offset` ended, as it said.
fn assert_segv_at(output: &std::process::Output, offset: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(40), "{output:?}");
    let addr = text.split("signal at 0x").nth(1).unwrap().split('\n').next().unwrap();
    let addr = usize::from_str_radix(addr, 16).unwrap();
    assert_eq!(addr % (4 * PAGE), offset, "{addr:#x}");
}

#[test]
fn a_write_to_an_absent_read_only_page_is_a_signal() {
    let output = in_child("a_write_to_an_absent_read_only_page_is_a_signal", || {
        let (_rig, memory) = region(Protection::ReadOnly);
        assert_eq!(memory.0 as usize % (4 * PAGE), 0);
        assert_eq!(memory.read(5), 0);
        report_signal(libc::SIGSEGV);
        memory.write(2 * PAGE + 77, 1);
    });
    assert_segv_at(&output, 2 * PAGE + 77);
}

#[test]
fn a_write_to_a_present_read_only_page_is_a_signal() {
    let output = in_child("a_write_to_a_present_read_only_page_is_a_signal", || {
        let (rig, memory) = region(Protection::ReadWrite);
        memory.fill(PAGE, PAGE, 1);
        rig.space.protect(memory.addr(0), 4 * PAGE as u64, Protection::ReadOnly).unwrap();
        assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
        report_signal(libc::SIGSEGV);
        memory.write(PAGE + 1234, 1);
    });
    assert_segv_at(&output, PAGE + 1234);
}

#[test]
fn protection_changes_back_and_forth_with_the_data() {
    let (rig, memory) = region(Protection::ReadWrite);
    memory.fill(0, 3 * PAGE, 1); // The fourth page stays absent.
    for seed in 1..4 {
        let (addr, len) = (memory.addr(0), 4 * PAGE as u64);
        rig.space.protect(addr, len, Protection::ReadOnly).unwrap();
        assert_eq!(memory.differences(0, 3 * PAGE, seed), 0);
        rig.space.protect(addr, len, Protection::ReadWrite).unwrap();
        memory.fill(0, 3 * PAGE, seed + 1);
    }
    memory.write(3 * PAGE, 1);
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, 4 * PAGE), 4 * 2048);
    }
    rig.space.check().unwrap();
}

#[test]
fn a_part_of_a_region_can_be_read_only() {
    let (rig, memory) = region(Protection::ReadWrite);
    memory.fill(0, 4 * PAGE, 1);
    rig.space.protect(memory.addr(PAGE), PAGE as u64, Protection::ReadOnly).unwrap();
    memory.fill(0, PAGE, 2);
    memory.fill(2 * PAGE, 2 * PAGE, 2);
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
    // A system call is told instead of a signal.
    let zero = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: the kernel refuses to write there.
    let n =
        unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), memory.at(PAGE).cast(), 1) };
    assert_eq!((n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
}

#[test]
fn the_applications_own_mprotect_is_named() {
    use gmm_core::driver::{Clear, DriverError, Mmu};
    let (rig, memory) = region(Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    // SAFETY: unified memory of this test.
    assert_eq!(unsafe { libc::mprotect(memory.0.cast(), PAGE, libc::PROT_READ) }, 0);
    let page = memory.page(0);
    let mut clear = [Clear { page, frame: rig.frame_of(page).unwrap(), was_empty: false }];
    let partial = rig.cpu.mmu().pmap_clear(&mut clear).unwrap_err();
    let os = DriverError::Os { call: "UFFDIO_MOVE", errno: libc::EINVAL };
    assert_eq!((partial.done, partial.error), (0, os));
    assert_eq!(memory.differences(0, PAGE, 1), 0);
}
