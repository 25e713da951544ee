//! A device without memory of its own: its contexts map host frames, beside the CPU. Where host
//! frames move into the CPU's window, a page is mapped by the CPU or by such contexts, not both.
#![cfg(not(shuttle))]

use std::sync::Barrier;
use std::thread;

use gmm_core::driver::{Access, Capabilities, Protection};
use gmm_core::{Error, NodeId, PAGE_SIZE, PageRange, PageState, ProcessorId};
use gmm_driver_tests::array::{AccessError, Call, DeviceOptions};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
/// Two contexts on node 0.
const G1: usize = 1;
const G2: usize = 2;
/// One context of an XPU with memory.
const X: usize = 3;

fn guest() -> DeviceOptions {
    let options = DeviceOptions { node_frames: Vec::new(), ..DeviceOptions::xpu("guest", 0) };
    options.without(Capabilities::READ_ONLY_MAPPINGS)
}

/// A host whose frames move or stay, and whose processors map read-only or not.
fn world(movable: bool, read_only: bool) -> World {
    let pick = |options: DeviceOptions, capability, yes| match yes {
        true => options.with(capability),
        false => options.without(capability),
    };
    let guest = pick(guest(), Capabilities::READ_ONLY_MAPPINGS, read_only);
    World::builder(8)
        .host(|h| pick(h, Capabilities::MOVABLE_FRAMES, movable))
        .host(|h| pick(h, Capabilities::READ_ONLY_MAPPINGS, read_only))
        .xpu(guest, 2)
        .xpu(DeviceOptions::xpu("x", 2), 1)
        .build()
}

fn worlds() -> impl Iterator<Item = (World, (bool, bool))> {
    let kinds = [(true, false), (true, true), (false, false), (false, true)];
    kinds.into_iter().map(|(movable, read_only)| (world(movable, read_only), (movable, read_only)))
}

/// Who maps the page.
fn mappers(world: &World, page: gmm_core::PageNr) -> Vec<usize> {
    let maps = |&n: &usize| world.processors[n].context.maps(page);
    (0..world.processors.len()).filter(maps).collect()
}

#[test]
fn its_contexts_are_processors_of_node_0_and_nothing_is_copied() {
    for (world, kind) in worlds() {
        let range = world.mmap(1);
        let addr = word(range.start, 0);
        assert_eq!(world.processors[G1].processor.node(), NodeId::HOST);
        assert_eq!(world.processors[G1].add(addr, 1), Ok(0), "{kind:?}");
        for (n, who) in [CPU, G1, G2, CPU, G2].into_iter().enumerate() {
            assert_eq!(world.processors[who].add(addr, 1), Ok(1 + n as u64), "{kind:?}");
            let state = world.space.inspect(addr).map(|i| i.state);
            assert_eq!(state, Some(PageState::Exclusive(NodeId::HOST)), "{kind:?}");
            world.assert_sound((kind, n));
        }
        let snapshot = world.space.snapshot();
        assert_eq!(snapshot.migrated_bytes, [], "{kind:?}");
        assert_eq!(snapshot.nodes[0].resident_frames, 1, "{kind:?}");
        // The page was zeroed, and that is all that any device did.
        assert_eq!(world.machine.calls(Call::Submit), 1, "{kind:?}");
    }
}

#[test]
fn a_frame_that_moves_is_mapped_by_the_cpu_or_by_the_others() {
    for (world, kind) in worlds() {
        let (movable, _) = kind;
        let range = world.mmap(1);
        let addr = word(range.start, 0);
        for (who, alone) in [(CPU, true), (G1, false), (G2, false), (CPU, true), (G2, false)] {
            world.processors[who].add(addr, 1).expect("an add");
            let mapped = mappers(&world, range.start);
            assert!(mapped.contains(&who), "{kind:?}: {who} of {mapped:?}");
            if movable {
                assert_eq!(mapped.contains(&CPU), alone, "{kind:?}: {mapped:?} after {who}");
                assert!(!alone || mapped.len() == 1, "{kind:?}: {mapped:?} after {who}");
            } else if who != CPU {
                assert!(mapped.contains(&CPU), "{kind:?}: {mapped:?}: frames that stay are shared");
            }
            world.assert_sound((kind, who));
        }
        // Contexts that move nothing share a frame.
        world.processors[G1].add(addr, 1).expect("an add");
        let both = mappers(&world, range.start);
        assert!(both.contains(&G1) && both.contains(&G2), "{kind:?}: {both:?}");
    }
}

