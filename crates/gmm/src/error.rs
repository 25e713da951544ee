//! What can go wrong, whichever layer says so.

/// The result of the operations of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine could not be set up for unified memory. `gmm doctor` says what to do.
    #[error("unified memory could not be set up: {0}; `gmm doctor` says what to do")]
    SetUp(#[from] gmm_cpu::SetupError),
    /// The manager refused or failed.
    #[error(transparent)]
    Manager(#[from] gmm_core::Error),
    /// An XPU refused or failed.
    #[error(transparent)]
    Xpu(#[from] gmm_hostxpu::Error),
    /// A thread could not be started.
    #[error("a thread to {doing} could not be started: {cause}; raise the limit (ulimit -u)")]
    Thread {
        /// What it was to do.
        doing: &'static str,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A buffer of more elements than there are addresses.
    #[error("{len} elements of {size_bytes} bytes are more than the address space holds")]
    TooLong {
        /// How many elements.
        len: usize,
        /// The size of one.
        size_bytes: usize,
    },
    /// `mmap_raw` without `XPU_VISIBLE`.
    #[error("a mapping without XPU_VISIBLE is ordinary memory: use the allocator for it")]
    NotXpuVisible,
    /// A node that is no XPU, where one is needed.
    #[error("node {node} is not an XPU; XPUs are {xpus}")]
    NotAnXpu {
        /// The node given.
        node: u8,
        /// The nodes that are, in words.
        xpus: String,
    },
    /// An allocator of device memory has no room for a request, and says why, with numbers.
    #[error(transparent)]
    Allocator(#[from] gmm_alloc::Error),
    /// An allocator of device memory did not get what it needed from the manager.
    #[error("to {action}: {cause}")]
    Backing {
        /// What it needed.
        action: gmm_alloc::Action,
        /// Why it did not get it.
        cause: Box<Self>,
    },
    /// The file of a trace could not be made or written.
    #[error("the trace can't be written to {path:?}: {cause}")]
    Trace {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A trace is being written already.
    #[error("a trace is being written already: it ends when its guard is dropped")]
    TraceRunning,
    /// The file of a recording of allocations could not be made or written.
    #[error("allocations can't be recorded to {path:?}: {cause}")]
    Recording {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Allocations are being recorded already.
    #[error("allocations are being recorded already: that ends when its guard is dropped")]
    RecordingRunning,
    /// This process is a fork of the one that made the handle.
    #[error(
        "unified memory belongs to process {owner}, which forked this one; make a new Gmm here"
    )]
    Forked {
        /// The process that made it.
        owner: u32,
    },
}
