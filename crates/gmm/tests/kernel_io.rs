//! The kernel uses unified memory, too: direct I/O, `read(2)`, and buffers that are registered
//! with io_uring, which pins them.

mod common;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::*;
use gmm::hostxpu::Death;
use gmm::{Advice, Error, PAGE_SIZE, PageState, VirtAddr};

fn scratch(name: &str) -> PathBuf {
    let name = format!("kernel-io-{name}-{}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Unified memory as what system calls take.
fn bytes(memory: Memory, len: usize) -> &'static mut [u8] {
    // SAFETY: a region of the test, used here and there in turn.
    unsafe { std::slice::from_raw_parts_mut(memory.at(0), len) }
}

#[test]
fn direct_io_out_of_pages_that_live_on_the_xpu() {
    let _turn = turn();
    let gmm = machine(8);
    const PAGES: usize = 4;
    let memory = mmap(&gmm, PAGES);
    let xpu = gmm.xpu(1).unwrap();
    let path = scratch("direct");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let mut file = match options.open(&path) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("SKIPPED: direct I/O; {} does not have it: {error}", path.display());
            return;
        }
    };
    for round in 1..=3_u64 {
        let args = (memory.at(8), PAGES, PAGE, round, 0_usize, round);
        run(&xpu, "count_pages", 1, args).unwrap();
        memory.touch_on(&xpu, PAGES, true);
        assert!((0..PAGES).all(|page| memory.nodes(&gmm, page * PAGE) == [1]));
        file.rewind().unwrap();
        file.write_all(bytes(memory, PAGES * PAGE)).unwrap();
        // While the file has them, they move again.
        memory.touch_on(&xpu, PAGES, false);
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len(), PAGES * PAGE);
        let word = |at: usize| u64::from_ne_bytes(written[at..at + 8].try_into().unwrap());
        assert!((0..PAGES * 512).all(|i| word(i * SMALL) == i as u64));
        let counted = round * (round + 1) / 2;
        assert!((0..PAGES).all(|page| word(page * PAGE + 8) == counted));
    }
    let _ = std::fs::remove_file(path);
    check(&gmm);
}

#[test]
fn read_into_fresh_pages_and_into_pages_that_live_on_the_xpu() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(8);
    const PAGES: usize = 4;
    let (memory, out) = (mmap(&gmm, PAGES), mmap(&gmm, 1));
    let path = scratch("read");
    // What is read lands where it was written from, as lists are made of addresses.
    memory.fill(0, PAGES * PAGE, 1);
    std::fs::write(&path, bytes(memory, PAGES * PAGE)).unwrap();
    let xpu = gmm.xpu(1).unwrap();
    let mut file = File::open(&path).unwrap();
    for place in ["fresh", "on the XPU", "shared", "on the CPU"] {
        match place {
            "fresh" => {
                let len = (PAGES * PAGE) as u64;
                gmm.advise(memory.at(0), len, Advice::DontNeed, 0).unwrap();
            }
            "on the XPU" => memory.touch_on(&xpu, PAGES, true),
            "shared" => {
                (0..PAGES * PAGE).step_by(SMALL).for_each(|at| memory.write(at + 9, 5));
                memory.touch_on(&xpu, PAGES, false);
                assert_eq!(memory.state(&gmm, 0), PageState::Shared);
            }
            _ => (0..PAGES * PAGE).step_by(SMALL).for_each(|at| memory.write(at + 9, 5)),
        }
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_exact(bytes(memory, PAGES * PAGE)).unwrap();
        let sum = memory.sum_on(&xpu, 0, out).unwrap();
        assert_eq!(sum, sum_of(0, PAGES * PAGE, 1), "{place}");
        assert_eq!(memory.differences(0, PAGES * PAGE, 1), 0, "{place}");
    }
    let _ = std::fs::remove_file(path);
    check(&gmm);
}

/// An io_uring and at most one buffer registered with it.
struct Ring(OwnedFd);

impl Ring {
    /// `None`, said aloud, where the kernel has none for us.
    fn new() -> Option<Self> {
        // `struct io_uring_params`: 120 bytes, all zero for the defaults.
        let mut params = [0_u64; 15];
        // SAFETY: the call fills `params`.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
        if fd < 0 {
            eprintln!("SKIPPED: no io_uring here: {}", std::io::Error::last_os_error());
            return None;
        }
        // SAFETY: the kernel has just made it.
        Some(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    fn call(&self, operation: u32, argument: *const libc::iovec, n: u32) -> bool {
        let fd = self.0.as_raw_fd();
        // SAFETY: the argument is a buffer of unified memory, or none.
        let r = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, operation, argument, n) };
        r == 0
    }