#[test]
fn pages_move_between_node_0_and_a_device_with_memory() {
    for (world, kind) in worlds() {
        let range = world.mmap(3);
        for (n, who) in [G1, X, CPU, X, G2, X, G1, CPU].into_iter().enumerate() {
            for page in range.pages() {
                let seen = world.processors[who].load(word(page, 0));
                assert_eq!(seen, Ok(n as u64), "{kind:?}: a load by {who}");
                assert_eq!(world.processors[who].add(word(page, 0), 1), Ok(n as u64), "{kind:?}");
                world.assert_sound((kind, n, who));
            }
        }
    }
}

#[test]
fn prefetch_protect_discard_and_unmap_reach_its_mappings() {
    for (world, kind) in worlds() {
        let range = world.mmap(2);
        let (addr, len) = (range.start.start(), 2 * PAGE_SIZE);
        world.processors[X].store(word(range.start, 0), 5).expect("a store");
        assert_eq!(world.space.prefetch(addr, len, NodeId::HOST).map(drop), Ok(()), "{kind:?}");
        world.assert_sound((kind, "prefetched"));
        assert_eq!(world.processors[G1].load(word(range.start, 0)), Ok(5), "{kind:?}");
        assert_eq!(world.space.protect(addr, len, Protection::ReadOnly), Ok(()), "{kind:?}");
        world.assert_sound((kind, "protected"));
        assert_eq!(world.processors[G2].load(word(range.start, 0)), Ok(5), "{kind:?}");
        let refused = world.processors[X].store(word(range.start, 0), 6);
        assert!(
            matches!(refused, Err(AccessError::Fault(Error::Protection { .. }))),
            "{kind:?}: {refused:?}"
        );
        assert_eq!(world.space.protect(addr, len, Protection::ReadWrite), Ok(()), "{kind:?}");
        assert_eq!(world.processors[G1].store(word(range.start, 0), 7), Ok(()), "{kind:?}");
        assert_eq!(world.space.discard(addr, len), Ok(()), "{kind:?}");
        assert_eq!(mappers(&world, range.start), [0; 0], "{kind:?}");
        assert_eq!(world.processors[G1].load(word(range.start, 0)), Ok(0), "{kind:?}");
        world.assert_sound((kind, "discarded"));
        assert_eq!(world.processors[G2].store(word(range.start, 0), 8), Ok(()), "{kind:?}");
        assert_eq!(world.space.munmap(addr, len), Ok(()), "{kind:?}");
        assert_eq!(mappers(&world, range.start), [0; 0], "{kind:?}");
        assert_eq!(world.processors[G1].context.reserved(), [], "{kind:?}");
        world.assert_sound((kind, "unmapped"));
    }
}

#[test]
fn a_context_that_dies_or_leaves_takes_no_data_along() {
    for (world, kind) in worlds() {
        for detach_first in [false, true] {
            let range = world.mmap(1);
            let addr = word(range.start, 0);
            let who = if detach_first { G1 } else { G2 };
            world.processors[who].store(addr, 3).expect("a store");
            if !detach_first {
                world.processors[who].context.kill();
                assert_eq!(world.cpu().load(addr), Ok(3), "{kind:?}");
            }
            world.space.detach(&world.processors[who].processor);
            assert_eq!(world.cpu().load(addr), Ok(3), "{kind:?}");
            assert_eq!(world.processors[X].load(addr), Ok(3), "{kind:?}");
            world.assert_sound((kind, who));
        }
    }
}

/// While a launch of a context on node 0 holds a page, nothing takes the mapping from it.
#[test]
fn a_page_that_it_holds_stays_mapped() {
    for (world, kind) in worlds() {
        let (movable, _) = kind;
        let range = world.mmap(1);
        let addr = word(range.start, 0);
        let processor = world.processors[G1].processor.clone();
        world.cpu().store(addr, 1).expect("a store");
        let hold = world.space.hold(&processor, &[range], Access::Write).expect("one page");
        for other in [CPU, X] {
            let result = world.processors[other].add(addr, 1);
            assert!(mappers(&world, range.start).contains(&G1), "{kind:?}: {other} took it");
            let may = !movable && other == CPU;
            match result {
                Ok(_) if may => {}
                Err(AccessError::Held) if !may => {}
                other => panic!("{kind:?}: {other:?}"),
            }
            world.assert_sound((kind, other));
        }
        drop(hold);
        for other in [CPU, X] {
            world.processors[other].add(addr, 1).expect("nobody holds it");
        }
        world.assert_sound((kind, "after the hold"));
    }
}

