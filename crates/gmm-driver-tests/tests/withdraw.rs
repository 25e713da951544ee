//! Frames that a device wants back, devices that can't be had, and who holds how much.
#![cfg(not(shuttle))]

use gmm_core::driver::{Access, Capabilities};
use gmm_core::{Error, NodeId};
use gmm_driver_tests::array::DeviceOptions;
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const XPU: usize = 1;

/// An XPU of eight frames that holds five dirty pages.
fn with_dirty_pages() -> (World, gmm_core::PageRange) {
    let world = World::builder(12).xpu(DeviceOptions::xpu("a", 8), 1).build();
    let range = world.mmap(5);
    for (i, page) in range.pages().enumerate() {
        world.processors[XPU].store(word(page, 0), 100 + i as u64).expect("a store");
    }
    (world, range)
}

fn resident(world: &World) -> u32 {
    world.space.snapshot().nodes[usize::from(world.node(XPU).0)].resident_frames
}

#[test]
fn a_device_gets_free_frames_back_first_and_then_evicted_ones() {
    let (world, range) = with_dirty_pages();
    let node = world.node(XPU);
    assert_eq!(world.space.withdraw(node, 3), Ok(3));
    assert_eq!(resident(&world), 5, "three frames were free");
    assert_eq!(world.space.withdraw(node, 2), Ok(2));
    assert_eq!(resident(&world), 3, "two pages had to go");
    world.assert_sound("withdrawn");
    for (i, page) in range.pages().enumerate() {
        assert_eq!(world.processors[CPU].load(word(page, 0)), Ok(100 + i as u64));
    }
    world.assert_sound("read back");
}

#[test]
fn held_pages_stay_when_all_frames_are_wanted() {
    let (world, range) = with_dirty_pages();
    let node = world.node(XPU);
    let processor = world.processors[XPU].processor.clone();
    let hold = world.space.hold(&processor, &[range], Access::Write).expect("they fit");
    assert_eq!(world.space.withdraw(node, u32::MAX), Ok(3));
    assert_eq!(resident(&world), 5);
    drop(hold);
    assert_eq!(world.space.withdraw(node, u32::MAX), Ok(5));
    assert_eq!(resident(&world), 0);
    world.assert_sound("all are back");
    // The device lends them again.
    assert_eq!(world.processors[XPU].load(word(range.start, 0)), Ok(100));
    let unknown = world.space.withdraw(NodeId(9), 1);
    assert!(matches!(unknown, Err(Error::UnknownNode { .. })), "{unknown:?}");
}

#[test]
fn a_device_that_pins_host_memory_is_refused_beside_frames_that_move() {
    let (world, _) = with_dirty_pages();
    let pinning = DeviceOptions::xpu("pins", 2).with(Capabilities::NEEDS_STABLE_HOST_FRAMES);
    let device = world.machine.device(pinning);
    assert_eq!(world.space.add_device(device), Err(Error::NeedsStableFrames));
}

#[test]
fn usage_says_which_region_is_where() {
    let (world, range) = with_dirty_pages();
    world.processors[CPU].load(word(range.start, 0)).expect("a load");
    let usage = world.space.usage();
    assert_eq!(usage.len(), 1);
    assert_eq!((usage[0].region.name.as_str(), usage[0].region.range), ("test", range));
    assert_eq!(usage[0].resident_pages, [1, 4]);
}
