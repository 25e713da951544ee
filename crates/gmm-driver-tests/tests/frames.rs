//! Frames: which are taken when, and what becomes of them when calls fail.
#![cfg(not(shuttle))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gmm_core::driver::{DriverError, Protection};
use gmm_core::{Error, PAGE_SIZE};
use gmm_driver_tests::array::{AccessError, Call, DeviceOptions, Failure, Trigger};
use gmm_driver_tests::{World, word};

const A: usize = 1;
const B: usize = 2;

/// Two XPUs that copy to each other by way of host memory, which comes frame by frame.
fn world() -> World {
    World::builder(4)
        .host(|h| DeviceOptions { import_limit: 1, ..h })
        .xpu(DeviceOptions::xpu("a", 2), 1)
        .xpu(DeviceOptions::xpu("b", 2), 1)
        .slow_clock()
        .build()
}

fn fail(world: &World, call: Call, first: u64, failure: Failure) {
    world.machine.inject(Some(Trigger { call: Some(call), first, times: 1, failure }));
}

fn lost(world: &World) -> Vec<u32> {
    world.space.snapshot().nodes.iter().map(|n| n.lost_frames).collect()
}

/// It is waited for as the target is, not an error at the first look.
#[test]
fn a_bounce_frame_that_comes_late_is_waited_for() {
    let world = world();
    let range = world.mmap(1);
    world.processors[A].store(word(range.start, 0), 7).expect("a store");
    // The second import is that of the host's first frame.
    fail(&world, Call::Import, 1, Failure::Error(DriverError::NoMemory));
    assert_eq!(world.processors[B].load(word(range.start, 0)), Ok(7));
    assert_eq!(world.machine.injected(), (1, Some(Call::Import)));
    world.assert_sound("bounced");
}

/// However long that takes: the frame will be somebody's, and can be had from him.
#[test]
fn a_frame_that_is_on_its_way_is_waited_for() {
    let world = World::builder(4)
        .xpu(DeviceOptions::xpu("a", 1), 2)
        .clock_step(Duration::from_micros(10))
        .config(|c| c.frame_wait = Duration::from_millis(1))
        .build();
    let range = world.mmap(2);
    let [moving, done] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (clock, first, ended) = (world.clock.clone(), moving.clone(), done.clone());
    world.machine.set_hook(Some(Arc::new(move |call| {
        if call == Call::Wait && !first.swap(true, Ordering::SeqCst) {
            // Only who waits for the frame reads the clock, and so makes time go by.
            let end = clock.peek() + Duration::from_millis(3);
            while clock.peek() < end && !ended.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        }
    })));
    thread::scope(|scope| {
        scope.spawn(|| world.processors[A].store(word(range.start, 0), 1).expect("the one frame"));
        while !moving.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let stored = world.processors[A + 1].store(word(range.start.plus(1), 0), 2);
        done.store(true, Ordering::SeqCst);
        stored.expect("the same frame, later");
    });
    world.machine.set_hook(None);
    assert_eq!(world.processors[A].load(word(range.start, 0)), Ok(1));
    assert_eq!(world.processors[A].load(word(range.start.plus(1), 0)), Ok(2));
    world.assert_sound("both are there");
}

/// Only what a copy that never ends may still touch is lost.
#[test]
fn a_copy_that_hangs_costs_the_frames_that_it_writes() {
    for (wait, wanted) in [(0, [1, 0, 0]), (1, [1, 0, 1])] {
        let world = world();
        let range = world.mmap(1);
        world.processors[A].store(word(range.start, 0), 7).expect("a store");
        fail(&world, Call::Wait, wait, Failure::Hang);
        world.processors[B].load(word(range.start, 0)).expect_err("a half of the copy hangs");
        assert_eq!(lost(&world), wanted, "half {wait}");
        world.machine.inject(None);
        world.heal(B, word(range.start, 0)).expect("the copy at A was not given up");
        assert_eq!(world.processors[B].load(word(range.start, 0)), Ok(7));
        world.assert_sound(("hang of half", wait));
    }
}

/// The context may still write to its frame: the page's bytes are had from it, and then it is no
/// other page's.
#[test]
fn a_context_that_leaves_without_an_answer_costs_its_frames() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    world.processors[A].store(addr, 7).expect("a store");
    fail(&world, Call::Clear, 0, Failure::Hang);
    world.space.detach(&world.processors[A].processor);
    assert_eq!(world.machine.injected().0, 1);
    assert_eq!(lost(&world), [0, 0, 0]);
    assert_eq!(world.processors[B].load(addr), Ok(7));
    world.processors[B].store(addr, 8).expect("a store");
    assert_eq!(lost(&world), [0, 1, 0]);
    world.assert_sound("after a detach");
}

