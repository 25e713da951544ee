//! `PIN` and `UNPIN`: pinned frames stay, pins are counted and limited, and whoever would have to
//! move a pinned page is told so instead of waiting.
#![cfg(not(shuttle))]

use gmm_core::driver::{Access, Capabilities, DriverError};
use gmm_core::{Error, Frame, NodeId, PAGE_SIZE, PageNr, PageRange};
use gmm_driver_tests::array::{AccessError, Call, DeviceOptions, Failure, Trigger};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;
const B: usize = 2;
const NODE_A: NodeId = NodeId(1);

/// A host, and two XPUs of four frames.
fn world() -> World {
    let (a, b) = (DeviceOptions::xpu("a", 4), DeviceOptions::xpu("b", 4));
    World::builder(16).xpu(a, 1).xpu(b, 1).build()
}

fn pin(world: &World, range: PageRange, node: NodeId) -> Result<(), Error> {
    world.space.pin(range.start.start(), range.len_bytes(), node)
}

fn unpin(world: &World, range: PageRange, node: NodeId) -> Result<(), Error> {
    world.space.unpin(range.start.start(), range.len_bytes(), node)
}

fn copies(world: &World, page: PageNr) -> Vec<Frame> {
    world.space.inspect(page.start()).unwrap().copies
}

fn on(world: &World, page: PageNr, node: NodeId) -> Option<Frame> {
    copies(world, page).into_iter().find(|c| c.node == node)
}

/// Everything leaves the processor's node that can.
fn press(world: &World, who: usize) {
    world.space.evict(world.node(who), 16).unwrap();
}

#[test]
fn pinned_pages_are_brought_and_stay() {
    let world = world();
    let range = world.mmap(2);
    for (i, page) in range.pages().enumerate() {
        world.processors[CPU].store(word(page, 0), 40 + i as u64).unwrap();
    }
    pin(&world, range, NODE_A).unwrap();
    let before: Vec<_> = range.pages().map(|p| on(&world, p, NODE_A).unwrap()).collect();
    press(&world, A);
    let after: Vec<_> = range.pages().map(|p| on(&world, p, NODE_A).unwrap()).collect();
    assert_eq!(before, after, "the frames themselves");
    world.assert_sound("pinned");
    for (i, page) in range.pages().enumerate() {
        assert_eq!(world.processors[A].load(word(page, 0)), Ok(40 + i as u64));
        world.processors[A].store(word(page, 0), 50).unwrap();
    }
    assert_eq!(copies(&world, range.start), [before[0]], "a write drops other copies");
    unpin(&world, range, NODE_A).unwrap();
    press(&world, A);
    assert!(range.pages().all(|p| on(&world, p, NODE_A).is_none()), "unpinned pages leave");
    world.assert_sound("unpinned");
}

#[test]
fn pins_are_counted() {
    let world = world();
    let range = world.mmap(1);
    pin(&world, range, NODE_A).unwrap();
    pin(&world, range, NODE_A).unwrap();
    let pinned = |world: &World| world.space.attributes(range).unwrap().first().map(|a| a.1.pinned);
    assert_eq!(pinned(&world), Some(Some((NODE_A, 2))));
    unpin(&world, range, NODE_A).unwrap();
    press(&world, A);
    assert!(on(&world, range.start, NODE_A).is_some(), "one pin is left");
    unpin(&world, range, NODE_A).unwrap();
    assert_eq!(pinned(&world), None);
    let addr = range.start.start();
    assert_eq!(unpin(&world, range, NODE_A), Err(Error::NotPinned { addr, node: NODE_A }));
    world.assert_sound("unpinned");
}

/// A range of which one page is not pinned, or pinned elsewhere, is not unpinned at all.
#[test]
fn unpin_is_all_or_nothing() {
    let world = world();
    let range = world.mmap(3);
    let first = PageRange { nr_pages: 2, ..range };
    pin(&world, first, NODE_A).unwrap();
    let addr = range.start.plus(2).start();
    assert_eq!(unpin(&world, range, NODE_A), Err(Error::NotPinned { addr, node: NODE_A }));
    let start = range.start.start();
    let elsewhere = unpin(&world, first, NodeId(2));
    assert_eq!(elsewhere, Err(Error::NotPinned { addr: start, node: NodeId(2) }));
    unpin(&world, first, NODE_A).unwrap();
}

#[test]
fn pinning_beyond_the_limit_names_the_numbers_and_moves_nothing() {
    let world = world();
    let (some, more) = (world.mmap(2), world.mmap(2));
    pin(&world, some, NODE_A).unwrap();
    let refused = pin(&world, more, NODE_A).unwrap_err();
    assert_eq!(refused, Error::PinLimit { node: NODE_A, limit: 3, pinned: 2, asked: 2 });
    let said = refused.to_string();
    assert!(["node 1", "2 more", "3 may be"].iter().all(|part| said.contains(part)), "{said}");
    assert!(more.pages().all(|p| copies(&world, p).is_empty()), "nothing has moved");
    // What is pinned already takes no more room.
    pin(&world, some, NODE_A).unwrap();
    world.space.set_pin_limit(NODE_A, 4).unwrap();
    pin(&world, more, NODE_A).unwrap();
    world.assert_sound("full of pins");
    let full = world.processors[A].load(word(world.mmap(1).start, 0)).unwrap_err();
    assert!(full.to_string().contains("4 pinned"), "{full}");
}

