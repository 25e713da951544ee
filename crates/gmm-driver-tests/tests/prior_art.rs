//! One test for each defect that the history and the code of openEuler's GMEM, the kernel ancestor
//! of this design, show at the level of the manager.
#![cfg(not(shuttle))]

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use gmm_core::driver::{Access, DriverError, Protection};
use gmm_core::{Error, NodeId, PAGE_SIZE, PageRange, PageState, VirtAddr};
use gmm_driver_tests::array::{AccessError, Call, Completion, DeviceOptions, Failure, Trigger};
use gmm_driver_tests::{World, word};

/// A CPU, an XPU `a` of one frame with two contexts, an XPU `b` of two frames with one.
fn world() -> World {
    World::builder(12).xpu(DeviceOptions::xpu("a", 1), 2).xpu(DeviceOptions::xpu("b", 2), 1).build()
}

/// The same for tests with several threads: their waits are real.
fn threaded_world() -> Arc<World> {
    let builder = World::builder(12).xpu(DeviceOptions::xpu("a", 1), 2);
    Arc::new(builder.xpu(DeviceOptions::xpu("b", 2), 1).wall_clock().build())
}

const A1: usize = 1;
const A2: usize = 2;
const B: usize = 3;

/// The next `times` calls of a kind fail.
fn fail(world: &World, call: Call, error: DriverError, times: u64) {
    let failure = Failure::Error(error);
    world.machine.inject(Some(Trigger { call: Some(call), first: 0, times, failure }));
}

fn resident(world: &World) -> u32 {
    world.space.snapshot().nodes.iter().map(|n| n.resident_frames).sum()
}

/// Holds the first driver call of a kind on the thread that makes it until `meanwhile`, on
/// another thread, is done or has been given `turns` chances to run.
fn during(
    world: &Arc<World>,
    call: Call,
    meanwhile: impl FnOnce(&World) + Send + 'static,
) -> Arc<Mutex<Option<thread::JoinHandle<()>>>> {
    let body = Mutex::new(Some(meanwhile));
    let started = Arc::new(Mutex::new(None));
    let (theirs, inner) = (started.clone(), Arc::downgrade(world));
    world.machine.set_hook(Some(Arc::new(move |now| {
        if now != call {
            return;
        }
        let Some(body) = body.lock().expect("no panic").take() else { return };
        let Some(world) = inner.upgrade() else { return };
        let begun = Arc::new(Barrier::new(2));
        let theirs_begun = begun.clone();
        *theirs.lock().expect("no panic") = Some(thread::spawn(move || {
            theirs_begun.wait();
            body(&world);
        }));
        begun.wait();
        // It may have to wait for this very call: give it a chance, and go on.
        (0..100).for_each(|_| thread::yield_now());
    })));
    started
}

fn finish(world: &World, started: &Mutex<Option<thread::JoinHandle<()>>>) {
    world.machine.set_hook(None);
    let thread = started.lock().expect("no panic").take().expect("the call was made");
    thread.join().expect("what ran meanwhile");
}

#[test]
fn eviction_races_with_unmap() {
    // At each driver call of an eviction the page that goes is unmapped.
    for call in [Call::Clear, Call::Submit, Call::Wait, Call::Enter] {
        let world = threaded_world();
        let range = world.mmap(2);
        world.processors[A1].store(word(range.start, 0), 1).expect("a store");
        let started = during(&world, call, move |w| {
            assert_eq!(w.space.munmap(range.start.start(), PAGE_SIZE), Ok(()));
        });
        world.processors[A2].store(word(range.start.plus(1), 0), 2).expect("a store");
        finish(&world, &started);
        assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(2));
        assert_eq!(resident(&world), 1, "at {call:?}: frames of a page that is gone");
        world.assert_sound(call);
    }
}

