//! What can be set about a space.

use core::time::Duration;

use crate::{EvictionPolicy, PageNr, PageRange};

/// The settings of a [`Space`](crate::Space).
#[derive(Clone, Debug)]
pub struct Config {
    /// The unified addresses: every region lies in this range.
    pub window: PageRange,
    /// How many address ranges `mmap` offers to contexts that refuse before it gives up
    /// (openEuler's kernel uses 10).
    pub examine_tries: u32,
    /// How many frames are asked of a device at a time (the paper's 16); at least 1.
    pub import_batch: u32,
    /// How many pages are evicted at a time at most (the paper's 16); at least 1, and never more
    /// than an eighth of the node.
    pub evict_batch: u32,
    /// Which pages leave a node that is full; [`Space::set_policy`](crate::Space::set_policy)
    /// changes it for one node. Host memory has none.
    pub policy: EvictionPolicy,
    /// How long a fault waits for frames that other faults hold, while nothing happens on the
    /// node, before it reports out of memory. While frames come and go it waits up to 75 times as
    /// long.
    pub frame_wait: Duration,
    /// How long one batch of copies may take.
    pub copy_timeout: Duration,
    /// How long a prefetch, or a launch that is to hold a page, waits for one that another launch
    /// holds. (A fault does not wait in the manager: see [`Resolved::Again`](crate::Resolved).)
    pub hold_wait: Duration,
    /// How many of a node's frames programs may pin, in percent;
    /// [`Space::set_pin_limit`](crate::Space::set_pin_limit) sets another number for a node.
    pub pin_limit_percent: u32,
    /// How many free host frames are kept warm; what `munmap` frees beyond goes back to the
    /// operating system.
    pub warm_host_frames: u32,
    /// With fewer free frames than this, and none to be had from the device, a node's background
    /// reclaim ([`Space::reclaim_in_background`](crate::Space::reclaim_in_background)) evicts.
    pub low_watermark: u32,
    /// Until so many are free; `None` for 1/128 of the node, but at least 1 and at most 16. Never
    /// more than an eighth of the node.
    pub high_watermark: Option<u32>,
    /// How long no processor may have faulted on a full node before its coldest pages are copied
    /// to host memory, so that they can be evicted without a copy later. `None`: never.
    pub launder_after: Option<Duration>,
    /// At most one in so many of a node's pages is laundered; at least 1.
    pub launder_share: u32,
    /// The most pages that look-ahead brings at a time when a processor's faults run through
    /// consecutive pages: 16 at most, and 0 turns it off.
    pub look_ahead: u32,
    /// For how long a page stays on a node before another node's fault may take it away; zero: for
    /// no time, unless it is thrashing (see [`Space::thrashing_pages`](crate::Space::thrashing_pages)).
    pub minimum_residency: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: PageRange { start: PageNr(0x1100_0000_0000 >> 21), nr_pages: 1 << 21 },
            examine_tries: 10,
            import_batch: 16,
            evict_batch: 16,
            policy: EvictionPolicy::default(),
            frame_wait: Duration::from_millis(800),
            copy_timeout: Duration::from_secs(10),
            hold_wait: Duration::from_secs(30),
            pin_limit_percent: 75,
            warm_host_frames: 256,
            low_watermark: 1,
            high_watermark: None,
            launder_after: Some(Duration::from_millis(100)),
            launder_share: 4,
            look_ahead: 16,
            minimum_residency: Duration::ZERO,
        }
    }
}
