//! Policies: who leaves a full node is theirs to say.
#![cfg(not(shuttle))]

use gmm_core::{Arrival, Departure, Error, EvictionPolicy, FrameNr, NodeId, PageNr, Policy};
use gmm_driver_tests::array::DeviceOptions;
use gmm_driver_tests::{World, word};

/// The most recently mapped leaves first. Its frames, the oldest first.
struct Mru(Vec<FrameNr>);

impl Policy for Mru {
    fn mapped(&mut self, frame: FrameNr, _: PageNr, _: Arrival) {
        self.0.retain(|&f| f != frame);
        self.0.push(frame);
    }

    fn removed(&mut self, frame: FrameNr, _: Departure) {
        self.0.retain(|&f| f != frame);
    }

    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool) {
        // One that does not exist is its own mistake alone.
        let _ = take(FrameNr(u32::MAX)) && self.0.iter().rev().all(|&f| take(f));
    }
}

/// Three frames; pages 0 to 3 are touched in order; says which of them stayed.
fn stayed(change_after: Option<u64>) -> Vec<u64> {
    let world = World::builder(8)
        .xpu(DeviceOptions::xpu("a", 3), 1)
        .config(|c| c.policy = EvictionPolicy::Lru)
        .build();
    let node = world.node(1);
    let range = world.mmap(4);
    for page in 0..4 {
        if change_after == Some(page) {
            let make = |capacity| -> Box<dyn Policy> {
                assert_eq!(capacity, 3);
                Box::new(Mru(Vec::with_capacity(3)))
            };
            assert_eq!(world.space.set_policy(node, make), Ok(()));
        }
        world.processors[1].store(word(range.start.plus(page), 0), page).expect("a store");
    }
    world.assert_sound(("four pages on three frames", change_after));
    let is_here = |&page: &u64| {
        let info = world.space.inspect(range.start.plus(page).start()).expect("a page");
        info.copies.iter().any(|c| c.node == node)
    };
    (0..4).filter(is_here).collect()
}

#[test]
fn a_policy_that_is_given_decides() {
    assert_eq!(stayed(None), [1, 2, 3], "the least recently mapped leaves");
    assert_eq!(stayed(Some(0)), [0, 1, 3], "the most recently mapped leaves");
}

#[test]
fn a_policy_given_late_knows_what_is_there() {
    assert_eq!(stayed(Some(3)), [0, 1, 3]);
}

#[test]
fn there_is_no_policy_for_no_node() {
    let world = World::builder(2).build();
    let result = world.space.set_policy(NodeId(7), |_| Box::new(Mru(Vec::new())));
    assert!(matches!(result, Err(Error::UnknownNode { .. })), "{result:?}");
}
