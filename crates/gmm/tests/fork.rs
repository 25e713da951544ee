//! `fork` in the application, with and without `exec`, while XPUs are at work.

mod common;

use std::ffi::CString;
use std::process::Command;

use common::child::*;
use common::*;
use gmm::{Advice, Error, Gmm, MapFlags, PAGE_SIZE, Protection};

const PAGES: usize = 8;

/// A kernel that counts in all pages until it is done, on an XPU with half as many frames.
fn at_work(gmm: &Gmm, memory: Memory, rounds: u64) -> gmm::Launch {
    let xpu = gmm.xpu(1).unwrap();
    let args = (memory.at(8), PAGES, PAGE, rounds, 0_usize, 1_u64);
    let launch = start(&xpu, "count_pages", 2, args);
    wait_until("it is at work", || xpu.context().counters().faults > 4);
    launch
}

fn assert_counted(memory: Memory, rounds: u64) {
    for page in 0..PAGES {
        let at = page * PAGE;
        assert_eq!([8, 16].map(|slot| memory.read_word(at + slot)), [rounds, rounds]);
    }
}

/// The parent's pages still move, and are huge where they were.
fn still_moves(gmm: &Gmm, memory: Memory, was_huge: bool) {
    let xpu = gmm.xpu(1).unwrap();
    for _ in 0..2 {
        memory.touch_on(&xpu, PAGES, true);
        (0..PAGES).for_each(|page| memory.write_word(page * PAGE + 64, page as u64));
    }
    if was_huge {
        let huge = smaps_kib(memory, PAGES * PAGE, "AnonHugePages");
        assert_eq!(huge, (PAGES * PAGE / 1024) as u64, "pages are split");
    }
    check(gmm);
}

/// Whether pages are huge here; says so if they are not.
fn is_huge(memory: Memory) -> bool {
    (0..PAGES).for_each(|page| memory.write(page * PAGE, 0));
    let huge = smaps_kib(memory, PAGES * PAGE, "AnonHugePages") == (PAGES * PAGE / 1024) as u64;
    if !huge {
        eprintln!("SKIPPED: whether pages stay huge; they are not huge here");
    }
    huge
}

#[test]
fn a_forked_child_lives_while_pages_move() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    let memory = mmap(&gmm, PAGES);
    let huge = is_huge(memory);
    const ROUNDS: u64 = 60;
    let launch = at_work(&gmm, memory, ROUNDS);
    let children: Vec<_> = (0..3)
        .map(|_| {
            fork(|| {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
                0
            })
        })
        .collect();
    launch.wait().unwrap();
    still_moves(&gmm, memory, huge);
    for child in children {
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(end_of(child), -libc::SIGKILL);
    }
    (0..PAGES).for_each(|page| memory.fill(page * PAGE, PAGE, 1));
    still_moves(&gmm, memory, huge);
}

