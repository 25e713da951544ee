//! Pages that launches hold, and the faults, hints and unmaps that meet them.
#![cfg(not(shuttle))]

use core::time::Duration;

use gmm_core::driver::{Access, Capabilities, Protection};
use gmm_core::{Error, PAGE_SIZE, PageRange, Resolved};
use gmm_driver_tests::array::{AccessError, DeviceOptions};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;
const B: usize = 2;

fn world() -> World {
    World::builder(12)
        .xpu(DeviceOptions::xpu("a", 4), 1)
        .xpu(DeviceOptions::xpu("b", 4), 1)
        .config(|c| c.hold_wait = Duration::from_secs(30))
        .build()
}

/// Waits for ever: it ends by what happens, not by time.
fn patient_world() -> World {
    World::builder(12)
        .xpu(DeviceOptions::xpu("a", 4), 1)
        .xpu(DeviceOptions::xpu("b", 4), 1)
        .wall_clock()
        .config(|c| c.hold_wait = Duration::MAX)
        .build()
}

fn hold(world: &World, who: usize, range: PageRange) -> gmm_core::Hold {
    let processor = world.processors[who].processor.clone();
    world.space.hold(&processor, &[range], Access::Write).expect("there is room")
}

fn read_only(world: &World, range: PageRange) {
    let (addr, len) = (range.start.start(), range.len_bytes());
    assert_eq!(world.space.protect(addr, len, Protection::ReadOnly), Ok(()));
}

/// A thread that serves faults is not kept by a launch, and the page is not poisoned for it.
#[test]
fn a_fault_on_a_held_page_is_one_to_do_again() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    let held = hold(&world, A, range);
    for who in [CPU, B] {
        let before = world.clock.peek();
        let processor = &world.processors[who].processor;
        assert_eq!(world.space.fault(processor, addr, Access::Read), Ok(Resolved::Again));
        // Of 30 s that a hold would wait: one look.
        assert!(world.clock.peek() - before < Duration::from_millis(20));
        assert_eq!(world.processors[who].load(addr), Err(AccessError::Held));
        assert!(!world.space.inspect(addr).is_some_and(|i| i.poisoned));
        world.assert_sound(("held", who));
    }
    let counted = |w: &World| {
        let nodes = w.space.snapshot().nodes;
        nodes.iter().map(|n| (n.coalesced_faults, n.failed_faults)).collect::<Vec<_>>()
    };
    assert_eq!(counted(&world), [(0, 0); 3]);
    drop(held);
    for who in [CPU, B] {
        assert_eq!(world.processors[who].load(addr), Ok(0), "by {who}");
    }
    world.assert_sound("after the hold");
}

#[test]
fn prefetch_and_hold_wait_and_say_who_holds_it() {
    let world = world();
    let range = world.mmap(1);
    let _held = hold(&world, A, range);
    let addr = range.start.start();
    let wanted = Error::PageHeld { addr, node: world.node(A) };
    assert_eq!(world.space.prefetch(addr, PAGE_SIZE, world.node(B)).map(drop), Err(wanted));
    let processor = world.processors[B].processor.clone();
    assert_eq!(world.space.hold(&processor, &[range], Access::Read).err(), Some(wanted));
    world.assert_sound("held");
}

#[test]
fn a_context_that_leaves_does_not_wait_for_a_launch_of_another() {
    let world = patient_world();
    let range = world.mmap(1);
    let _held = hold(&world, A, range);
    let processor = world.processors[B].processor.clone();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| world.space.hold(&processor, &[range], Access::Read).err());
        // Whether it has begun to wait or not.
        world.space.detach(&processor);
        let wanted = Some(Error::NotAttached { processor: processor.id() });
        assert_eq!(waiting.join().expect("no panic"), wanted);
    });
    world.assert_sound("after a detach");
}

/// When the hold ends, one of several copies is again one that can go.
#[test]
fn a_copy_that_was_held_makes_room_afterwards() {
    let guest = DeviceOptions { node_frames: Vec::new(), ..DeviceOptions::xpu("guest", 0) };
    let stable = |h: DeviceOptions| h.without(Capabilities::MOVABLE_FRAMES);
    let world = World::builder(1)
        .host(|h| stable(h).with(Capabilities::READ_ONLY_MAPPINGS))
        .xpu(guest, 1)
        .xpu(DeviceOptions::xpu("x", 2), 1)
        .build();
    let range = world.mmap(2);
    read_only(&world, range);
    let (guest, x) = (&world.processors[1], &world.processors[2]);
    let first = PageRange { nr_pages: 1, ..range };
    let held = world.space.hold(&guest.processor, &[first], Access::Read).expect("one frame");
    assert_eq!(x.load(word(range.start, 0)), Ok(0));
    drop(held);
    world.assert_sound("shared");
    assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(0), "the only host frame");
    assert_eq!(x.load(word(range.start, 0)), Ok(0));
    world.assert_sound("after eviction");
}

/// Eight copies, all held: the ninth reader is told of one of them.
#[test]
fn too_many_held_copies_are_named_by_who_holds_them() {
    let mut builder = World::builder(12);
    for _ in 0..9 {
        builder = builder.xpu(DeviceOptions::xpu("x", 2), 1);
    }
    let world = builder.build();
    let range = world.mmap(1);
    read_only(&world, range);
    let hold = |n: usize| {
        let processor = world.processors[n].processor.clone();
        world.space.hold(&processor, &[range], Access::Read)
    };
    let _held: Vec<_> = (1..=8).map(|n| hold(n).expect("eight copies")).collect();
    match hold(9).err() {
        Some(Error::PageHeld { node, .. }) => assert_ne!(node, world.node(9)),
        other => panic!("a ninth copy: {other:?}"),
    }
    world.assert_sound("eight copies");
}
