//! A program that allocates, works on what it got, and frees; and what must hold after each step.

use std::collections::BTreeMap;

use gmm_alloc::{Allocation, Allocator, Error, StreamId};
use gmm_core::PAGE_SIZE;
use proptest::prelude::*;

use super::{Device, Make};

/// One step of a program. Numbers of allocations count those that are live, modulo their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Allocate {
        size_bytes: u64,
        stream: u64,
    },
    Use {
        which: usize,
        stream: u64,
    },
    /// Frees on the allocation's own stream, or on another one that used it last.
    Free {
        which: usize,
        stream: Option<u64>,
    },
    Trim,
}

/// Sizes of all kinds, most of them so large that few fit on the device.
pub(crate) fn steps(nr_streams: u64, capacity_bytes: u64) -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![
        4 => 0..4096u64,
        3 => 1..capacity_bytes / 8,
        2 => (1..capacity_bytes / PAGE_SIZE).prop_map(|pages| pages * PAGE_SIZE / 2),
        1 => 1..capacity_bytes * 5 / 4,
    ];
    let stream = 0..nr_streams;
    let step = prop_oneof![
        10 => (size, stream.clone())
            .prop_map(|(size_bytes, stream)| Step::Allocate { size_bytes, stream }),
        3 => (any::<usize>(), stream.clone()).prop_map(|(which, stream)| Step::Use { which, stream }),
        9 => (any::<usize>(), proptest::option::weighted(0.2, stream))
            .prop_map(|(which, stream)| Step::Free { which, stream }),
        1 => Just(Step::Trim),
    ];
    proptest::collection::vec(step, 1..120)
}

struct Held {
    allocation: Allocation,
    requested_bytes: u64,
    stream: StreamId,
    serial: u64,
}

/// An allocator in use.
pub(crate) struct User {
    pub(crate) device: Device,
    pub(crate) allocator: Box<dyn Allocator>,
    held: Vec<Held>,
    nr_allocated: u64,
}

impl User {
    pub(crate) fn new(make: Make, device: &Device) -> Self {
        let allocator = make(device.clone());
        Self { device: device.clone(), allocator, held: Vec::new(), nr_allocated: 0 }
    }

    /// Does a step; whether it could be done. An error other than out-of-memory is returned.
    pub(crate) fn step(&mut self, step: Step) -> Result<bool, Error> {
        let done = self.try_step(step);
        self.check();
        match done {
            Err(Error::OutOfMemory(why)) => {
                assert!(why.largest_hole_bytes <= why.free_bytes, "{why}");
                assert!(why.free_bytes <= why.capacity_bytes, "{why}");
                assert!(why.reserved_bytes <= why.capacity_bytes, "{why}");
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    fn try_step(&mut self, step: Step) -> Result<(), Error> {
        let nr_held = self.held.len();
        match step {
            Step::Allocate { size_bytes, stream } => {
                let stream = StreamId(stream);
                let allocation = self.allocator.allocate(size_bytes, stream)?;
                self.nr_allocated += 1;
                let serial = self.nr_allocated;
                self.held.push(Held { allocation, requested_bytes: size_bytes, stream, serial });
                self.work(self.held.len() - 1, stream);
            }
            Step::Use { which, stream } if nr_held > 0 => {
                let which = which % nr_held;
                self.allocator.record_use(self.held[which].allocation.block, StreamId(stream))?;
                self.work(which, StreamId(stream));
            }
            Step::Free { which, stream } if nr_held > 0 => {
                let which = which % nr_held;
                let stream = stream.map_or(self.held[which].stream, StreamId);
                self.work(which, stream);
                let held = self.held.swap_remove(which);
                self.allocator.free(held.allocation.block, stream)?;
                let again = self.allocator.free(held.allocation.block, stream);
                assert!(matches!(again, Err(Error::NotLive { .. })), "freed twice: {again:?}");
            }
            Step::Trim => {
                self.allocator.trim()?;
            }
            Step::Use { .. } | Step::Free { .. } => {}
        }
        Ok(())
    }

    fn work(&self, which: usize, stream: StreamId) {
        let Held { allocation, serial, stream: own, .. } = &self.held[which];
        // Who shares memory between streams orders them.
        self.device.follow(stream, *own);
        let start = allocation.addr.0;
        self.device.work(*serial, start..start + allocation.usable_bytes, stream);
    }

    /// What must hold at any time.
    fn check(&self) {
        let stats = self.allocator.stats();
        let mut ends = BTreeMap::new();
        for held in &self.held {
            let Allocation { addr, usable_bytes, .. } = held.allocation;
            assert!(usable_bytes >= held.requested_bytes.max(1));
            assert!(addr.0.is_multiple_of(256), "{addr} is not aligned");
            ends.insert(addr.0, addr.0 + usable_bytes);
        }
        assert_eq!(ends.len(), self.held.len(), "two allocations at one address");
        let overlap = ends.values().zip(ends.keys().skip(1)).find(|(end, start)| end > start);
        assert_eq!(overlap, None, "two allocations overlap");
        let live: u64 = self.held.iter().map(|held| held.requested_bytes).sum();
        assert_eq!(stats.live_bytes, live);
        assert_eq!(stats.live_blocks, self.held.len() as u64);
        assert_eq!(stats.allocations - stats.frees, stats.live_blocks);
        assert_eq!(stats.reserved_bytes, self.device.nr_imported() * PAGE_SIZE);
        assert!(stats.peak_live_bytes >= live && stats.peak_reserved_bytes >= stats.reserved_bytes);
    }

    /// Frees all: then nothing is kept, and the whole device can be had in one piece; as much of
    /// it as there are whole granules, if the allocator maps by granules.
    pub(crate) fn finish(mut self, capacity_bytes: u64) {
        let granule_bytes = match self.allocator.name() {
            "pytorch-expandable" => 20 << 20,
            _ => PAGE_SIZE,
        };
        let capacity_bytes = capacity_bytes / granule_bytes * granule_bytes;
        while !self.held.is_empty() {
            assert_eq!(self.step(Step::Free { which: 0, stream: None }), Ok(true));
        }
        assert_eq!(self.step(Step::Trim), Ok(true));
        let stats = self.allocator.stats();
        assert_eq!((stats.reserved_bytes, stats.segments), (0, 0));
        assert_eq!(stats.frames_mapped, stats.frames_unmapped);
        let all = self.step(Step::Allocate { size_bytes: capacity_bytes, stream: 0 });
        assert_eq!(all, Ok(true), "{}", self.allocator.name());
    }
}