#[test]
fn eviction_races_with_free() {
    for call in [Call::Clear, Call::Submit, Call::Wait, Call::Enter] {
        let world = threaded_world();
        let range = world.mmap(2);
        world.processors[A1].store(word(range.start, 0), 1).expect("a store");
        let started = during(&world, call, move |w| {
            assert_eq!(w.space.discard(range.start.start(), PAGE_SIZE), Ok(()));
        });
        world.processors[A2].store(word(range.start.plus(1), 0), 2).expect("a store");
        finish(&world, &started);
        assert_eq!(world.cpu().load(word(range.start, 0)), Ok(0), "at {call:?}");
        assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(2), "at {call:?}");
        world.assert_sound(call);
    }
}

#[test]
fn eviction_races_with_exit() {
    for call in [Call::Clear, Call::Submit, Call::Wait, Call::Enter] {
        let world = threaded_world();
        let range = world.mmap(2);
        world.processors[A1].store(word(range.start, 0), 1).expect("a store");
        let started = during(&world, call, |w| {
            w.processors[A1].context.kill();
            w.space.detach(&w.processors[A1].processor);
        });
        world.processors[A2].store(word(range.start.plus(1), 0), 2).expect("a store");
        finish(&world, &started);
        assert_eq!(world.cpu().load(word(range.start, 0)), Ok(1), "at {call:?}");
        assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(2), "at {call:?}");
        world.assert_sound(call);
    }
}

#[test]
fn the_only_copy_survives_a_map_that_fails() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 3);
    world.cpu().store(addr, 7).expect("a store");
    fail(&world, Call::Enter, DriverError::NoMemory, 1);
    let failed = world.processors[A1].store(addr, 8);
    assert!(matches!(
        failed,
        Err(AccessError::Fault(Error::Mmu { operation: "map", cause: DriverError::NoMemory, .. }))
    ));
    assert_eq!(world.cpu().load(addr), Ok(7));
    world.assert_sound("after a map that failed");
    assert_eq!(world.processors[A1].store(addr, 8), Ok(()));
    assert_eq!(world.cpu().load(addr), Ok(8));
}

/// The lock inversion between faulter and evictor: `interleavings::two_evictors_and_two_faulters`
/// tries the schedules; here the two nodes evict against each other in earnest.
#[test]
fn faulters_and_evictors_never_wait_for_each_other_in_a_circle() {
    let world = World::builder(12)
        .xpu(DeviceOptions::xpu("a", 1).completing(Completion::Halves), 2)
        .xpu(DeviceOptions::xpu("b", 1).completing(Completion::Halves), 2)
        .wall_clock()
        .build();
    let range = world.mmap(4);
    thread::scope(|s| {
        for (i, who) in world.processors.iter().enumerate().skip(1) {
            s.spawn(move || {
                for n in 0..300 {
                    let page = range.start.plus((n * (i as u64 + 1)) % 4);
                    who.add(word(page, i as u64), 1).expect("an add");
                }
            });
        }
    });
    for i in 1..=4 {
        let words = range.pages().map(|p| world.cpu().load(word(p, i)).expect("at rest"));
        assert_eq!(words.sum::<u64>(), 300);
    }
    world.assert_sound("after evictions against each other");
}

#[test]
fn a_fault_on_a_page_of_another_device_moves_it() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    world.processors[A1].store(addr, 5).expect("a store");
    assert_eq!(world.processors[B].add(addr, 1), Ok(5));
    let info = world.space.inspect(addr).expect("a page");
    assert_eq!(info.state, PageState::Exclusive(world.node(B)));
    assert!(world.processors[B].context.maps(range.start));
    assert!(!world.processors[A1].context.maps(range.start));
    assert_eq!(world.processors[A2].load(addr), Ok(6));
    world.assert_sound("after migrations between devices");
}

