//! Pages pushed out of a node by hand.
#![cfg(not(shuttle))]

use gmm_core::driver::Access;
use gmm_core::{Error, EvictionPolicy, NodeId, PageRange};
use gmm_driver_tests::array::DeviceOptions;
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const XPU: usize = 1;
const PAGES: u64 = 24;

/// An XPU of 32 frames that holds 24 dirty pages.
fn with_dirty_pages(host_frames: u32) -> (World, PageRange) {
    let world = World::builder(host_frames)
        .xpu(DeviceOptions::xpu("a", 32), 1)
        // It asks for no smaller batches than the manager makes.
        .config(|c| c.policy = EvictionPolicy::Lru)
        .build();
    let range = world.mmap(PAGES);
    for (i, page) in range.pages().enumerate() {
        world.processors[XPU].store(word(page, 0), 100 + i as u64).expect("a store");
    }
    (world, range)
}

fn resident(world: &World) -> [u32; 2] {
    let nodes = world.space.snapshot().nodes;
    [0, usize::from(world.node(XPU).0)].map(|node| nodes[node].resident_frames)
}

#[test]
fn all_pages_of_a_node_can_be_pushed_out() {
    let (world, range) = with_dirty_pages(32);
    let node = world.node(XPU);
    assert_eq!(world.space.evict(node, 0), Ok(0));
    assert_eq!(resident(&world), [0, 24]);
    // An eighth of the node at a time, and no more than was asked for.
    assert_eq!(world.space.evict(node, 6), Ok(6));
    assert_eq!(resident(&world), [6, 18]);
    assert_eq!(world.space.evict(node, u32::MAX), Ok(18));
    assert_eq!(resident(&world), [24, 0]);
    assert_eq!(world.space.evict(node, u32::MAX), Ok(0));
    world.assert_sound("evicted");
    for (i, page) in range.pages().enumerate() {
        assert_eq!(world.processors[CPU].load(word(page, 0)), Ok(100 + i as u64));
    }
    world.assert_sound("read back");
}

#[test]
fn what_is_held_or_finds_no_room_stays() {
    let (world, range) = with_dirty_pages(6);
    let node = world.node(XPU);
    let held = PageRange { start: range.start, nr_pages: 3 };
    let processor = world.processors[XPU].processor.clone();
    let hold = world.space.hold(&processor, &[held], Access::Write).expect("they are there");
    assert_eq!(world.space.evict(node, u32::MAX), Ok(6), "host memory has six frames");
    assert_eq!(resident(&world), [6, 18]);
    world.assert_sound("host memory is full");
    for page in held.pages() {
        let info = world.space.inspect(page.start()).expect("it is mapped");
        assert_eq!(info.copies.iter().map(|c| c.node).collect::<Vec<_>>(), [node]);
    }
    drop(hold);
    let unknown = world.space.evict(NodeId(9), 1);
    assert!(matches!(unknown, Err(Error::UnknownNode { .. })), "{unknown:?}");
}
