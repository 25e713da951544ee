//! With less than all: without huge pages, and with user-mode faults only.

mod common;

use common::*;
use gmm_core::driver::{Clear, Enter, Mmu, Protection};
use gmm_cpu::uffd::AccessKind;

fn assert_done(output: &std::process::Output) {
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success() && out.contains("done"), "{}\n{out}\n{err}", output.status);
    err.lines().filter(|l| l.contains("SKIPPED")).for_each(|l| eprintln!("{l}"));
}

/// What every kernel must do, however slowly.
fn exercise(rig: &Rig) {
    let memory = rig.mmap(4, Protection::ReadWrite);
    memory.fill(0, 4 * PAGE, 1);
    memory.discard(3 * SMALL, SMALL);
    assert_eq!(memory.read(3 * SMALL), 0);
    memory.discard(PAGE, PAGE);
    assert!((PAGE..2 * PAGE).step_by(64).all(|i| memory.read(i) == 0));
    memory.discard(2 * PAGE + 9 * SMALL, SMALL);
    let pages = || (0..4).map(|n| memory.page(n)).map(|p| (p, rig.frame_of(p).unwrap()));
    for _ in 0..3 {
        let mut clears: Vec<_> =
            pages().map(|(page, frame)| Clear { page, frame, was_empty: false }).collect();
        rig.cpu.mmu().pmap_clear(&mut clears).unwrap();
        let protection = Protection::ReadWrite;
        let enters: Vec<_> =
            pages().map(|(page, frame)| Enter::local(page, frame, protection)).collect();
        rig.cpu.mmu().pmap_enter(&enters).unwrap();
        assert_eq!(memory.differences(4 * SMALL, PAGE - 4 * SMALL, 1), 0);
        assert!((PAGE..2 * PAGE).step_by(64).all(|i| memory.read(i) == 0));
        assert_eq!(memory.read(2 * PAGE + 9 * SMALL + 64), 0);
        assert_eq!(memory.differences(3 * PAGE, PAGE, 1), 0);
    }
    rig.space.protect(memory.addr(0), PAGE as u64, Protection::ReadOnly).unwrap();
    assert_eq!(memory.differences(4 * SMALL, PAGE - 4 * SMALL, 1), 0);
    rig.space.munmap(memory.addr(0), 4 * PAGE as u64).unwrap();
    rig.space.check().unwrap();
}

#[test]
fn without_huge_pages_all_is_right_and_slow() {
    let output = in_child("without_huge_pages_all_is_right_and_slow", || {
        // SAFETY: sets a flag of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        let rig = Rig::new(8);
        exercise(&rig);
        let memory = rig.mmap(1, Protection::ReadWrite);
        memory.fill(0, PAGE, 1);
        assert_eq!(huge_kib(memory, PAGE), 0);
        println!("done");
    });
    assert_done(&output);
}

#[test]
fn an_ordinary_user_gets_user_mode_faults_and_is_told() {
    let output = in_child("an_ordinary_user_gets_user_mode_faults_and_is_told", || {
        // SAFETY: asks who we are; gives up root for good, in this child; `nobody` is 65534. The
        // process must be dumpable for its own /proc files.
        unsafe {
            if libc::geteuid() == 0 {
                assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
                assert_eq!(libc::setgid(65534), 0);
                assert_eq!(libc::setuid(65534), 0);
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
            }
        }
        let rig = Rig::new(8);
        exercise(&rig);
        if rig.cpu.uffd_access() == AccessKind::UserModeOnly {
            let memory = rig.mmap(1, Protection::ReadWrite);
            let zero = std::fs::File::open("/dev/zero").unwrap();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&zero);
            // SAFETY: the kernel may not fault the page in, and says EFAULT.
            let n = unsafe { libc::read(fd, memory.0.cast(), 1) };
            let errno = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((n, errno), (-1, Some(libc::EFAULT)));
            memory.write(0, 1);
            // SAFETY: now it is present.
            assert_eq!(unsafe { libc::read(fd, memory.0.cast(), 1) }, 1);
        } else {
            let kind = rig.cpu.uffd_access();
            eprintln!("SKIPPED: user-mode faults only; anyone may serve all here ({kind:?})");
        }
        println!("done");
    });
    assert_done(&output);
}