#[test]
fn host_frames_are_not_leaked_when_an_eviction_fails() {
    for call in [Call::Clear, Call::Submit, Call::Wait] {
        let world = world();
        let range = world.mmap(2);
        world.processors[A1].store(word(range.start, 0), 1).expect("a store");
        world.processors[A1].store(word(range.start.plus(1), 0), 2).expect("a store");
        let before = world.space.snapshot().nodes[0].clone();
        for _ in 0..20 {
            fail(&world, call, DriverError::Busy, u64::MAX);
            let failed = world.processors[A2].store(word(range.start, 0), 3);
            assert!(failed.is_err(), "{call:?} fails, yet a page was evicted");
            world.machine.inject(None);
            world.heal(B, word(range.start, 0)).expect("served elsewhere");
        }
        let after = world.space.snapshot().nodes[0].clone();
        assert!(after.resident_frames <= before.resident_frames + 1, "{before:?} {after:?}");
        assert_eq!((after.in_transit_frames, after.lost_frames), (0, 0));
        assert_eq!(world.cpu().load(word(range.start, 0)), Ok(1));
        assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(2));
        world.assert_sound(call);
    }
}

#[test]
fn a_range_of_which_one_page_failed_is_an_error() {
    let world = world();
    let range = world.mmap(2);
    for page in range.pages() {
        world.cpu().store(word(page, 0), 1).expect("a store");
    }
    let second = Trigger {
        call: Some(Call::Submit),
        first: 1,
        times: 1,
        failure: Failure::Error(DriverError::NoMemory),
    };
    world.machine.inject(Some(second));
    let result = world.space.prefetch(range.start.start(), 2 * PAGE_SIZE, world.node(B));
    let addr = range.start.plus(1).start();
    match result {
        Err(Error::Transfer { addr: a, cause: DriverError::NoMemory, .. }) if a == addr => {}
        other => panic!("the second of two pages could not be copied: {other:?}"),
    }
    // The first has moved, as the documentation says, and no data is lost.
    let moved = world.space.inspect(range.start.start()).expect("a page");
    assert!(moved.copies.iter().any(|c| c.node == world.node(B)));
    range.pages().for_each(|p| assert_eq!(world.cpu().load(word(p, 0)), Ok(1)));
    world.assert_sound("after half a prefetch");
}

/// openEuler let positive internal codes reach users. Here every error is one of an enum, and its
/// message names the thing and the number.
#[test]
fn errors_name_the_thing_and_the_number() {
    let world = world();
    let range = world.mmap(1);
    let end = range.end().start();
    let unmapped = world.space.munmap(end, PAGE_SIZE).expect_err("nothing is there");
    assert_eq!(unmapped, Error::NotMapped { addr: end });
    assert!(unmapped.to_string().contains(&end.to_string()), "{unmapped}");
    let unknown = world.space.prefetch(range.start.start(), 1, NodeId(9));
    let unknown = unknown.expect_err("three nodes");
    assert_eq!(unknown, Error::UnknownNode { node: NodeId(9), last: NodeId(2) });
    assert!(unknown.to_string().contains("no node 9"), "{unknown}");
    let odd = VirtAddr(range.start.start().0 + 4096);
    assert_eq!(world.space.munmap(odd, PAGE_SIZE), Err(Error::Unaligned { addr: odd }));
    assert_eq!(world.space.mmap(0, Protection::ReadWrite, "none"), Err(Error::ZeroLength));
    fail(&world, Call::Submit, DriverError::Os { call: "ioctl", errno: 5 }, 1);
    let failed = world.processors[A1].store(range.start.start(), 1).expect_err("zero fails");
    assert!(failed.to_string().contains("ioctl failed with errno 5"), "{failed}");
    world.assert_sound("after errors");
}

#[test]
fn discard_of_the_last_byte_with_length_minus_one_is_an_error() {
    let world = world();
    let range = world.mmap(1);
    world.cpu().store(word(range.start, 0), 1).expect("a store");
    let hostile =
        [(u64::MAX, u64::MAX), (u64::MAX, 1), (1, u64::MAX), (range.start.start().0, u64::MAX)];
    for (addr, len) in hostile {
        let addr = VirtAddr(addr);
        let overflow = Err(Error::AddressOverflow { addr, len });
        assert_eq!(world.space.discard(addr, len), overflow);
        assert_eq!(world.space.prefetch(addr, len, NodeId(1)).map(drop), overflow);
        assert_eq!(world.space.protect(addr, len, Protection::ReadOnly), overflow);
        assert!(world.space.munmap(addr, len).is_err());
    }
    assert!(world.space.mmap(u64::MAX, Protection::ReadWrite, "all").is_err());
    assert_eq!(world.cpu().load(word(range.start, 0)), Ok(1));
    world.assert_sound("after hostile lengths");
}