#[test]
fn an_unmap_without_an_answer_costs_the_frame() {
    let world = world();
    let range = world.mmap(2);
    world.cpu().store(word(range.start, 0), 7).expect("a store");
    world.cpu().store(word(range.start.plus(1), 0), 7).expect("a store");
    fail(&world, Call::Clear, 0, Failure::Hang);
    assert_eq!(world.space.munmap(range.start.start(), range.len_bytes()), Ok(()));
    assert_eq!(lost(&world), [1, 0, 0]);
    world.assert_sound("after munmap");
}

/// An enter that did not answer may have been carried out.
#[test]
fn a_new_mapping_without_an_answer_costs_the_frame() {
    let world = world();
    let range = world.mmap(1);
    fail(&world, Call::Enter, 0, Failure::Hang);
    world.processors[A].load(word(range.start, 0)).expect_err("the enter hangs");
    assert_eq!(lost(&world), [0, 1, 0]);
    world.heal(A, word(range.start, 0)).expect("the next one does not");
    assert_eq!(world.processors[A].load(word(range.start, 0)), Ok(0));
    world.assert_sound("healed");
}

#[test]
fn a_changed_mapping_without_an_answer_counts_as_writable() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    let mapped = |world: &World| world.space.inspect(addr).expect("a page").mapped;
    world.processors[B].load(addr).expect("a load");
    world.processors[A].load(addr).expect("a load, shared");
    fail(&world, Call::Enter, 0, Failure::Hang);
    world.processors[A].store(addr, 1).expect_err("the enter hangs");
    let info = world.space.inspect(addr).expect("a page");
    assert!(info.writable.contains(world.processors[A].processor.id()), "{info:?}");
    assert!(!info.poisoned, "it may be mapped");
    world.assert_sound("unsure");
    // It is made sure of at the next touch; or cleared, before another has the page.
    world.processors[A].store(addr, 2).expect("a store");
    fail(&world, Call::Enter, 0, Failure::Hang);
    world.cpu().store(addr, 3).expect_err("the enter hangs");
    world.heal(0, addr).expect("the next one does not");
    world.cpu().store(addr, 3).expect("a store");
    assert!(!mapped(&world).contains(world.processors[A].processor.id()));
    assert_eq!(world.processors[B].load(addr), Ok(3));
    world.assert_sound("sure");
}

/// The page that failed is gone: the next one at its address has nothing to do with it.
#[test]
fn a_fault_that_fails_does_not_poison_the_next_region() {
    let world = World::builder(4).config(|c| c.window.nr_pages = 1).build();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    fail(&world, Call::Import, 0, Failure::Error(DriverError::NoMemory));
    // While the fault asks for a frame, with no page locked.
    let (space, again) = (Arc::downgrade(&world.space), range);
    let hook = move |call| {
        let Some(space) = space.upgrade().filter(|_| call == Call::Import) else { return };
        space.munmap(again.start.start(), PAGE_SIZE).expect("munmap");
        let made = space.mmap(PAGE_SIZE, Protection::ReadWrite, "the next");
        assert_eq!(made, Ok(again));
    };
    world.machine.set_hook(Some(Arc::new(hook)));
    let failed = world.cpu().load(addr);
    assert!(matches!(failed, Err(AccessError::Fault(Error::OutOfMemory(_)))), "{failed:?}");
    world.machine.set_hook(None);
    assert_eq!(world.cpu().load(addr), Ok(0), "not poisoned");
    world.assert_sound("the next region");
}

/// A fault that ends in an error has changed nothing: not even that the page is poisoned.
#[test]
fn what_can_not_be_served_stays_poisoned() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    world.processors[A].store(addr, 7).expect("a store");
    for _ in 0..2 {
        fail(&world, Call::Clear, 0, Failure::Error(DriverError::Busy));
        let failed = world.processors[B].store(addr, 8);
        assert!(matches!(failed, Err(AccessError::Fault(Error::PageBusy { .. }))), "{failed:?}");
        // The CPU, which was not poisoned itself, fails as well and ends nothing for B.
        fail(&world, Call::Clear, 0, Failure::Error(DriverError::Busy));
        world.space.prefetch(addr, 8, world.node(0)).expect_err("busy");
        assert_eq!(world.processors[B].load(addr), Err(AccessError::Poisoned));
        world.machine.inject(None);
        world.heal(B, addr).expect("not busy any more");
        world.processors[A].store(addr, 7).expect("a store");
    }
    world.assert_sound("healed");
}
