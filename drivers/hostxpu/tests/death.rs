//! A context can end at any moment and in any way: everyone notices, no one hangs, no data of the
//! others is lost.

mod common;

use std::time::{Duration, Instant};

use common::{LONG, Machine, await_death, load};
use gmm_core::PAGE_SIZE;
use gmm_hostxpu::{Context, Death, Error, HostXpuConfig, KernelArgs, Launch};

fn launch(context: &Context, kernel: &str, args: impl KernelArgs) -> Launch {
    let kernel = load(context).kernel(kernel).unwrap();
    // SAFETY: each caller passes what the kernel takes.
    unsafe { context.stream().launch(&kernel, 1, args, &[]).unwrap() }
}

/// How a launch failed.
fn death(launch: &Launch) -> Death {
    match launch.wait_timeout(LONG) {
        Err(Error::Launch { kernel, death }) => {
            assert_eq!(&*kernel, launch.kernel());
            death
        }
        other => panic!("{launch:?}: {other:?}"),
    }
}

#[test]
fn a_wild_access_ends_one_context_and_is_named() {
    let machine = Machine::new();
    let device = machine.xpu(HostXpuConfig::new(8 * PAGE_SIZE));
    let bad = Context::new(&machine.space, &device).unwrap();
    let good = Context::new(&machine.space, &device).unwrap();
    let page = machine.mmap(1);
    launch(&bad, "poke", (page,)).wait().unwrap();
    let bystander = launch(&bad, "forever", (page + 8,));
    machine.await_word(page + 8);
    let wild = launch(&bad, "poke", (0x1234_5678_u64,));
    match death(&wild) {
        Death::WildAccess { kernel, addr, access, .. } => {
            assert_eq!((&*kernel, addr.0), ("poke", 0x1234_5678));
            assert_eq!(access, gmm_core::driver::Access::Write);
        }
        other => panic!("{other}"),
    }
    assert!(matches!(death(&bystander), Death::WildAccess { .. }));
    assert!(matches!(bad.load("any.so"), Err(Error::LibraryNotFound { .. })));
    assert!(matches!(bad.load(common::kernels()), Err(Error::ContextDead(_))));
    launch(&good, "add_one", (page, 1_u64)).wait().unwrap();
    assert_eq!(machine.read(page), 2);
    machine.space.check().unwrap();
}

#[test]
fn signals_of_kernels_are_named() {
    for (kernel, signal) in [("call_abort", 6), ("raise_fpe", 8), ("jump", 11)] {
        let machine = Machine::new();
        let context = machine.context(4);
        // The target of the jump is mapped, but not to be executed.
        let page = machine.mmap(1);
        launch(&context, "poke", (page,)).wait().unwrap();
        match death(&launch(&context, kernel, (page,))) {
            Death::Crash { kernel: name, signal: got, .. } => {
                assert_eq!((&*name, got), (kernel, signal));
            }
            other => panic!("{kernel}: {other}"),
        }
    }
    let machine = Machine::new();
    let overflow = death(&launch(&machine.context(4), "overflow", ()));
    assert!(matches!(overflow, Death::WildAccess { .. }), "{overflow}");
    let exited = death(&launch(&machine.context(4), "call_exit", ()));
    assert!(matches!(exited, Death::Exited { status: 3, .. }), "{exited}");
}

#[test]
fn a_killed_context_leaves_its_data_and_wakes_everyone() {
    let machine = Machine::new();
    let context = machine.context(8);
    let (data, flag) = (machine.mmap(4), machine.mmap(1));
    for page in 0..4 {
        launch(&context, "add_one", (data + page * PAGE_SIZE, 5_u64)).wait().unwrap();
    }
    let launch = launch(&context, "forever", (flag,));
    machine.await_word(flag);
    let waiter = std::thread::spawn(move || death(&launch));
    context.kill();
    let end = waiter.join().unwrap();
    assert!(matches!(end, Death::Killed { signal: 9 }), "{end}");
    for page in 0..4 {
        assert_eq!(machine.read(data + page * PAGE_SIZE + 32), 1);
    }
    machine.space.check().unwrap();
    // Its frames are free for another.
    let next = Context::new(&machine.space, context.device()).unwrap();
    let add = self::launch(&next, "add_one", (data, 5_u64));
    add.wait().unwrap();
    assert_eq!(machine.read(data), 2);
}

/// Killed at many moments of a run that faults all the time.
#[test]
fn killed_in_mid_fault_nothing_hangs_or_is_lost() {
    let machine = Machine::new();
    let device = machine.xpu(HostXpuConfig::new(4 * PAGE_SIZE).cores(3));
    const PAGES: u64 = 8;
    let (data, own) = (machine.mmap(PAGES), machine.mmap(PAGES));
    for page in 0..PAGES {
        machine.write(own + page * PAGE_SIZE, 77 + page);
    }
    for round in 0..12_u64 {
        let context = Context::new(&machine.space, &device).unwrap();
        let kernel = load(&context).kernel("count_pages").unwrap();
        let args = (data, PAGES, 1_000_000_u64, round);
        // SAFETY: the kernel takes a run of pages, rounds and a seed.
        let launch = unsafe { context.stream().launch(&kernel, 3, args, &[]).unwrap() };
        let target = 5 + round * 9;
        while context.counters().faults < target {
            std::thread::yield_now();
        }
        context.kill();
        let end = death(&launch);
        assert!(matches!(end, Death::Killed { signal: 9 }), "{end}");
        for page in 0..PAGES {
            machine.read(data + page * PAGE_SIZE);
            assert_eq!(machine.read(own + page * PAGE_SIZE), 77 + page);
        }
        drop(context);
        machine.space.check().unwrap();
    }
}

