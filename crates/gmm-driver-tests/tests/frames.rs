//! Frames: which are taken when, and what becomes of them when calls fail.
#![cfg(not(shuttle))]

use gmm_core::driver::DriverError;
use gmm_driver_tests::array::{Call, DeviceOptions, Failure, Trigger};
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