/// Whatever call of a driver fails: all pages of a `PIN` are pinned, or none.
#[test]
fn pin_is_all_or_nothing() {
    for first in 0..20 {
        let world = world();
        let range = world.mmap(3);
        for page in range.pages() {
            world.processors[CPU].store(word(page, 0), page.0).unwrap();
        }
        // A page that was pinned before stays pinned once.
        let last = PageRange { start: range.start.plus(2), nr_pages: 1 };
        pin(&world, last, NODE_A).unwrap();
        let failure = Failure::Error(DriverError::NoMemory);
        world.machine.inject(Some(Trigger { call: None, first, times: 1, failure }));
        let result = pin(&world, range, NODE_A);
        let hit = world.machine.injected().0 > 0;
        world.machine.inject(None);
        world.assert_sound((first, result));
        if result.is_err() {
            let pinned = world.space.attributes(range).unwrap();
            assert_eq!(pinned.len(), 1, "{first}: {pinned:?}");
            assert_eq!((pinned[0].0, pinned[0].1.pinned), (last, Some((NODE_A, 1))));
            pin(&world, range, NODE_A).unwrap();
        }
        for page in range.pages() {
            assert_eq!(world.processors[A].load(word(page, 0)), Ok(page.0));
        }
        if !hit {
            assert!(first > 3, "only {first} driver calls");
            return;
        }
    }
    panic!("pinning two pages makes more than 20 driver calls");
}

#[test]
fn a_fault_that_would_move_a_pinned_page_fails_by_name() {
    let world = world();
    let range = world.mmap(1);
    let (addr, at) = (range.start.start(), word(range.start, 3));
    world.processors[A].store(at, 7).unwrap();
    pin(&world, range, NODE_A).unwrap();
    let pinned = AccessError::Fault(Error::PagePinned { addr, node: NODE_A });
    // It can do with a copy to read, and no more.
    assert_eq!(world.processors[B].load(at), Ok(7));
    assert!(on(&world, range.start, NODE_A).is_some());
    assert_eq!(world.processors[B].store(at, 8), Err(pinned));
    // The CPU can't map read-only: it would take the page.
    assert_eq!(world.processors[CPU].load(at), Err(pinned));
    let refused = Err(Error::PagePinned { addr, node: NODE_A });
    assert_eq!(world.space.prefetch(addr, 1, NodeId::HOST), refused);
    world.processors[A].store(at, 9).unwrap();
    assert_eq!(world.processors[B].load(at), Ok(9));
    world.assert_sound("pinned");
    // Nothing stays poisoned when the pin ends.
    assert_eq!(world.processors[CPU].load(at), Err(pinned));
    unpin(&world, range, NODE_A).unwrap();
    assert_eq!(world.processors[CPU].load(at), Ok(9));
    world.processors[B].store(at, 10).unwrap();
    world.assert_sound("unpinned");
}

/// A pin in host memory keeps the frame, not the CPU's mapping of it: XPUs may read.
#[test]
fn pages_pinned_in_host_memory_are_read_by_xpus_and_stay() {
    let world = world();
    let range = world.mmap(1);
    let at = word(range.start, 0);
    world.processors[CPU].store(at, 1).unwrap();
    pin(&world, range, NodeId::HOST).unwrap();
    let home = copies(&world, range.start);
    assert_eq!(world.processors[A].load(at), Ok(1));
    world.processors[CPU].store(at, 2).unwrap();
    assert_eq!(world.processors[A].load(at), Ok(2));
    assert!(copies(&world, range.start).contains(&home[0]));
    let addr = range.start.start();
    let refused = Err(AccessError::Fault(Error::PagePinned { addr, node: NodeId::HOST }));
    assert_eq!(world.processors[A].store(at, 3), refused);
    world.assert_sound("pinned at home");
}

#[test]
fn pins_end_with_munmap_and_forbid_a_discard() {
    let world = world();
    for _ in 0..3 {
        let range = world.mmap(3);
        pin(&world, range, NODE_A).unwrap();
        let addr = range.start.start();
        let discarded = world.space.discard(addr, range.len_bytes());
        assert_eq!(discarded, Err(Error::PagePinned { addr, node: NODE_A }));
        world.space.munmap(addr, range.len_bytes()).unwrap();
        world.assert_sound("unmapped");
    }
    let stats = &world.space.snapshot().nodes[1];
    assert_eq!((stats.pinned_frames, stats.resident_frames), (0, 0));
}