#[test]
fn discard_of_two_bytes_frees_nothing() {
    let world = world();
    let range = world.mmap(2);
    for page in range.pages() {
        world.processors[B].store(word(page, 0), 9).expect("a store");
    }
    let start = range.start.start().0;
    let last = start + PAGE_SIZE - 1;
    for (addr, len) in [(start, 2), (last, 2), (start + 1, PAGE_SIZE), (start, PAGE_SIZE - 1)] {
        assert_eq!(world.space.discard(VirtAddr(addr), len), Ok(()));
    }
    range.pages().for_each(|p| assert_eq!(world.cpu().load(word(p, 0)), Ok(9)));
    assert_eq!(world.space.discard(VirtAddr(start + 1), 2 * PAGE_SIZE - 1), Ok(()));
    assert_eq!(world.cpu().load(word(range.start, 0)), Ok(9));
    assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(0));
    world.assert_sound("after small discards");
}

/// Every way to unmap part of a region of four pages, with the pages on three nodes; and the
/// off-by-one at the end of a region that was split.
#[test]
fn unmap_of_any_part_of_a_region_leaves_exactly_the_rest() {
    for first in 0..4 {
        for nr_pages in 1..=4 - first {
            let world = world();
            let range = world.mmap(4);
            for (i, page) in range.pages().enumerate() {
                world.processors[[0, A1, B, B][i]]
                    .store(word(page, 7), 1 + i as u64)
                    .expect("a store");
            }
            let hole = PageRange { start: range.start.plus(first), nr_pages };
            // The length is rounded up to whole pages.
            let unmapped = world.space.munmap(hole.start.start(), hole.len_bytes() - 7);
            assert_eq!(unmapped, Ok(()));
            for (i, page) in range.pages().enumerate() {
                let seen = world.cpu().load(word(page, 7));
                if hole.contains(page) {
                    let addr = word(page, 7);
                    assert_eq!(seen, Err(AccessError::Fault(Error::NotMapped { addr })));
                    assert_eq!(world.machine.nr_mappers(page), 0);
                } else {
                    assert_eq!(seen, Ok(1 + i as u64), "page {i} beside {hole}");
                }
            }
            let left: u64 = world.space.regions().iter().map(|r| r.range.nr_pages).sum();
            assert_eq!(left, 4 - nr_pages);
            assert_eq!(u64::from(resident(&world)), left);
            let again = world.space.munmap(hole.start.start(), hole.len_bytes());
            assert!(matches!(again, Err(Error::NotMapped { .. })), "{again:?}");
            world.assert_sound((first, nr_pages));
            // The hole is used again, and is fresh.
            let fresh = world.mmap(nr_pages);
            fresh.pages().for_each(|p| assert_eq!(world.processors[B].load(word(p, 7)), Ok(0)));
            world.assert_sound((first, nr_pages));
        }
    }
}

