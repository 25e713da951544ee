//! The whole manager over array devices, in one thread with a virtual clock: what a workload costs
//! under a policy.

pub(crate) mod document;

use gmm_core::driver::Protection;
use gmm_core::{EvictionPolicy, NextUse, NodeId, PAGE_SIZE, PageNr, PageRange, Policy};
use gmm_driver_tests::array::DeviceOptions;
use gmm_driver_tests::{World, word};
use gmm_sim::{Pass, Workload};

/// The frames of the XPU.
pub(crate) const FRAMES: u64 = 1024;

const CPU: usize = 0;
const XPU: usize = 1;

/// A policy, and what it has to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    Named(EvictionPolicy),
    /// Knows the order of the first pass.
    NextUse,
}

impl Contender {
    pub(crate) const ALL: [Self; 4] = [
        Self::Named(EvictionPolicy::Fifo16),
        Self::Named(EvictionPolicy::Lru),
        Self::DIP,
        Self::NextUse,
    ];
    pub(crate) const DIP: Self = Self::Named(EvictionPolicy::Dip);
    pub(crate) const LRU: Self = Self::Named(EvictionPolicy::Lru);

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Named(policy) => policy.name(),
            Self::NextUse => "next-use",
        }
    }

    fn make(self, nr_frames: u32, first: PageNr, pass: &Pass) -> Box<dyn Policy> {
        match self {
            Self::Named(policy) => policy.make(nr_frames),
            Self::NextUse => {
                let record: Vec<_> = pass.iter().map(|&page| first.plus(page)).collect();
                Box::new(NextUse::new(nr_frames, &record))
            }
        }
    }
}

/// Of each pass, how many pages were moved to an XPU of so many frames. Its pages were written by
/// the CPU before, and are only read.
pub(crate) fn pages_moved(workload: &Workload, nr_frames: u64, contender: Contender) -> Vec<u64> {
    let workload = workload.clone().compact();
    let nr_pages = workload.nr_pages();
    let world = World::builder(nr_pages as u32 + 8)
        .xpu(DeviceOptions::xpu("xpu", nr_frames as u32), 1)
        .config(|config| {
            config.window.nr_pages = nr_pages.next_power_of_two();
            // It spares what a run is about to reach, under any policy.
            config.look_ahead = 0;
        })
        .build();
    let len_bytes = nr_pages * PAGE_SIZE;
    let range = world.space.mmap(len_bytes, Protection::ReadWrite, "simulated").expect("a region");
    let make = |n| contender.make(n, range.start, &workload.passes[0]);
    world.space.set_policy(world.node(XPU), make).expect("the XPU's node exists");
    for page in range.pages() {
        world.processors[CPU].store(word(page, 0), page.0).expect("the CPU writes");
    }
    let mut before = 0;
    let pass = |pass: &Pass| {
        pass.iter().for_each(|&page| read(&world, range, page));
        let moved = moved_in(&world);
        moved - std::mem::replace(&mut before, moved)
    };
    let moved = workload.passes.iter().map(pass).collect();
    world.assert_sound(("simulated", contender));
    moved
}

fn read(world: &World, range: PageRange, page: u64) {
    let page = range.start.plus(page);
    assert_eq!(world.processors[XPU].load(word(page, 0)), Ok(page.0));
}

fn moved_in(world: &World) -> u64 {
    let migrated = world.space.snapshot().migrated_bytes;
    let to_xpu = migrated.iter().filter(|m| m.0 == NodeId::HOST && m.1 == world.node(XPU));
    to_xpu.map(|m| m.2 / PAGE_SIZE).sum()
}
