//! System calls on unified memory: they fault pages in as loads do.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use common::*;
use gmm_core::driver::{Clear, Mmu, Protection};
use gmm_cpu::uffd::AccessKind;

/// Unified memory as a slice, for the standard library's calls.
fn slice(memory: Memory, len: usize) -> &'static mut [u8] {
    // SAFETY: the region outlives its test's use of it, and nothing else refers to it.
    unsafe { std::slice::from_raw_parts_mut(memory.0, len) }
}

fn kernel_faults_are_served(rig: &Rig) -> bool {
    let served = rig.cpu.uffd_access() != AccessKind::UserModeOnly;
    if !served {
        eprintln!("SKIPPED: only user-mode faults may be served here");
    }
    served
}

#[test]
fn read_into_absent_pages() {
    let rig = Rig::new(8);
    if !kernel_faults_are_served(&rig) {
        return;
    }
    let memory = rig.mmap(3, Protection::ReadWrite);
    let mut source = scratch("read");
    let bytes: Vec<u8> = (0..3 * PAGE).map(|i| (i / 511) as u8).collect();
    source.write_all(&bytes).unwrap();
    let mut source = File::open(path("read")).unwrap();
    source.read_exact(slice(memory, 3 * PAGE)).unwrap();
    assert!(slice(memory, 3 * PAGE) == bytes);
    std::fs::remove_file(path("read")).unwrap();
}

#[test]
fn direct_io_out_of_unified_pages_which_move_afterwards() {
    let rig = Rig::new(8);
    if !kernel_faults_are_served(&rig) {
        return;
    }
    let memory = rig.mmap(2, Protection::ReadWrite);
    memory.fill(0, PAGE, 9); // The second page is absent: direct I/O faults it in.
    let mut options = File::options();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let mut file = match options.open(path("direct")) {
        Ok(file) => file,
        Err(e) => return eprintln!("SKIPPED: this file system has no direct I/O ({e})"),
    };
    file.write_all(slice(memory, 2 * PAGE)).unwrap();
    let written = std::fs::read(path("direct")).unwrap();
    assert!(written[..PAGE] == *slice(memory, PAGE));
    assert!(written[PAGE..].iter().all(|&b| b == 0));
    for n in 0..2 {
        let page = memory.page(n);
        let frame = rig.frame_of(page).unwrap();
        rig.cpu.mmu().pmap_clear(&mut [Clear { page, frame, was_empty: false }]).unwrap();
    }
    std::fs::remove_file(path("direct")).unwrap();
}

#[test]
fn a_futex_and_a_pipe_work_on_unified_memory() {
    let rig = Rig::new(8);
    if !kernel_faults_are_served(&rig) {
        return;
    }
    let memory = rig.mmap(2, Protection::ReadWrite);
    // SAFETY: a word of unified memory that is absent: it is zero, so waiting for 1 returns.
    let r = unsafe {
        libc::syscall(libc::SYS_futex, memory.at(PAGE), libc::FUTEX_WAIT, 1, std::ptr::null::<u8>())
    };
    assert_eq!((r, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EAGAIN)));
    let (mut reader, writer) = std::io::pipe().unwrap();
    (&writer).write_all(b"through unified memory").unwrap();
    reader.read_exact(&mut slice(memory, 22)[..]).unwrap();
    // SAFETY: writes from unified memory.
    assert_eq!(unsafe { libc::write(writer.as_raw_fd(), memory.0.cast(), 22) }, 22);
    let mut back = [0; 22];
    reader.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"through unified memory");
}

fn path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("gmm-cpu-{name}-{}", std::process::id()))
}

fn scratch(name: &str) -> File {
    File::create(path(name)).unwrap()
}