/// The same the other way round: what the CPU holds is not moved out of its window.
#[test]
fn a_page_that_the_cpu_holds_stays_mapped() {
    for (world, kind) in worlds() {
        let range = world.mmap(1);
        let addr = word(range.start, 0);
        let cpu = world.cpu().processor.clone();
        assert_eq!(cpu.id(), ProcessorId::CPU);
        let hold = world.space.hold(&cpu, &[range], Access::Write).expect("one page");
        let result = world.processors[G1].add(addr, 1);
        assert!(mappers(&world, range.start).contains(&CPU), "{kind:?}: {result:?}");
        assert_eq!(result.is_ok(), !kind.0, "{kind:?}: {result:?}");
        drop(hold);
        world.assert_sound(kind);
    }
}

#[test]
fn no_count_is_lost_between_the_cpu_its_guests_and_an_xpu() {
    for movable in [true, false] {
        let world = World::builder(8)
            .host(|h| match movable {
                true => h,
                false => h.without(Capabilities::MOVABLE_FRAMES),
            })
            .xpu(guest(), 2)
            .xpu(DeviceOptions::xpu("x", 2), 1)
            .wall_clock()
            .build();
        let range: PageRange = world.mmap(3);
        let start = Barrier::new(world.processors.len());
        thread::scope(|s| {
            for (i, who) in world.processors.iter().enumerate() {
                let start = &start;
                s.spawn(move || {
                    start.wait();
                    for n in 0..2_000 {
                        let page = range.start.plus((n + i as u64) % 3);
                        who.add(word(page, n % 4), 1).expect("an add");
                    }
                });
            }
        });
        let words = range.pages().flat_map(|p| (0..4).map(move |w| word(p, w)));
        let total: u64 = words.map(|addr| world.cpu().load(addr).expect("at rest")).sum();
        assert_eq!(total, 4 * 2_000, "movable: {movable}");
        world.assert_sound(movable);
    }
}

/// What a context can do is what its own device says, not what its node's does.
#[test]
fn it_is_taken_for_what_its_own_device_is() {
    let world = World::builder(8)
        .host(|h| h.with(Capabilities::READ_ONLY_MAPPINGS))
        .xpu(guest(), 2)
        .xpu(DeviceOptions::xpu("x", 2), 1)
        .build();
    let addr = word(world.mmap(1).start, 0);
    assert_eq!(world.processors[X].load(addr), Ok(0));
    assert_eq!(world.processors[G1].load(addr), Ok(0));
    assert_eq!(world.processors[G1].store(addr, 1), Ok(()));
    assert_eq!(world.processors[X].load(addr), Ok(1));
    world.assert_sound("a guest without read-only mappings on a host with them");
}

/// Two hold a page for reading; nobody's reading takes it from either.
#[test]
fn what_the_cpu_holds_for_reading_is_not_taken_to_be_copied() {
    let world = World::builder(8)
        .host(|h| h.with(Capabilities::READ_ONLY_MAPPINGS))
        .xpu(guest(), 2)
        .xpu(DeviceOptions::xpu("x", 2), 1)
        .xpu(DeviceOptions::xpu("y", 2), 1)
        .build();
    let range = world.space.mmap(PAGE_SIZE, Protection::ReadOnly, "test").expect("a region");
    let addr = word(range.start, 0);
    let holders = [X, CPU].map(|who| world.processors[who].processor.clone());
    let holds = holders.map(|p| world.space.hold(&p, &[range], Access::Read).expect("one page"));
    let refused = world.processors[X + 1].load(addr);
    assert_eq!(refused, Err(AccessError::Held));
    assert_eq!(mappers(&world, range.start), [CPU, X]);
    world.assert_sound("held by two");
    drop(holds);
    world.heal(X + 1, addr).expect("nobody holds it");
    assert_eq!(world.processors[X + 1].load(addr), Ok(0));
}
