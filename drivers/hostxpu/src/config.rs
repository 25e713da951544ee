//! What can be set about a host XPU: its size, and the knobs of the *what-if lab* (all off by
//! default), which make it behave like an accelerator with another link, another MMU or other
//! capabilities.

use core::fmt;
use std::sync::Arc;
use std::time::Duration;

use gmm_core::driver::Examine;
use gmm_core::{PAGE_SIZE, PageRange};

use crate::Error;

/// The most cores a context can have.
pub const MAX_CORES: u32 = 64;

/// The fewest frames an XPU can have: one instruction may need four pages at once (two operands,
/// each across the boundary of a page), and would be replayed for ever with less.
pub const MIN_FRAMES: u64 = 4;

/// The slowest link the model allows: a page then takes two seconds, well below the time that a
/// space allows a copy.
pub const MIN_LINK_BANDWIDTH: u64 = 1 << 20;

/// The longest delay any knob allows.
pub const MAX_DELAY: Duration = Duration::from_secs(1);

/// How the frames of the local memory may be backed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// The best there is: hugetlb if enough is reserved and free, else shared memory collapsed
    /// into huge pages, else 4 KiB pages.
    #[default]
    Auto,
    /// Shared memory collapsed into huge pages, else 4 KiB pages.
    Shmem,
    /// 4 KiB pages only (for tests of the slow case).
    SmallPages,
}

type ExamineFn = dyn Fn(PageRange) -> Examine + Send + Sync;

/// What a context answers when it is asked for addresses within its window; a real accelerator
/// may refuse some. Unset, it takes all.
#[derive(Clone, Default)]
pub(crate) struct ExamineHook(pub(crate) Option<Arc<ExamineFn>>);

impl fmt::Debug for ExamineHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "set" } else { "unset" })
    }
}

/// The settings of a [`HostXpuDevice`](crate::HostXpuDevice). Made by [`HostXpuConfig::new`] and
/// changed by its setters.
#[derive(Clone, Debug)]
pub struct HostXpuConfig {
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) cores: u32,
    pub(crate) copy_engines: u32,
    pub(crate) backing: Backing,
    pub(crate) spin: Duration,
    pub(crate) link_bandwidth: Option<u64>,
    pub(crate) link_latency: Duration,
    pub(crate) half_duplex: bool,
    pub(crate) clear_cost: Duration,
    pub(crate) message_latency: Duration,
    pub(crate) replayable_faults: bool,
    pub(crate) read_only_mappings: bool,
    pub(crate) examine: ExamineHook,
}