#[test]
fn what_a_child_does_with_its_handles_does_nothing_here() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    let memory = mmap(&gmm, PAGES);
    let huge = is_huge(memory);
    const ROUNDS: u64 = 60;
    let launch = at_work(&gmm, memory, ROUNDS);
    let xpu = gmm.xpu(1).unwrap();
    let (other, stream) = (xpu.new_context().unwrap(), xpu.stream().unwrap());
    let square = kernel(&xpu, "square");
    let module = xpu.load("libgmm_kernels.so").unwrap();
    // With a gap between them, or the kernel counts both as one.
    mmap(&gmm, 1).unmap(&gmm, 1);
    let mut buffer = gmm.mmap::<u64>(PAGE / 8).unwrap();
    buffer.fill(7);
    let ours = std::process::id();
    let mut handles = Some((gmm, xpu, other, stream, square, module, buffer, launch));
    let child = fork(|| {
        let (gmm, xpu, other, stream, square, module, buffer, launch) = handles.take().unwrap();
        let is_forked = |error: Error| matches!(error, Error::Forked { owner } if owner == ours);
        let address = buffer.as_ptr().cast::<u8>();
        let flags = MapFlags::XPU_VISIBLE;
        // SAFETY: it is refused.
        let launched = unsafe { stream.launch(&square, 1, (address, 0_usize)) };
        let refused = [
            gmm.mmap::<u8>(1).map(drop).is_err_and(is_forked),
            gmm.mmap_raw(1, Protection::ReadWrite, flags, "").map(drop).is_err_and(is_forked),
            gmm.unmap(address, PAGE_SIZE).is_err_and(is_forked),
            gmm.protect(address, PAGE_SIZE, Protection::ReadOnly).is_err_and(is_forked),
            gmm.advise(address, PAGE_SIZE, Advice::DontNeed, 0).is_err_and(is_forked),
            gmm.xpu(1).map(drop).is_err_and(is_forked),
            xpu.new_context().map(drop).is_err_and(is_forked),
            xpu.load("libgmm_kernels.so").map(drop).is_err_and(is_forked),
            xpu.stream().map(drop).is_err_and(is_forked),
            module.kernel("square").map(drop).is_err_and(is_forked),
            launched.map(drop).is_err_and(is_forked),
        ];
        if let Some(first) = refused.iter().position(|&refused| !refused) {
            return 10 + first as i32;
        }
        drop((launch, buffer, stream, square, module, other, xpu, gmm));
        0
    });
    assert_eq!(end_of(child), 0);
    let (gmm, xpu, other, _, _, _, buffer, launch) = handles.take().unwrap();
    launch.wait().unwrap();
    assert!(xpu.context().is_alive() && other.context().is_alive());
    assert!(buffer.iter().all(|&x| x == 7));
    assert_counted(memory, ROUNDS);
    still_moves(&gmm, memory, huge);
}

#[test]
fn a_child_has_no_unified_memory() {
    let _turn = turn();
    let gmm = machine(4);
    let memory = mmap(&gmm, PAGES);
    memory.fill(0, PAGE, 1);
    // Where the parent's memory lies there is nothing.
    let child = fork(|| {
        // SAFETY: the default action ends the child.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        i32::from(memory.read(0))
    });
    assert_eq!(end_of(child), -libc::SIGSEGV);
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    check(&gmm);
}

#[test]
#[cfg_attr(gmm_tsan, ignore = "the sanitizer allows no new threads after a fork")]
fn a_child_may_make_its_own() {
    let _turn = turn();
    let gmm = machine(4);
    let memory = mmap(&gmm, PAGES);
    memory.fill(0, PAGE, 1);
    let child = fork(|| {
        let own = machine(4);
        let theirs = mmap(&own, 2);
        theirs.fill(0, 2 * PAGE, 3);
        let (xpu, out) = (own.xpu(1).unwrap(), mmap(&own, 1));
        let sum = theirs.sum_on(&xpu, 0, out).unwrap();
        i32::from(sum != sum_of(0, 2 * PAGE, 3))
    });
    assert_eq!(end_of(child), 0);
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    check(&gmm);
}

#[test]
fn programs_that_are_started_do_not_matter() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    let memory = mmap(&gmm, PAGES);
    let huge = is_huge(memory);
    const ROUNDS: u64 = 60;
    let launch = at_work(&gmm, memory, ROUNDS);
    // By `posix_spawn`, and by `fork` and `exec`, which pass on no descriptor of ours.
    let mut spawned = Command::new("sleep").arg("60").spawn().unwrap();
    let script = "ls -l /proc/self/fd | grep -Ec 'userfaultfd|memfd|pidfd|eventfd'";
    let args = ["sh", "-c", script].map(|arg| CString::new(arg).unwrap());
    let forked = fork(|| {
        let args: Vec<_> = args.iter().map(|arg| arg.as_ptr()).chain([std::ptr::null()]).collect();
        // SAFETY: a null-terminated array of C strings; standard output goes nowhere.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::dup2(null, 1);
            libc::execvp(args[0], args.as_ptr());
        }
        98
    });
    assert_eq!(end_of(forked), 1, "grep counted 0 descriptors of ours");
    launch.wait().unwrap();
    assert_counted(memory, ROUNDS);
    still_moves(&gmm, memory, huge);
    spawned.kill().unwrap();
    spawned.wait().unwrap();
    still_moves(&gmm, memory, huge);
}
