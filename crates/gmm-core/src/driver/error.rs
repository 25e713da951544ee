//! How a driver says that something failed.

/// Why a driver operation failed. Small and `Copy`: it is made on the fault path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The context (or the whole device) is gone: killed, reset or removed.
    #[error("the context is dead")]
    Dead,
    /// Someone outside the manager holds the page (a long-term pin: io_uring fixed buffers, RDMA,
    /// a vendor's host registration), so that it can't be unmapped or moved now.
    #[error("the page is pinned by someone outside the manager")]
    Busy,
    /// No answer within the time allowed. After it the driver guarantees nothing about the
    /// frames of the operation, so the core never uses them again.
    #[error("no answer in time")]
    Timeout,
    /// The device or the operating system has no memory for it.
    #[error("out of memory")]
    NoMemory,
    /// The operating system refused: `call` with `errno`.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// The system call or ioctl.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// The driver can't do this at all.
    #[error("not supported")]
    Unsupported,
    /// The device answered something impossible, or was asked for it.
    #[error("broken: {0}")]
    Broken(&'static str),
}

/// A batch that stopped part way: the first `done` elements took effect, the rest is untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stopped after {done}: {error}")]
pub struct Partial {
    /// How many elements of the batch were done.
    pub done: usize,
    /// Why the next was not.
    pub error: DriverError,
}
