//! Random operations of several processors on tiny nodes, against the reference model: at least
//! 100,000 of them. After each sequence every byte is looked at by every processor, the space
//! checks its invariants, and the devices say whether the core kept the rules.
#![cfg(not(shuttle))]

mod model;

use std::cell::Cell;

use gmm_core::driver::Capabilities;
use gmm_driver_tests::World;
use gmm_driver_tests::array::{Completion, DeviceOptions};
use model::{Model, Op, op};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

/// What the devices of one sequence are like.
#[derive(Clone, Debug)]
struct Devices {
    host_read_only: bool,
    completion: Completion,
    peer_copy: bool,
    first_read_only: bool,
    second_replays: bool,
    frames: (u32, u32),
    /// Of the second XPU's second node.
    more_frames: u32,
}

fn devices() -> impl Strategy<Value = Devices> {
    let completion =
        prop_oneof![Just(Completion::Inline), Just(Completion::AtWait), Just(Completion::Halves)];
    let frames = (3..9u32, 3..6u32, 1..4u32);
    (any::<bool>(), completion, any::<bool>(), any::<bool>(), any::<bool>(), frames).prop_map(
        |(host_read_only, completion, peer_copy, first_read_only, second_replays, frames)| {
            let (first, second, more_frames) = frames;
            Devices {
                host_read_only,
                completion,
                peer_copy,
                first_read_only,
                second_replays,
                frames: (first, second),
                more_frames,
            }
        },
    )
}

/// Host memory for more pages than a sequence maps, two XPUs (one of two nodes) for far fewer.
const MAX_PAGES: usize = 9;
const HOST_FRAMES: u32 = 13;

fn world(d: &Devices) -> World {
    let pick = |options: DeviceOptions, capability, yes| match yes {
        true => options.with(capability),
        false => options.without(capability),
    };
    let base = |name: &str, frames| {
        let options = DeviceOptions::xpu(name, frames).completing(d.completion);
        pick(options, Capabilities::PEER_COPY, d.peer_copy)
    };
    let first = pick(base("one", d.frames.0), Capabilities::READ_ONLY_MAPPINGS, d.first_read_only);
    let two =
        DeviceOptions { node_frames: vec![d.frames.1, d.more_frames], ..base("two", d.frames.1) };
    let second = pick(two, Capabilities::REPLAYABLE_FAULTS, d.second_replays);
    // On node 0, beside the CPU.
    let guest = DeviceOptions { node_frames: Vec::new(), ..base("guest", 0) };
    let guest = pick(guest, Capabilities::READ_ONLY_MAPPINGS, d.first_read_only);
    let mut world = World::builder(HOST_FRAMES)
        .host(|h| pick(h, Capabilities::READ_ONLY_MAPPINGS, d.host_read_only))
        .host(|h| h.completing(d.completion))
        .xpu(first, 2)
        .xpu(second, 1)
        .xpu(guest, 1)
        .build();
    world.attach(1, 1).expect("few contexts");
    world
}

fn sequence(devices: &Devices, ops: &[Op]) -> Result<(), String> {
    let mut model = Model::new(world(devices), MAX_PAGES);
    model.apply(&Op::Mmap { nr_pages: 3, read_only: false })?;
    model.apply(&Op::Mmap { nr_pages: 2, read_only: false })?;
    for (i, op) in ops.iter().enumerate() {
        model.apply(op).map_err(|what| format!("operation {i}, {op:?}: {what}"))?;
        let sound = model.world.check().and_then(|()| model.check_holds());
        sound.map_err(|what| format!("after operation {i}, {op:?}: {what}"))?;
    }
    model.finish()
}

#[test]
fn random_operations_against_the_reference_model() {
    let config = Config {
        cases: 1500,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let strategy = (devices(), prop::collection::vec(op(), 0..500));
    let nr_ops = Cell::new(0);
    let result = TestRunner::new(config).run(&strategy, |(devices, ops)| {
        nr_ops.set(nr_ops.get() + ops.len());
        sequence(&devices, &ops).map_err(TestCaseError::fail)
    });
    if let Err(TestError::Fail(what, (devices, ops))) = &result {
        let ops: Vec<String> = ops.iter().map(|op| format!("{op:?}")).collect();
        panic!("{what}\n{devices:?}\n{}", ops.join("\n"));
    }
    assert!(result.is_ok(), "{result:?}");
    assert!(nr_ops.get() >= 100_000, "only {} operations were done", nr_ops.get());
}
