//! A fault that can't be served is SIGBUS, not a hang; and the page is usable again later.

mod common;

use std::io::PipeWriter;
use std::os::fd::AsRawFd;

use common::*;
use gmm_core::driver::Protection;

/// More pages than frames, all frames taken: the page after is the first that can't be served.
fn full(frames: usize) -> (Rig, Memory) {
    let rig = Rig::with_window(frames as u32, frames as u64 + 2);
    let memory = rig.mmap(frames + 2, Protection::ReadWrite);
    (0..frames).for_each(|n| memory.write(n * PAGE, n as u8 + 1));
    (rig, memory)
}

/// Whether the kernel can read a byte there, which is told by an error instead of a signal.
fn is_readable(memory: Memory, offset: usize, pipe: &PipeWriter) -> bool {
    // SAFETY: the kernel reads the byte, or says EFAULT.
    let n = unsafe { libc::write(pipe.as_raw_fd(), memory.at(offset).cast(), 1) };
    n == 1
}

#[test]
fn a_fault_that_cannot_be_served_is_a_signal() {
    let output = in_child("a_fault_that_cannot_be_served_is_a_signal", || {
        let (_rig, memory) = full(4);
        report_signal(libc::SIGBUS);
        memory.write(4 * PAGE + 5, 1);
    });
    assert_eq!(output.status.code(), Some(40), "{output:?}");
}

#[test]
fn poison_lasts_until_the_page_is_served() {
    let (rig, memory) = full(4);
    let (_reader, pipe) = std::io::pipe().unwrap();
    assert!(is_readable(memory, 0, &pipe));
    assert!(!is_readable(memory, 4 * PAGE, &pipe));
    assert!(!is_readable(memory, 4 * PAGE + SMALL, &pipe), "all of the page is poisoned");
    assert!(rig.space.inspect(memory.addr(4 * PAGE)).unwrap().poisoned);

    rig.space.discard(memory.addr(0), PAGE as u64).unwrap();
    let host = gmm_core::NodeId::HOST;
    rig.space.prefetch(memory.addr(4 * PAGE), PAGE as u64, host).unwrap();
    assert!(is_readable(memory, 4 * PAGE, &pipe));
    memory.fill(4 * PAGE, PAGE, 1);
    assert_eq!(memory.differences(4 * PAGE, PAGE, 1), 0);
    assert!(!rig.space.inspect(memory.addr(4 * PAGE)).unwrap().poisoned);
    if huge_pages_work() {
        assert_eq!(huge_kib(memory, 6 * PAGE), 4 * 2048, "it is huge all the same");
    }
    (1..4).for_each(|n| assert_eq!(memory.read(n * PAGE), n as u8 + 1));
    rig.space.check().unwrap();
}

#[test]
fn poison_goes_with_its_region() {
    let (rig, memory) = full(4);
    let (_reader, pipe) = std::io::pipe().unwrap();
    assert!(!is_readable(memory, 4 * PAGE, &pipe));
    rig.space.munmap(memory.addr(0), 6 * PAGE as u64).unwrap();
    let again = rig.mmap(6, Protection::ReadWrite);
    assert_eq!(again.0, memory.0, "the same addresses are used again");
    assert_eq!(again.read(4 * PAGE), 0);
    again.write(4 * PAGE, 1);
    rig.space.discard(again.addr(4 * PAGE), PAGE as u64).unwrap();
    assert_eq!(again.read(4 * PAGE), 0);
}
