//! Setting up: the host, its XPUs, and the limits.

use gmm_core::{Config, EvictionPolicy};

use crate::Result;
use crate::manager::Gmm;
use crate::xpu::HostXpu;

/// What a [`Gmm`] is made of. The first XPU is node 1, the next node 2.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    pub(crate) xpus: Vec<HostXpu>,
    pub(crate) host_memory_bytes: Option<u64>,
    pub(crate) fault_threads: Option<usize>,
    pub(crate) config: Config,
    pub(crate) control_socket: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            xpus: Vec::new(),
            host_memory_bytes: None,
            fault_threads: None,
            config: Config::default(),
            control_socket: true,
        }
    }
}

impl Builder {
    /// Adds an XPU.
    pub fn xpu(mut self, xpu: HostXpu) -> Self {
        self.xpus.push(xpu);
        self
    }

    /// The most host memory that unified memory may use, in bytes, rounded down to whole pages.
    /// The default is what the machine (or the control group) has.
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.host_memory_bytes = Some(bytes);
        self
    }

    /// How many threads serve the CPU's faults. The default is 2.
    pub fn fault_threads(mut self, threads: usize) -> Self {
        self.fault_threads = Some(threads);
        self
    }

    /// Which pages leave an XPU whose memory is full. The default notices sweeps and is hardly ever
    /// the worse choice: `docs/policies.md` has figures.
    pub fn policy(mut self, policy: EvictionPolicy) -> Self {
        self.config.policy = policy;
        self
    }

    /// Changes the manager's own settings (batch sizes, time limits). The window is not one of
    /// them here: it goes where the process has room.
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Whether the process can be looked at from outside (`gmm ps`, `gmm stat`), by its user and
    /// root: see [`control`](crate::control). The default is that it can; where no socket can be
    /// had the report says why.
    pub fn control_socket(mut self, offer: bool) -> Self {
        self.control_socket = offer;
        self
    }

    /// Sets everything up.
    ///
    /// # Errors
    /// [`Error::SetUp`](crate::Error::SetUp) if the machine lacks something,
    /// [`Error::Xpu`](crate::Error::Xpu) if an XPU can't be made as asked.
    pub fn build(self) -> Result<Gmm> {
        Gmm::set_up(self)
    }
}
