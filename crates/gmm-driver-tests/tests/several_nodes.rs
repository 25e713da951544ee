//! A device with several nodes in one space: each has its frames, its contexts and its evictions,
//! and the device copies between them itself.
#![cfg(not(shuttle))]

use std::sync::Barrier;
use std::thread;

use gmm_core::driver::Access;
use gmm_core::{Error, NodeId, PAGE_SIZE, PageState};
use gmm_driver_tests::array::{AccessError, Call, Completion, DeviceOptions};
use gmm_driver_tests::{World, word};

/// Contexts: two on the first node of the device with three, one on the second; one on the
/// device beside it. The third node has none.
const A0: usize = 1;
const B: usize = 2;
const A1: usize = 3;

/// Nodes 1 to 3 are the device's, 4 the other's.
const N0: NodeId = NodeId(1);
const N1: NodeId = NodeId(2);
const N2: NodeId = NodeId(3);
const NB: NodeId = NodeId(4);

fn three(frames: [u32; 3]) -> DeviceOptions {
    DeviceOptions { node_frames: frames.to_vec(), ..DeviceOptions::xpu("three", 0) }
}

fn world(options: DeviceOptions) -> World {
    let builder = World::builder(12).xpu(options, 1).xpu(DeviceOptions::xpu("b", 2), 1);
    with_second(builder.build())
}

fn with_second(mut world: World) -> World {
    assert_eq!(world.attach(0, 1), Ok(A1));
    world
}

fn evicted(world: &World) -> Vec<u64> {
    world.space.snapshot().nodes.iter().map(|n| n.evicted_pages).collect()
}

#[test]
fn its_nodes_are_numbered_in_a_row() {
    let world = world(three([2, 3, 4]));
    assert_eq!([A0, A1, B].map(|p| world.node(p)), [N0, N1, NB]);
    let nodes = world.space.snapshot().nodes;
    let seen: Vec<_> = nodes.iter().map(|n| (n.device.as_str(), n.capacity_frames)).collect();
    assert_eq!(seen, [("host", 12), ("three", 2), ("three", 3), ("three", 4), ("b", 2)]);
    assert!(matches!(world.space.check_node(NodeId(5)), Err(Error::UnknownNode { .. })));
}

#[test]
fn the_device_copies_between_its_nodes_without_a_host_frame() {
    let world = world(three([2, 2, 2]));
    let page = world.mmap(1).start;
    let addr = word(page, 0);
    assert_eq!(world.processors[A0].store(addr, 7), Ok(()));
    let before = world.machine.calls(Call::Submit);
    assert_eq!(world.processors[A1].add(addr, 1), Ok(7));
    assert_eq!(world.machine.calls(Call::Submit), before + 1);
    assert_eq!(world.space.inspect(addr).map(|i| i.state), Some(PageState::Exclusive(N1)));
    assert!(!world.processors[A0].context.maps(page));
    world.assert_sound("moved between nodes");
    // Read by the first node again: two copies, and a third where nobody computes.
    assert_eq!(world.processors[A0].load(addr), Ok(8));
    assert_eq!(world.space.prefetch(addr, 8, N2).map(drop), Ok(()));
    let mut copies = world.space.inspect(addr).expect("a page").copies;
    copies.sort_by_key(|c| c.node.0);
    assert_eq!(copies.iter().map(|c| c.node).collect::<Vec<_>>(), [N0, N1, N2]);
    world.assert_sound("shared by three nodes");
    let snapshot = world.space.snapshot();
    let mut migrated = snapshot.migrated_bytes;
    migrated.sort_by_key(|&(from, to, _)| (from.0, to.0));
    assert_eq!(migrated.iter().map(|m| (m.1, m.2)).filter(|m| m.0 == NodeId::HOST).count(), 0);
    assert_eq!(migrated.iter().map(|m| m.2).sum::<u64>(), 3 * PAGE_SIZE);
    // A write leaves one.
    assert_eq!(world.processors[A1].add(addr, 1), Ok(8));
    assert_eq!(world.space.inspect(addr).map(|i| i.state), Some(PageState::Exclusive(N1)));
    assert_eq!(world.processors[B].add(addr, 1), Ok(9));
    assert_eq!(world.cpu().load(addr), Ok(10));
    world.assert_sound("at the end");
}

