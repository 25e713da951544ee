//! The allocators by the names that `--allocator` takes.

use gmm_alloc::{Allocator, Caching, CachingConfig, Heap, PureBackend, Stitching};
use gmm_core::PAGE_SIZE;

use super::watched::{Watch, Watched};

/// The device of the replays: 2^23 frames at most, for which it keeps about 100 MB of tables.
pub(super) const MAX_CAPACITY_BYTES: u64 = 16 << 40;

/// One that can be chosen.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    make: fn(Watched) -> Box<dyn Allocator>,
}

/// In the order in which `all` runs them.
pub(super) const ALLOCATORS: &[Entry] = &[
    Entry { name: "pytorch", make: |device| Box::new(Caching::new(device)) },
    Entry { name: "pytorch-expandable", make: |device| Box::new(Caching::expandable(device)) },
    Entry { name: "bfc", make: |device| Box::new(Heap::bfc(device)) },
    #[cfg(feature = "jemalloc")]
    Entry { name: "jemalloc", make: |device| Box::new(gmm_alloc::Jemalloc::new(device)) },
    Entry { name: "best-fit", make: |device| Box::new(Heap::best_fit(device)) },
    Entry { name: "stitching", make: |device| Box::new(Stitching::new(device)) },
];

impl Entry {
    /// The one with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALLOCATORS.iter().find(|entry| entry.name == name)
    }
}

/// What `--allocator` takes: names, or `all`.
pub(super) fn parse(text: &str) -> Result<&'static [Entry], String> {
    let text = text.trim();
    if text == "all" {
        return Ok(ALLOCATORS);
    }
    let at = ALLOCATORS.iter().position(|entry| entry.name == text);
    at.map(|at| &ALLOCATORS[at..=at]).ok_or_else(|| {
        let names: Vec<_> = ALLOCATORS.iter().map(|entry| entry.name).collect();
        format!("no allocator has this name; there are {}, and all", names.join(", "))
    })
}

/// How an allocator is made for a replay.
#[derive(Clone, Copy)]
pub(super) enum Recipe<'s> {
    /// As it is.
    Named(&'static Entry),
    /// PyTorch's, set up by a user.
    PyTorch(&'s CachingConfig),
}

impl Recipe<'_> {
    /// On an empty device with this capacity.
    pub(super) fn make(&self, capacity_bytes: u64, watch: Option<Watch>) -> Box<dyn Allocator> {
        let capacity = capacity_bytes.min(MAX_CAPACITY_BYTES) / PAGE_SIZE;
        let device = Watched::new(PureBackend::new(capacity), watch);
        match self {
            Self::Named(entry) => (entry.make)(device),
            Self::PyTorch(config) => Box::new(Caching::with_config(device, **config)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_allocators_have() {
        for entry in ALLOCATORS {
            assert_eq!(Recipe::Named(entry).make(1 << 30, None).name(), entry.name);
            assert_eq!(parse(entry.name).map(|found| found[0].name), Ok(entry.name));
        }
        assert_eq!(parse("all").map(<[Entry]>::len), Ok(ALLOCATORS.len()));
        let error = parse("malloc").err().unwrap();
        assert!(ALLOCATORS.iter().all(|entry| error.contains(entry.name)), "{error}");
    }
}