impl HostXpuConfig {
    /// A host XPU with that much memory (rounded down to whole 2 MiB frames, at least
    /// [`MIN_FRAMES`]) and up to four cores
    /// and two copy engines, as the machine has processors.
    pub fn new(memory_bytes: u64) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            name: "host XPU".to_owned(),
            memory_bytes,
            cores: cpus.min(4),
            copy_engines: cpus.min(2),
            backing: Backing::Auto,
            spin: if cpus > 1 { Duration::from_millis(1) } else { Duration::ZERO },
            link_bandwidth: None,
            link_latency: Duration::ZERO,
            half_duplex: false,
            clear_cost: Duration::ZERO,
            message_latency: Duration::ZERO,
            replayable_faults: true,
            read_only_mappings: true,
            examine: ExamineHook::default(),
        }
    }

    /// What reports and errors call it.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many cores (threads that run kernels) each context has, 1 to [`MAX_CORES`].
    #[must_use]
    pub fn cores(mut self, cores: u32) -> Self {
        self.cores = cores;
        self
    }

    /// How many copies can run at once, 1 to 16. That many threads exist for batches; a thread
    /// that waits for its own copy does it itself, in place of one of them.
    #[must_use]
    pub fn copy_engines(mut self, engines: u32) -> Self {
        self.copy_engines = engines;
        self
    }

    /// How frames may be backed.
    #[must_use]
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// How long a thread that waits for the other side looks for the answer at most before it
    /// sleeps; by default 1 ms. It looks for twice as long as such answers took lately, and hardly
    /// at all if that is longer than this. Waking a sleeper takes 10 to 50 µs.
    #[must_use]
    pub fn spin(mut self, budget: Duration) -> Self {
        self.spin = budget;
        self
    }

    /// Lab: the bandwidth of the link to host memory in each direction, at least
    /// [`MIN_LINK_BANDWIDTH`]; copies of one direction share it.
    #[must_use]
    pub fn link_bandwidth(mut self, bytes_per_s: u64) -> Self {
        self.link_bandwidth = Some(bytes_per_s);
        self
    }

    /// Lab: what each copy takes beyond its bytes, at most [`MAX_DELAY`].
    #[must_use]
    pub fn link_latency(mut self, latency: Duration) -> Self {
        self.link_latency = latency;
        self
    }

    /// Lab: both directions share the link's bandwidth.
    #[must_use]
    pub fn half_duplex(mut self, on: bool) -> Self {
        self.half_duplex = on;
        self
    }

    /// Lab: what each batch of clears takes beyond what it takes here, at most [`MAX_DELAY`].
    #[must_use]
    pub fn clear_cost(mut self, cost: Duration) -> Self {
        self.clear_cost = cost;
        self
    }

    /// Lab: what each message between host and XPU takes more (a fault, its answer, a batch of
    /// page-table commands), at most [`MAX_DELAY`].
    #[must_use]
    pub fn message_latency(mut self, latency: Duration) -> Self {
        self.message_latency = latency;
        self
    }

    /// Lab: off, a kernel that touches an absent page is lost, and launches must name the ranges
    /// they use. This is what user space gets from today's vendors.
    #[must_use]
    pub fn replayable_faults(mut self, on: bool) -> Self {
        self.replayable_faults = on;
        self
    }

    /// Lab: off, every mapping is writable and every fault a write.
    #[must_use]
    pub fn read_only_mappings(mut self, on: bool) -> Self {
        self.read_only_mappings = on;
        self
    }

    /// Lab: what contexts answer when asked for addresses within their window (they take all if
    /// this is not set).
    #[must_use]
    pub fn examine(
        mut self,
        answer: impl Fn(PageRange) -> Examine + Send + Sync + 'static,
    ) -> Self {
        self.examine = ExamineHook(Some(Arc::new(answer)));
        self
    }

    /// The number of whole frames.
    ///
    /// # Errors
    /// Any setting that is out of its range, by name.
    pub(crate) fn validate(&self) -> Result<u32, Error> {
        let bad = |setting, got: u128, min: u128, max: u128| {
            if (min..=max).contains(&got) {
                Ok(())
            } else {
                Err(Error::Setting { setting, got, min, max })
            }
        };
        let max_memory = u128::from(u32::MAX) * u128::from(PAGE_SIZE);
        let min_memory = u128::from(MIN_FRAMES * PAGE_SIZE);
        bad("memory_bytes", self.memory_bytes.into(), min_memory, max_memory)?;
        bad("cores", self.cores.into(), 1, MAX_CORES.into())?;
        bad("copy_engines", self.copy_engines.into(), 1, 16)?;
        if let Some(bytes_per_s) = self.link_bandwidth {
            bad("link_bandwidth", bytes_per_s.into(), MIN_LINK_BANDWIDTH.into(), u64::MAX.into())?;
        }
        let most = MAX_DELAY.as_nanos();
        bad("link_latency (ns)", self.link_latency.as_nanos(), 0, most)?;
        bad("clear_cost (ns)", self.clear_cost.as_nanos(), 0, most)?;
        bad("message_latency (ns)", self.message_latency.as_nanos(), 0, most)?;
        bad("spin (ns)", self.spin.as_nanos(), 0, most)?;
        Ok((self.memory_bytes / PAGE_SIZE) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let setting = |c: HostXpuConfig| match c.validate() {
            Err(Error::Setting { setting, .. }) => setting,
            other => panic!("{other:?}"),
        };
        assert_eq!(setting(HostXpuConfig::new(MIN_FRAMES * PAGE_SIZE - 1)), "memory_bytes");
        assert_eq!(setting(HostXpuConfig::new(4 * PAGE_SIZE).cores(0)), "cores");
        assert_eq!(setting(HostXpuConfig::new(4 * PAGE_SIZE).cores(65)), "cores");
        assert_eq!(setting(HostXpuConfig::new(4 * PAGE_SIZE).copy_engines(0)), "copy_engines");
        assert_eq!(setting(HostXpuConfig::new(4 * PAGE_SIZE).link_bandwidth(1)), "link_bandwidth");
        assert_eq!(HostXpuConfig::new(5 * PAGE_SIZE + 5).validate().unwrap(), 5);
    }
}
