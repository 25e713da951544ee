//! `fork` in the application: window and pool stay with the parent, and so do the pages.

mod common;

use common::*;
use gmm_core::driver::{Clear, Enter, Mmu, Protection};

/// Forks; the child runs `body` and ends with its result. Gives the child's wait status.
fn fork(body: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child only drops handles, touches memory and ends; glibc keeps its allocator
    // usable in the child.
    match unsafe { libc::fork() } {
        0 => {
            let code = body();
            // SAFETY: ends the child without running the test harness' exit handlers.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn take_out(rig: &Rig, memory: Memory, n: usize) {
    let page = memory.page(n);
    let frame = rig.frame_of(page).unwrap();
    rig.cpu.mmu().pmap_clear(&mut [Clear { page, frame, was_empty: false }]).unwrap();
}

fn bring_in(rig: &Rig, memory: Memory, n: usize) {
    let page = memory.page(n);
    let frame = rig.frame_of(page).unwrap();
    let enter = Enter::local(page, frame, Protection::ReadWrite);
    rig.cpu.mmu().pmap_enter(&[enter]).unwrap();
}

/// Moves every page out and in, which a page shared with a child would refuse.
fn all_pages_move(rig: &Rig, memory: Memory, pages: usize) {
    for n in 0..pages {
        take_out(rig, memory, n);
        bring_in(rig, memory, n);
    }
}

#[test]
fn pages_move_while_a_child_lives_and_after_it() {
    let rig = Rig::new(8);
    let memory = rig.mmap(4, Protection::ReadWrite);
    memory.fill(0, 3 * PAGE, 1);
    take_out(&rig, memory, 1); // Its frame is in the pool when the child is made.
    let child = fork(|| {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
        0
    });
    bring_in(&rig, memory, 1);
    all_pages_move(&rig, memory, 3);
    memory.write(3 * PAGE, 1); // A fault is served meanwhile.
    // SAFETY: our own child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(libc::WIFSIGNALED(wait(child)));
    all_pages_move(&rig, memory, 4);
    assert_eq!(memory.differences(0, 3 * PAGE, 1), 0);
}

#[test]
fn a_child_has_no_unified_memory() {
    let rig = Rig::new(8);
    let memory = rig.mmap(1, Protection::ReadWrite);
    memory.write(0, 1);
    let child = fork(|| {
        // SAFETY: the default action ends the child.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        i32::from(memory.read(0))
    });
    let status = wait(child);
    assert!(libc::WIFSIGNALED(status), "{status:#x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}

#[test]
fn a_childs_drops_do_nothing() {
    let rig = Rig::new(8);
    let memory = rig.mmap(3, Protection::ReadWrite);
    memory.fill(0, PAGE, 1);
    let window = memory.0;
    let mut rig = Some(rig);
    let child = fork(|| {
        // Something of the child's own where the parent has its window.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: new memory, in the child.
        let own = unsafe { libc::mmap(window.cast(), 4096, 3, flags, -1, 0) };
        if own != window.cast() {
            return 1;
        }
        Memory(window).write(0, 42);
        drop(rig.take());
        if Memory(window).read(0) == 42 { 0 } else { 2 }
    });
    let status = wait(child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0);
    // The parent's handlers still serve, and its memory is still there.
    memory.fill(PAGE, PAGE, 2);
    assert_eq!((memory.differences(0, PAGE, 1), memory.differences(PAGE, PAGE, 2)), (0, 0));
    all_pages_move(rig.as_ref().unwrap(), memory, 2);
    drop(rig);
}

#[test]
fn a_program_that_was_started_does_not_matter() {
    let rig = Rig::new(8);
    let memory = rig.mmap(2, Protection::ReadWrite);
    memory.fill(0, 2 * PAGE, 1);
    // By `posix_spawn`, then by `fork` and `exec`, which inherits no descriptor of ours.
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    all_pages_move(&rig, memory, 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let child = fork(|| {
        let args = [
            c"sh".as_ptr(),
            c"-c".as_ptr(),
            c"ls -l /proc/self/fd | grep -c userfaultfd".as_ptr(),
            std::ptr::null(),
        ];
        // SAFETY: a null-terminated array of C strings; standard output goes nowhere.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::dup2(null, 1);
            libc::execvp(c"sh".as_ptr(), args.as_ptr());
        }
        99
    });
    let status = wait(child);
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 1, "grep found no userfaultfd");
    all_pages_move(&rig, memory, 2);
    assert_eq!(memory.differences(0, 2 * PAGE, 1), 0);
}
