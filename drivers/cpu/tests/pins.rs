//! A page that someone outside the manager pins for long: io_uring's registered buffers.

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::*;
use gmm_core::Error;
use gmm_core::driver::{Clear, DriverError, Enter, Mmu, Protection};

const IORING_REGISTER_BUFFERS: u32 = 0;
const IORING_UNREGISTER_BUFFERS: u32 = 1;

/// A ring, or `None` (said aloud) where the kernel has none for us.
fn ring() -> Option<OwnedFd> {
    // `struct io_uring_params`: 120 bytes, all zero for the defaults.
    let mut params = [0_u64; 15];
    // SAFETY: the call fills `params`.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    if fd < 0 {
        eprintln!("SKIPPED: no io_uring here ({})", std::io::Error::last_os_error());
        return None;
    }
    // SAFETY: the kernel has just made it.
    Some(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Pins `len` bytes; `false` (said aloud) if the limit on locked memory forbids it.
fn register(ring: &OwnedFd, memory: Memory, len: usize) -> bool {
    let buffer = libc::iovec { iov_base: memory.0.cast(), iov_len: len };
    // SAFETY: registers one buffer of unified memory, present by now.
    let r = unsafe {
        let (op, one) = (IORING_REGISTER_BUFFERS, 1);
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), op, &raw const buffer, one)
    };
    if r < 0 {
        eprintln!("SKIPPED: can't register a buffer ({})", std::io::Error::last_os_error());
    }
    r == 0
}

fn unregister(ring: &OwnedFd) {
    let none = std::ptr::null::<u8>();
    // SAFETY: takes no argument.
    let r = unsafe {
        let op = IORING_UNREGISTER_BUFFERS;
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), op, none, 0)
    };
    assert_eq!(r, 0);
}

#[test]
fn a_pinned_page_is_busy_for_a_bounded_time_and_fine_afterwards() {
    let Some(ring) = ring() else { return };
    let rig = Rig::new(8);
    let memory = rig.mmap(2, Protection::ReadWrite);
    memory.fill(0, 2 * PAGE, 1);
    if !register(&ring, memory, 65536) {
        return;
    }
    let clear = |n| {
        let page = memory.page(n);
        Clear { page, frame: rig.frame_of(page).unwrap(), was_empty: false }
    };
    let start = Instant::now();
    let partial = rig.cpu.mmu().pmap_clear(&mut [clear(1), clear(0)]).unwrap_err();
    assert_eq!((partial.done, partial.error), (1, DriverError::Busy));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(memory.differences(0, PAGE, 1), 0, "it is as it was");
    memory.fill(0, PAGE, 2);

    unregister(&ring);
    // Whatever holds pins for the ring lets go soon, not at once.
    let mut outcome = Err(DriverError::Busy);
    wait_until("the pin is gone", || {
        outcome = rig.cpu.mmu().pmap_clear(&mut [clear(0)]).map_err(|p| p.error);
        outcome != Err(DriverError::Busy)
    });
    outcome.unwrap();
    for n in 0..2 {
        let Clear { page, frame, .. } = clear(n);
        let enter = Enter::local(page, frame, Protection::ReadWrite);
        rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
    }
    assert_eq!(memory.differences(0, PAGE, 2), 0);
    assert_eq!(memory.differences(PAGE, PAGE, 1), 0);
}

#[test]
fn a_page_of_small_pages_that_is_pinned_in_the_middle_stays_whole() {
    let output = in_child("a_page_of_small_pages_that_is_pinned_in_the_middle_stays_whole", || {
        // SAFETY: sets a flag of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        let Some(ring) = ring() else { return };
        let rig = Rig::new(8);
        let memory = rig.mmap(1, Protection::ReadWrite);
        memory.fill(0, PAGE, 1);
        memory.discard(3 * SMALL, SMALL);
        // The move gets as far as the pin, and must be undone.
        if !register(&ring, Memory(memory.at(256 * SMALL)), SMALL) {
            return;
        }
        let page = memory.page(0);
        let clear = Clear { page, frame: rig.frame_of(page).unwrap(), was_empty: false };
        let partial = rig.cpu.mmu().pmap_clear(&mut [clear]).unwrap_err();
        assert_eq!((partial.done, partial.error), (0, DriverError::Busy));
        assert_eq!(memory.differences(0, 3 * SMALL, 1), 0);
        assert_eq!(memory.read(3 * SMALL + 64), 0);
        assert_eq!(memory.differences(4 * SMALL, PAGE - 4 * SMALL, 1), 0);
        unregister(&ring);
        let mut outcome = Err(DriverError::Busy);
        wait_until("the pin is gone", || {
            outcome = rig.cpu.mmu().pmap_clear(&mut [clear]).map_err(|p| p.error);
            outcome != Err(DriverError::Busy)
        });
        outcome.unwrap();
        let Clear { page, frame, .. } = clear;
        let enter = Enter::local(page, frame, Protection::ReadWrite);
        rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
        assert_eq!(memory.differences(4 * SMALL, PAGE - 4 * SMALL, 1), 0);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.lines().filter(|l| l.contains("SKIPPED")).for_each(|l| eprintln!("{l}"));
}

#[test]
fn the_space_names_a_pinned_page_and_unmaps_it_all_the_same() {
    let Some(ring) = ring() else { return };
    let rig = Rig::new(8);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.write(0, 1);
    if !register(&ring, memory, SMALL) {
        return;
    }
    let discarded = rig.space.discard(memory.addr(0), PAGE as u64);
    assert!(matches!(discarded, Err(Error::PageBusy { .. })), "{discarded:?}");
    assert_eq!(memory.read(0), 1);
    rig.space.munmap(memory.addr(0), PAGE as u64).unwrap();
    // The frame that stayed behind is good for other pages, zeroed.
    let memory = rig.mmap(8, Protection::ReadWrite);
    for page in 0..8 {
        assert_eq!(memory.read(page * PAGE), 0);
        memory.write(page * PAGE, 2);
    }
    rig.space.check().unwrap();
}
