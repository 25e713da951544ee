//! A context can be killed at any moment. Nothing hangs, the launch says so, and no data is lost
//! that was not just being written.

mod common;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use gmm::hostxpu::Death;
use gmm::{Gmm, NodeId, PageState, Xpu};

const PAGES: usize = 12;
/// Where in each page kernels count, beyond the pattern that only the CPU writes.
const SLOTS: usize = PAGE - 4096;

fn kill(xpu: &Xpu, signal: i32) {
    // SAFETY: the worker of a context of this test.
    unsafe { libc::kill(xpu.context().pid(), signal) };
}

/// Counts in each page's slots: two indices, in the slots from `slot` on.
fn count(xpu: &Xpu, memory: Memory, rounds: u64, slot: usize, seed: u64) -> gmm::Launch {
    let args = (memory.at(SLOTS), PAGES, PAGE, rounds, slot, seed);
    start(xpu, "count_pages", 2, args)
}

/// Patterns in all pages but for their last 4 KiB.
fn fill(memory: Memory) {
    (0..PAGES).for_each(|page| memory.fill(page * PAGE, SLOTS, page as u64));
}

fn assert_intact(memory: Memory) {
    for page in 0..PAGES {
        assert_eq!(memory.differences(page * PAGE, SLOTS, page as u64), 0, "page {page}");
    }
}

#[test]
fn killed_in_mid_fault_at_random_moments() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = Gmm::builder().xpu(xpu_of(5)).xpu(xpu_of(5)).build().unwrap();
    let memory = mmap(&gmm, PAGES);
    fill(memory);
    let bystander = gmm.xpu(2).unwrap();
    let mut random = Random::new(2024);
    const KILLS: u64 = 40;
    const ROUNDS: u64 = 1 << 40;
    let (mut killed, mut counted) = (0, 0);
    for i in 0..KILLS {
        let victim = gmm.xpu(1).unwrap();
        // Each page has more than the XPU's frames: the kernel is nearly always in a fault.
        let launch = count(&victim, memory, ROUNDS, 0, i);
        let other = count(&bystander, memory, 3, 2, i);
        // After a number of faults that chance decides (so the kill is somewhere in the next), or
        // after a while.
        if random.below(4) > 0 {
            let wanted = random.below(60);
            wait_until("faults", || victim.context().counters().faults >= wanted);
        }
        std::thread::sleep(Duration::from_micros(random.below(2000)));
        match random.below(2) {
            0 => kill(&victim, libc::SIGKILL),
            _ => victim.context().kill(),
        }
        let (kernel, death) = death_of(launch.wait());
        assert_eq!(kernel, "count_pages");
        assert!(matches!(death, Death::Killed { signal: libc::SIGKILL }), "{death:?}");
        killed += 1;
        other.wait().unwrap();
        counted += 3;
        if random.below(3) == 0 {
            assert_intact(memory);
        }
        for page in 0..PAGES {
            let at = page * PAGE + SLOTS;
            assert_eq!([16, 24].map(|slot| memory.read_word(at + slot)), [counted, counted]);
        }
    }
    assert_eq!(killed, KILLS);
    assert_intact(memory);
    let counts = (0..PAGES).map(|page| memory.read_word(page * PAGE + SLOTS));
    assert!(counts.sum::<u64>() > 0, "the kernels that were killed had done something");
    check(&gmm);
    assert_eq!(gmm.snapshot().nodes[1].in_transit_frames, 0);
}

#[test]
fn what_lies_in_the_frames_of_a_dead_context_is_still_there() {
    let _turn = turn();
    let gmm = machine(8);
    let memory = mmap(&gmm, 4);
    let xpu = gmm.xpu(1).unwrap();
    memory.touch_on(&xpu, 4, true);
    let endless = start(&xpu, "spin", 1, (0_u64, u64::MAX, 0_u64));
    kill(&xpu, libc::SIGKILL);
    let (_, death) = death_of(endless.wait());
    assert!(matches!(death, Death::Killed { signal: libc::SIGKILL }), "{death:?}");
    wait_until("its mappings are gone", || memory.info(&gmm, 0).mapped.is_empty());
    let on_xpu = PageState::Exclusive(NodeId(1));
    assert!((0..4).all(|page| memory.state(&gmm, page * PAGE) == on_xpu), "only there");
    let piece = |i: usize| memory.read_word(i * SMALL);
    assert!((0..4 * PAGE / SMALL).all(|i| piece(i) == i as u64));
    // Its frames are of use to the next context.
    let next = gmm.xpu(1).unwrap();
    assert_ne!(next.context().pid(), xpu.context().pid());
    memory.touch_on(&next, 4, true);
    check(&gmm);
}

