//! What the tests share: every allocator over a device that watches it.

#![allow(clippy::allow_attributes, dead_code, unused_imports, reason = "each test uses a part")]

pub(crate) mod device;
pub(crate) mod trace;
pub(crate) mod user;

use gmm_alloc::{Allocator, Caching, CachingConfig, Divisions, Heap, Stitching};

pub(crate) use device::Device;
pub(crate) use user::User;

pub(crate) type Make = fn(Device) -> Box<dyn Allocator>;

/// All allocators there are.
pub(crate) const ALLOCATORS: &[Make] = &[
    #[cfg(feature = "jemalloc")]
    |device| Box::new(gmm_alloc::Jemalloc::new(device)),
    |device| Box::new(Stitching::new(device)),
    |device| Box::new(Heap::best_fit(device)),
    |device| Box::new(Heap::bfc(device)),
    |device| Box::new(Caching::new(device)),
    |device| Box::new(Caching::expandable(device)),
    |device| {
        let config = CachingConfig {
            max_split_size_bytes: Some(20 * MIB),
            garbage_collection_threshold: Some(0.5),
            roundup_power2_divisions: Divisions::everywhere(8),
            ..CachingConfig::default()
        };
        Box::new(Caching::with_config(device, config))
    },
];

pub(crate) const MIB: u64 = 1 << 20;