#[test]
fn a_page_is_pinned_on_one_node_at_a_time() {
    let world = world();
    let range = world.mmap(1);
    pin(&world, range, NODE_A).unwrap();
    let addr = range.start.start();
    assert_eq!(pin(&world, range, NodeId(2)), Err(Error::PagePinned { addr, node: NODE_A }));
    unpin(&world, range, NODE_A).unwrap();
    pin(&world, range, NodeId(2)).unwrap();
}

/// Launches hold pinned pages, and end; programs pin held pages, and unpin them.
#[test]
fn holds_and_pins_of_one_frame_end_apart() {
    let world = world();
    let range = world.mmap(1);
    let (page, processor) = (range.start, world.processors[A].processor.clone());
    let hold = world.space.hold(&processor, &[range], Access::Write).unwrap();
    pin(&world, range, NODE_A).unwrap();
    let frame = on(&world, page, NODE_A);
    drop(hold);
    press(&world, A);
    assert_eq!(on(&world, page, NODE_A), frame, "the pin is left");
    let hold = world.space.hold(&processor, &[range], Access::Write).unwrap();
    unpin(&world, range, NODE_A).unwrap();
    press(&world, A);
    assert_eq!(on(&world, page, NODE_A), frame, "the hold is left");
    let addr = page.start();
    assert_eq!(world.space.munmap(addr, 1), Err(Error::PageHeld { addr, node: NODE_A }));
    drop(hold);
    press(&world, A);
    assert_eq!(on(&world, page, NODE_A), None);
    world.assert_sound("both ended");
    // A launch elsewhere does not wait for a pin.
    pin(&world, range, NODE_A).unwrap();
    let b = world.processors[B].processor.clone();
    let refused = world.space.hold(&b, &[range], Access::Write).err();
    assert_eq!(refused, Some(Error::PagePinned { addr, node: NODE_A }));
    assert!(world.space.hold(&b, &[range], Access::Read).is_ok());
}

/// An application that discards a pinned page by itself gets zeros, and its pin stays.
#[test]
fn a_pinned_page_discarded_behind_the_core_is_zeroed_in_place() {
    for fails in [false, true] {
        let world = world();
        let range = world.mmap(1);
        let at = word(range.start, 0);
        world.processors[CPU].store(at, 5).unwrap();
        pin(&world, range, NodeId::HOST).unwrap();
        let home = copies(&world, range.start);
        world.cpu().context.discard_behind_the_core(range.start);
        if fails {
            let failure = Failure::Error(DriverError::NoMemory);
            let trigger = Trigger { call: Some(Call::Submit), first: 0, times: 1, failure };
            world.machine.inject(Some(trigger));
        }
        // The XPU's read finds out.
        let seen = world.processors[A].load(at);
        world.machine.inject(None);
        assert_eq!(seen, Ok(0), "fails: {fails}");
        world.assert_sound(fails);
        let pinned = world.space.attributes(range).unwrap();
        assert_eq!(pinned.is_empty(), fails, "{pinned:?}");
        assert_eq!(copies(&world, range.start).contains(&home[0]), !fails);
    }
}

/// Without read-only mappings there is no reading beside a pin, and with a coherent link no need
/// for it.
#[test]
fn what_can_be_done_beside_a_pin_depends_on_the_reader() {
    for (link, read_only) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut b = DeviceOptions::xpu("b", 4);
        if link {
            b = b.with(Capabilities::COHERENT_LINK);
        }
        if !read_only {
            b = b.without(Capabilities::READ_ONLY_MAPPINGS);
        }
        let world = World::builder(16).xpu(DeviceOptions::xpu("a", 4), 1).xpu(b, 1).build();
        let range = world.mmap(1);
        let at = word(range.start, 1);
        world.processors[A].store(at, 1).unwrap();
        pin(&world, range, NODE_A).unwrap();
        let case = (link, read_only);
        assert_eq!(world.processors[B].load(at).is_ok(), link || read_only, "{case:?}");
        let copied = world.space.snapshot().migrated_bytes.len();
        // By way of a host frame.
        assert_eq!(copied, usize::from(!link && read_only), "{case:?}");
        assert_eq!(world.processors[B].store(at, 2).is_ok(), link, "{case:?}");
        assert_eq!(world.processors[A].load(at), Ok(if link { 2 } else { 1 }));
        world.assert_sound(case);
    }
}

#[test]
fn bad_pins_are_errors() {
    let world = world();
    let range = world.mmap(1);
    let addr = range.start.start();
    assert_eq!(world.space.pin(addr, 0, NODE_A), Err(Error::ZeroLength));
    assert!(matches!(world.space.pin(addr, 1, NodeId(7)), Err(Error::UnknownNode { .. })));
    assert!(matches!(world.space.unpin(addr, 1, NodeId(7)), Err(Error::UnknownNode { .. })));
    let end = range.end().start();
    assert_eq!(world.space.pin(addr, PAGE_SIZE + 1, NODE_A), Err(Error::NotMapped { addr: end }));
    assert_eq!(world.space.unpin(end, 1, NODE_A), Err(Error::NotMapped { addr: end }));
    assert!(world.space.pin(addr, u64::MAX, NODE_A).is_err());
}