    /// Pins memory; `false`, said aloud, where the limit on locked memory forbids it.
    fn register(&self, memory: Memory, len: usize) -> bool {
        let buffer = libc::iovec { iov_base: memory.at(0).cast(), iov_len: len };
        let done = self.call(0, &raw const buffer, 1);
        if !done {
            eprintln!("SKIPPED: can't register a buffer: {}", std::io::Error::last_os_error());
        }
        done
    }

    fn unregister(&self) {
        assert!(self.call(1, std::ptr::null(), 0));
    }
}

#[test]
fn a_buffer_registered_with_io_uring_is_a_named_error_and_fine_afterwards() {
    let Some(_turn) = turn_with_faults() else { return };
    let Some(ring) = Ring::new() else { return };
    let gmm = machine(8);
    let (memory, out) = (mmap(&gmm, 3), mmap(&gmm, 1));
    memory.fill(0, 3 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    let other = xpu.new_context().unwrap();
    // Registering faults its pages in: this one comes from the XPU.
    memory.from(PAGE).touch_on(&xpu, 1, false);
    if !ring.register(memory.from(PAGE), 2 * SMALL) {
        return;
    }
    let pinned = VirtAddr(memory.addr(PAGE));
    let begun = Instant::now();
    let (kernel, death) = death_of(run(&xpu, "touch", 1, (memory.at(0), 3 * PAGE, false)));
    assert!(begun.elapsed() < Duration::from_secs(60), "it is bounded");
    assert_eq!(kernel, "touch");
    let Death::FaultFailed { addr, cause, .. } = &death else { panic!("{death:?}") };
    assert_eq!(addr.page(), pinned.page());
    let busy = gmm_core::Error::PageBusy { addr: pinned, node: gmm::NodeId(0) };
    assert_eq!(*cause, busy);
    let text = death.to_string();
    let named = [format!("{pinned}"), "node 0".into(), "pinned".into(), "io_uring".into()];
    assert!(named.iter().all(|n: &String| text.contains(n)), "{text}");
    // So it is by hint; and the data is there for the CPU, for reading and writing.
    for (advice, node) in [(Advice::WillNeed, 1), (Advice::DontNeed, 0)] {
        let refused = gmm.advise(memory.at(PAGE), PAGE_SIZE, advice, node);
        let is_busy = matches!(&refused, Err(Error::Manager(error)) if *error == busy);
        assert!(is_busy, "{refused:?}");
    }
    assert_eq!(memory.differences(0, 3 * PAGE, 1), 0);
    memory.fill(0, 3 * PAGE, 2);
    // The neighbours are of use to XPUs.
    for page in [0, 2] {
        (0..3).for_each(|page| memory.fill(page * PAGE, PAGE, 2));
        let sum = memory.sum_on(&other, page * PAGE, out).unwrap();
        assert_eq!(sum, sum_of(page * PAGE, PAGE, 2));
    }

    ring.unregister();
    // Whatever holds the pins for the ring lets go soon, not at once.
    wait_until("the pin is gone", || {
        gmm.advise(memory.at(PAGE), PAGE_SIZE, Advice::WillNeed, 1).is_ok()
    });
    let xpu = gmm.xpu(1).unwrap();
    for page in 0..3 {
        let sum = memory.sum_on(&xpu, page * PAGE, out).unwrap();
        assert_eq!(sum, sum_of(page * PAGE, PAGE, 2));
        memory.from(page * PAGE).touch_on(&other, 1, true);
    }
    assert!((0..3 * 512).all(|i| memory.read_word(i * SMALL) == (i % 512) as u64));
    check(&gmm);
}

#[test]
fn a_pinned_page_can_be_unmapped() {
    let _turn = turn();
    let Some(ring) = Ring::new() else { return };
    let gmm = machine(8);
    let memory = mmap(&gmm, 2);
    memory.fill(0, 2 * PAGE, 1);
    if !ring.register(memory, PAGE) {
        return;
    }
    memory.unmap(&gmm, 2);
    assert!(gmm.regions().is_empty() && !memory.is_readable(0));
    // Its frame serves others, zeroed.
    let (next, xpu) = (mmap(&gmm, 6), gmm.xpu(1).unwrap());
    assert_eq!(next.not_zero(0, 6 * PAGE), 0);
    next.touch_on(&xpu, 6, true);
    assert!((0..6 * 512).all(|i| next.read_word(i * SMALL) == i as u64));
    ring.unregister();
    check(&gmm);
}