/// Stops a child of this process; all its threads have stopped when this returns.
fn stop(pid: i32) {
    // SAFETY: a signal to a child of this test, and the wait for its effect, which leaves the
    // child's end to the one who watches it. A zeroed siginfo is valid.
    unsafe {
        assert_eq!(libc::kill(pid, libc::SIGSTOP), 0);
        let mut info: libc::siginfo_t = core::mem::zeroed();
        assert_eq!(libc::waitid(libc::P_PID, pid as u32, &mut info, libc::WSTOPPED), 0);
    }
}

#[test]
fn a_stopped_worker_is_killed_when_a_clear_is_not_answered() {
    let machine = Machine::new();
    let context = machine.context(4);
    let (page, flag) = (machine.mmap(1), machine.mmap(1));
    launch(&context, "add_one", (page, 1_u64)).wait().unwrap();
    let forever = launch(&context, "forever", (flag,));
    machine.await_word(flag);
    stop(context.pid());
    let start = Instant::now();
    // The page is on the XPU: reading it clears it there.
    assert_eq!(machine.read(page), 1);
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(matches!(death(&forever), Death::Unresponsive { .. }));
    machine.space.check().unwrap();
}

#[test]
fn a_closed_context_fails_what_is_left_of_it() {
    let machine = Machine::new();
    let context = machine.context(4);
    let flag = machine.mmap(1);
    let (stream, module) = (context.stream(), load(&context));
    let forever = launch(&context, "forever", (flag,));
    machine.await_word(flag);
    let pid = context.pid();
    drop(context);
    assert!(matches!(death(&forever), Death::Closed));
    assert!(matches!(module.kernel("poke"), Err(Error::ContextDead(Death::Closed))));
    drop((stream, forever, module));
    // SAFETY: asks whether the process exists.
    assert_eq!(unsafe { libc::kill(pid, 0) }, -1, "the worker is there still");
}

#[test]
fn a_worker_that_hangs_up_and_lives_on_is_ended() {
    let machine = Machine::new();
    let config = HostXpuConfig::new(8 * PAGE_SIZE).replayable_faults(false);
    let context = machine.context_with(config);
    let flag = machine.mmap(1);
    let held = gmm_core::PageRange::covering(gmm_core::VirtAddr(flag), 8).unwrap();
    let kernel = load(&context).kernel("hang_up").unwrap();
    // SAFETY: the kernel takes a flag.
    let launch = unsafe { context.stream().launch(&kernel, 1, (flag,), &[held]).unwrap() };
    assert!(matches!(death(&launch), Death::Disconnected));
    // Nothing is held any more.
    machine.space.munmap(gmm_core::VirtAddr(flag), PAGE_SIZE).unwrap();
}

#[test]
fn a_process_that_a_kernel_forks_has_no_window() {
    let machine = Machine::new();
    let context = machine.context(4);
    let (page, out) = (machine.mmap(1), machine.mmap(1));
    launch(&context, "fork_and_write", (page, out)).wait().unwrap();
    assert_eq!(machine.read(out), 11, "the child was not stopped by SIGSEGV");
    assert_eq!(machine.read(page), 1);
}

#[test]
fn a_fork_of_the_application_leaves_the_context_alone() {
    let machine = Machine::new();
    let context = machine.context(4);
    let page = machine.mmap(1);
    let stream = context.stream();
    let add = load(&context).kernel("add_one").unwrap();
    // SAFETY: the child drops a handle, which does nothing there, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(context);
        // SAFETY: leaves without anything of the test's.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    // SAFETY: the kernel takes words and their number.
    unsafe { stream.launch(&add, 1, (page, 1_u64), &[]).unwrap().wait().unwrap() };
    assert!(context.is_alive());
    assert_eq!(machine.read(page), 1);
}

#[test]
fn the_worker_leaves_when_the_host_is_killed() {
    let exe = std::env::current_exe().unwrap();
    let mut host = std::process::Command::new(exe)
        .args(["--exact", "make_a_context_and_wait", "--nocapture", "--include-ignored"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(host.stdout.take().unwrap()));
    let pid = lines.find_map(|line| line.unwrap().strip_prefix("worker ")?.parse::<i32>().ok());
    host.kill().unwrap();
    host.wait().unwrap();
    let end = Instant::now() + LONG;
    // A process that no one waited for may remain as a zombie of whoever adopted it.
    let lives = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    };
    while lives(pid.expect("the worker's number")) {
        assert!(Instant::now() < end, "the worker lives on");
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "run and killed by another test"]
fn make_a_context_and_wait() {
    let machine = Machine::new();
    let context = machine.context(4);
    // A forked child that lives on has a copy of the socket.
    // SAFETY: the child sleeps and leaves.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: as above.
        unsafe {
            libc::close(1);
            libc::sleep(20);
            libc::_exit(0);
        }
    }
    println!("\nworker {}", context.pid());
    await_death(&context);
}