#[test]
fn a_stopped_worker_does_not_keep_the_cpu_from_its_page() {
    let _turn = turn();
    let gmm = machine(8);
    let memory = mmap(&gmm, 2);
    let xpu = gmm.xpu(1).unwrap();
    memory.touch_on(&xpu, 2, true);
    let endless = start(&xpu, "spin", 1, (0_u64, u64::MAX, 0_u64));
    kill(&xpu, libc::SIGSTOP);
    wait_until("the worker has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", xpu.context().pid()));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    });
    let begun = Instant::now();
    let piece = |i: usize| memory.read_word(i * SMALL);
    assert!((0..2 * PAGE / SMALL).all(|i| piece(i) == i as u64));
    assert!(begun.elapsed() < Duration::from_secs(30), "two seconds, and what a busy machine adds");
    let (_, death) = death_of(endless.wait());
    assert!(matches!(death, Death::Unresponsive { .. }), "{death:?}");
    memory.touch_on(&gmm.xpu(1).unwrap(), 2, true);
    check(&gmm);
}

#[test]
fn hints_are_served_while_contexts_die() {
    let _turn = turn();
    let gmm = machine(8);
    let memory = mmap(&gmm, 4);
    memory.fill(0, 4 * PAGE, 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = SetOnDrop(&done);
            for i in 0..40 {
                let xpu = gmm.xpu(1).unwrap();
                let launch = start(&xpu, "touch", 4, (memory.at(0), 4 * PAGE, false));
                if i % 2 == 0 {
                    kill(&xpu, libc::SIGKILL);
                    // It may have completed before.
                    let _ = launch.wait();
                    wait_until("its end is noticed", || !xpu.context().is_alive());
                } else {
                    drop(xpu.new_context().unwrap());
                    launch.wait().unwrap();
                }
            }
        });
        while !done.load(Ordering::SeqCst) {
            for node in [1, 0] {
                let len = 4 * gmm::PAGE_SIZE;
                gmm.advise(memory.at(0), len, gmm::Advice::WillNeed, node).unwrap();
            }
        }
    });
    assert_eq!(memory.differences(0, 4 * PAGE, 1), 0);
    check(&gmm);
}

#[test]
fn everything_may_be_dropped_with_launches_running_in_any_order() {
    let Some(_turn) = turn_with_faults() else { return };
    let mut random = Random::new(5);
    for round in 0..24 {
        let gmm = Gmm::builder().xpu(xpu_of(4)).xpu(xpu_of(4)).build().unwrap();
        let (one, two) = (gmm.xpu(1).unwrap(), gmm.xpu(2).unwrap());
        let extra = one.new_context().unwrap();
        let mut buffer = gmm.mmap::<u64>(PAGES * PAGE / 8).unwrap();
        buffer[0] = round;
        let memory = Memory(buffer.as_mut_ptr().cast());
        let launches = [&one, &two, &extra].map(|xpu| count(xpu, memory, 1 << 40, 0, round));
        let stream = one.stream().unwrap();
        let kernel = kernel(&one, "square");
        wait_until("all are at work", || {
            [&one, &two, &extra].iter().all(|xpu| xpu.context().counters().faults > 0)
        });
        let mut parts: Vec<Box<dyn Any>> = vec![
            Box::new(gmm),
            Box::new(one),
            Box::new(two),
            Box::new(extra),
            Box::new(buffer),
            Box::new(stream),
            Box::new(kernel),
        ];
        parts.extend(launches.map(|launch| Box::new(launch) as Box<dyn Any>));
        while !parts.is_empty() {
            drop(parts.swap_remove(random.below(parts.len() as u64) as usize));
        }
        // The address range is free again: all of it went.
        assert!(!memory.is_readable(0));
    }
    let mut status = 0;
    // SAFETY: asks for any child that is left, without waiting.
    let left = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    assert_eq!(left, -1, "a worker is left");
}

#[test]
fn a_dropped_launch_goes_on_and_its_stream_keeps_its_order() {
    let _turn = turn();
    let gmm = machine(8);
    let mut data = gmm.mmap::<f32>(3 * PAGE / 4).unwrap();
    data.fill(3.0);
    let xpu = gmm.xpu(1).unwrap();
    let (stream, square) = (xpu.stream().unwrap(), kernel(&xpu, "square"));
    let args = (data.as_mut_ptr(), data.len());
    // SAFETY: `data` is used again after the last has completed.
    unsafe {
        drop(stream.launch(&square, 7, args).unwrap());
        stream.launch(&square, 3, args).unwrap().wait().unwrap();
    }
    assert!(data.iter().all(|x| *x == 81.0));
}