#[test]
fn each_node_evicts_its_own_pages() {
    let world = world(three([2, 3, 4]));
    let (first, second) = (world.mmap(2), world.mmap(5));
    first.pages().for_each(|p| assert_eq!(world.processors[A0].store(word(p, 0), p.0), Ok(())));
    second.pages().for_each(|p| assert_eq!(world.processors[A1].store(word(p, 0), p.0), Ok(())));
    assert_eq!(evicted(&world), [0, 0, 2, 0, 0]);
    first.pages().for_each(|p| assert!(world.processors[A0].context.maps(p), "{p:?} was evicted"));
    world.assert_sound("one node is too small");
    for page in first.pages().chain(second.pages()) {
        for who in [A0, A1, B, 0] {
            assert_eq!(world.processors[who].load(word(page, 0)), Ok(page.0));
        }
    }
    world.assert_sound("read by all");
}

#[test]
fn out_of_memory_names_the_node_that_is_full() {
    let world = world(three([2, 2, 2]));
    let range = world.mmap(3);
    let held = gmm_core::PageRange { start: range.start, nr_pages: 2 };
    let processor = world.processors[A1].processor.clone();
    let hold = world.space.hold(&processor, &[held], Access::Write).expect("two frames");
    let last = word(range.start.plus(2), 0);
    match world.processors[A1].store(last, 1) {
        Err(AccessError::Fault(Error::OutOfMemory(why))) => {
            assert_eq!((why.node, why.capacity, why.pinned), (N1, 2, 2));
        }
        other => panic!("a store with every frame of its node held: {other:?}"),
    }
    // Its neighbour has frames, but not the page that is held.
    assert_eq!(world.processors[A0].store(last, 2), Ok(()));
    let refused = world.processors[A0].store(word(range.start, 0), 3);
    assert_eq!(refused, Err(AccessError::Held), "a store to a page that is held");
    drop(hold);
    world.heal(A1, last).expect("frames are free again");
    assert_eq!(world.processors[A1].load(last), Ok(2));
    world.assert_sound("after the hold");
}

#[test]
fn a_context_that_leaves_one_node_leaves_the_other_alone() {
    let world = world(three([2, 2, 2]));
    let range = world.mmap(2);
    let (one, two) = (word(range.start, 0), word(range.start.plus(1), 0));
    assert_eq!(world.processors[A0].store(one, 1), Ok(()));
    assert_eq!(world.processors[A1].store(two, 2), Ok(()));
    world.processors[A0].context.kill();
    assert_eq!(world.processors[A1].load(one), Ok(1));
    world.space.detach(&world.processors[A0].processor);
    assert!(world.processors[A1].context.maps(range.start.plus(1)));
    assert_eq!(world.processors[A1].add(one, 1), Ok(1));
    assert_eq!(world.cpu().load(one), Ok(2));
    assert_eq!(world.cpu().load(two), Ok(2));
    world.assert_sound("one is gone");
}

#[test]
fn no_count_is_lost_between_nodes() {
    for completion in [Completion::Inline, Completion::AtWait, Completion::Halves] {
        let builder = World::builder(16)
            .xpu(three([2, 2, 1]).completing(completion), 1)
            .xpu(DeviceOptions::xpu("b", 2), 1);
        let world = with_second(builder.wall_clock().build());
        let range = world.mmap(6);
        let start = Barrier::new(world.processors.len());
        thread::scope(|s| {
            for (i, who) in world.processors.iter().enumerate() {
                let start = &start;
                s.spawn(move || {
                    start.wait();
                    for n in 0..1_000 {
                        let page = range.start.plus((n * (1 + i as u64)) % 6);
                        who.load(word(page, n % 4)).expect("a load");
                        who.add(word(page, n % 4), 1).expect("an add");
                    }
                });
            }
        });
        let words = range.pages().flat_map(|p| (0..4).map(move |w| word(p, w)));
        let total: u64 = words.map(|addr| world.cpu().load(addr).expect("at rest")).sum();
        assert_eq!(total, 4_000, "{completion:?}");
        world.assert_sound(completion);
    }
}
