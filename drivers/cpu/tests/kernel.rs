//! Host frames are ordinary anonymous memory: the kernel's accounting, migration and swap work.

mod common;

use common::*;
use gmm_core::driver::{Clear, Mmu, Protection};

#[test]
fn resident_pages_are_anonymous_huge_memory() {
    let rig = Rig::new(16);
    let memory = rig.mmap(8, Protection::ReadWrite);
    memory.fill(0, 8 * PAGE, 1);
    let (start, len) = (memory.0 as usize, 8 * PAGE);
    assert_eq!(smaps_kib(start, len, "Rss"), 8 * 2048);
    assert_eq!(smaps_kib(start, len, "Anonymous"), 8 * 2048);
    assert_eq!(smaps_kib(start, len, "Shared_Dirty"), 0);
    assert_eq!(smaps_kib(start, len, "Locked"), 0);
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, len), 8 * 2048);
    }
    rig.space.munmap(memory.addr(0), len as u64).unwrap();
}

#[test]
fn the_kernel_may_move_a_page_to_other_memory() {
    let rig = Rig::new(4);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    let (mut at, node, mut status) = (memory.0, 0_i32, -1_i32);
    // SAFETY: asks for one page of unified memory to be on node 0.
    let r = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, 1, &raw mut at, &raw const node, &raw mut status, 2)
    };
    if r < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        return eprintln!("SKIPPED: this kernel has no page migration by request");
    }
    assert_eq!((r, status), (0, 0), "the page is on node 0");
    assert_eq!(memory.differences(0, PAGE, 1), 0);
}

#[test]
fn the_kernel_may_swap_a_page_out() {
    if gmm_cpu::probe::swap_total_bytes().unwrap_or(0) < 64 << 20 {
        return eprintln!("SKIPPED: this machine has no swap space");
    }
    let rig = Rig::new(4);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    memory.advise(0, PAGE, libc::MADV_PAGEOUT).unwrap();
    assert!(smaps_kib(memory.0 as usize, PAGE, "Swap") > 0, "some of it is swapped out");
    // It moves as it is, and comes back by touching.
    let page = memory.page(0);
    let frame = rig.frame_of(page).unwrap();
    let mut clear = [Clear { page, frame, was_empty: false }];
    rig.cpu.mmu().pmap_clear(&mut clear).unwrap();
    assert!(!clear[0].was_empty);
    let enter = gmm_core::driver::Enter::local(page, frame, Protection::ReadWrite);
    rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
    assert_eq!(memory.differences(0, PAGE, 1), 0);
}

#[test]
fn the_kernel_may_split_a_page() {
    let rig = Rig::new(4);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    // Advice on a part splits the mapping, as the kernel does under pressure.
    memory.advise(16 * SMALL, SMALL, libc::MADV_PAGEOUT).unwrap();
    memory.advise(32 * SMALL, SMALL, libc::MADV_COLD).unwrap();
    let page = memory.page(0);
    let frame = rig.frame_of(page).unwrap();
    for _ in 0..2 {
        let mut clear = [Clear { page, frame, was_empty: false }];
        rig.cpu.mmu().pmap_clear(&mut clear).unwrap();
        let enter = gmm_core::driver::Enter::local(page, frame, Protection::ReadWrite);
        rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
        assert_eq!(memory.differences(0, PAGE, 1), 0);
    }
    if huge_pages_work() {
        wait_until("the page is healed", || {
            let mut clear = [Clear { page, frame, was_empty: false }];
            rig.cpu.mmu().pmap_clear(&mut clear).unwrap();
            let enter = gmm_core::driver::Enter::local(page, frame, Protection::ReadWrite);
            rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
            huge_kib(memory, PAGE) == 2048
        });
        assert_eq!(memory.differences(0, PAGE, 1), 0);
    }
}