/// A split region protects, discards and prefetches to its very end and not beyond it.
#[test]
fn the_end_of_a_split_region_is_where_it_is() {
    let world = world();
    let range = world.mmap(4);
    let (last, end) = (range.start.plus(1), range.start.plus(2));
    assert_eq!(world.space.munmap(end.start(), 2 * PAGE_SIZE), Ok(()));
    let (addr, len) = (range.start.start(), 2 * PAGE_SIZE);
    world.cpu().store(VirtAddr(end.start().0 - 8), 1).expect("the last word");
    let beyond = world.cpu().store(end.start(), 1);
    assert_eq!(beyond, Err(AccessError::Fault(Error::NotMapped { addr: end.start() })));
    assert_eq!(world.space.prefetch(addr, len, world.node(B)).map(drop), Ok(()));
    let too_far = Err(Error::NotMapped { addr: end.start() });
    assert_eq!(world.space.prefetch(addr, len + 1, world.node(B)).map(drop), too_far);
    assert_eq!(world.space.protect(addr, len + 1, Protection::ReadOnly), too_far);
    assert_eq!(world.space.discard(addr, len + 1), too_far);
    assert_eq!(world.cpu().load(VirtAddr(end.start().0 - 8)), Ok(1));
    assert_eq!(world.space.discard(last.start(), PAGE_SIZE), Ok(()));
    assert_eq!(world.cpu().load(VirtAddr(end.start().0 - 8)), Ok(0));
    world.assert_sound("at the end of a split region");
}

/// The device's lock has the rank of the frame lists: a debug build panics on a driver call made
/// under one (openEuler copied under a spin lock).
#[test]
#[cfg(debug_assertions)]
fn no_driver_call_is_made_under_a_frame_list() {
    use gmm_core::sync::{Mutex, Rank};
    let world = world();
    let range = world.mmap(4);
    for page in range.pages() {
        world.processors[A1].store(word(page, 0), 1).expect("a store that evicts");
        world.processors[B].load(word(page, 0)).expect("a load that migrates");
    }
    world.assert_sound("after evictions and copies");
    // And the check is really there.
    let list = Mutex::<(), { Rank::Frames as u8 }>::new(());
    let under_a_list = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _held = list.lock();
        world.cpu().load(word(range.start, 0))
    }));
    assert!(under_a_list.is_err());
}

/// openEuler's prefetch went on in the background after its address space was gone. Here it has
/// ended when the call returns, whatever happens to the region meanwhile.
#[test]
fn prefetch_does_not_outlive_its_region_or_space() {
    let world =
        Arc::new(World::builder(12).xpu(DeviceOptions::xpu("b", 4), 1).wall_clock().build());
    let range = world.mmap(3);
    range.pages().for_each(|p| world.cpu().store(word(p, 0), 1).expect("a store"));
    let started = during(&world, Call::Submit, move |w| {
        assert_eq!(w.space.munmap(range.start.start(), range.len_bytes()), Ok(()));
    });
    let result = world.space.prefetch(range.start.start(), range.len_bytes(), NodeId(1));
    assert!(matches!(result, Ok(_) | Err(Error::NotMapped { .. })), "{result:?}");
    finish(&world, &started);
    assert_eq!(resident(&world), 0, "frames of a region that is gone");
    world.assert_sound("after a prefetch of a region that went");
    let space = Arc::downgrade(&world.space);
    drop(Arc::into_inner(world).expect("nobody else has it"));
    assert!(space.upgrade().is_none(), "someone keeps the space alive");
}

/// Holding a page and then losing interest: pinned frames are not what unmap finds at exit.
#[test]
fn a_hold_that_fails_half_way_holds_nothing() {
    let world = world();
    let (range, other) = (world.mmap(2), world.mmap(1));
    let processor = world.processors[B].processor.clone();
    let held = world.space.hold(&processor, &[other], Access::Write).expect("a frame");
    match world.space.hold(&processor, &[range], Access::Write).err() {
        Some(Error::OutOfMemory(why)) => assert_eq!((why.node, why.capacity), (world.node(B), 2)),
        other => panic!("three pages held on two frames: {other:?}"),
    }
    assert_eq!(resident(&world), 2, "one that is held and one that came before it failed");
    drop(held);
    assert!(world.space.snapshot().nodes.iter().all(|n| n.pinned_frames == 0));
    for range in [range, other] {
        assert_eq!(world.space.munmap(range.start.start(), range.len_bytes()), Ok(()));
    }
    assert_eq!(resident(&world), 0);
    world.assert_sound("after half a hold");
}
