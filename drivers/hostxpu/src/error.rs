//! What can go wrong with a host XPU, and how a context can end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gmm_core::driver::Access;
use gmm_core::{NodeId, VirtAddr};

use crate::ring::Violation;

/// The result of the operations of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its range.
    #[error("host XPU setting {setting} is {got}; it must be from {min} to {max}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What was given.
        got: u128,
        /// The least allowed.
        min: u128,
        /// The most allowed.
        max: u128,
    },
    /// The operating system refused.
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// A context was asked of a device that is in no space yet.
    #[error("the device has not joined a space: call Space::add_device first")]
    NotJoined,
    /// A context was asked of a device that was added twice, to one space or to two.
    #[error("the device has joined twice: it can be in one space, once; make a device for each")]
    JoinedAgain,
    /// A context was asked for in a space that the device has not joined.
    #[error("the device is not in this space, where node {node} is another's")]
    OtherSpace {
        /// Its number in the space that it has joined.
        node: NodeId,
    },
    /// The application collected the status of the worker before it could be watched.
    #[error(
        "the worker process {pid} ended at once, and the application collected its status (it          ignores SIGCHLD, or waits for all its children)"
    )]
    WorkerCollected {
        /// Its number, which another process may have by now.
        pid: i32,
    },
    /// No worker program was found.
    #[error(
        "no worker program for the host XPU: tried {tried:?}; set GMM_HOSTXPU_WORKER to the path \
         of gmm-hostxpu-worker"
    )]
    WorkerNotFound {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// The worker program could not be started.
    #[error("worker {}: could not be started: {message}", path.display())]
    WorkerSpawn {
        /// The program.
        path: PathBuf,
        /// What the operating system said.
        message: String,
    },
    /// The worker started but did not become ready.
    #[error("worker {}: set-up failed: {reason}", path.display())]
    WorkerSetUp {
        /// The program.
        path: PathBuf,
        /// What it said, or how it ended.
        reason: String,
    },
    /// The worker did not answer a request in time, and was killed.
    #[error("the worker did not answer the request to {request} within {timeout:?}")]
    NoAnswer {
        /// What was asked.
        request: &'static str,
        /// How long was waited.
        timeout: Duration,
    },
    /// A kernel library was not found.
    #[error("kernel library {name:?} not found; tried {tried:?}")]
    LibraryNotFound {
        /// The name given.
        name: String,
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// A kernel library could not be loaded.
    #[error("kernel library {} could not be loaded: {message}", path.display())]
    LibraryLoad {
        /// The file.
        path: PathBuf,
        /// What the dynamic linker said.
        message: String,
    },
    /// A kernel is not in its library.
    #[error("no kernel {kernel:?} in {}: {message}", path.display())]
    KernelNotFound {
        /// The name given.
        kernel: String,
        /// The library.
        path: PathBuf,
        /// What the dynamic linker said.
        message: String,
    },
    /// A kernel of one context was given to another.
    #[error("kernel {kernel:?} was loaded by another context")]
    ForeignKernel {
        /// The kernel.
        kernel: Arc<str>,
    },
    /// A launch of nothing.
    #[error("kernel {kernel:?} launched with a grid of 0; a grid has at least one index")]
    EmptyGrid {
        /// The kernel.
        kernel: Arc<str>,
    },
    /// A launch did not complete, since its context ended.
    #[error("launch of kernel {kernel:?} did not complete: {death}")]
    Launch {
        /// The kernel.
        kernel: Arc<str>,
        /// How the context ended.
        death: Death,
    },
    /// The context has ended.
    #[error("the context has ended: {0}")]
    ContextDead(Death),
    /// The manager refused.
    #[error(transparent)]
    Manager(#[from] gmm_core::Error),
}

impl Error {
    pub(crate) fn os(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |e| Self::Os { call, errno: e.raw_os_error() }
    }
}

/// Why a context ended. Its data in the XPU's frames is kept.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Death {
    /// A kernel accessed memory that it may not.
    #[error("kernel {kernel:?} made a wild {access:?} access to {addr}: {cause}")]
    WildAccess {
        /// The kernel that ran.
        kernel: Arc<str>,
        /// The address.
        addr: VirtAddr,
        /// What it tried.
        access: Access,
        /// Why the manager could not serve it.
        cause: gmm_core::Error,
    },
    /// The manager could not serve a kernel's access.
    #[error("kernel {kernel:?}: the {access:?} access to {addr} could not be served: {cause}")]
    FaultFailed {
        /// The kernel that ran.
        kernel: Arc<str>,
        /// The address.
        addr: VirtAddr,
        /// What it tried.
        access: Access,
        /// Why it could not.
        cause: gmm_core::Error,
    },
    /// A kernel accessed an absent page and the XPU's faults are not replayable.
    #[error(
        "kernel {kernel:?} made a wild {access:?} access to {addr}, which is in no range that its \
         launch named; the faults of this XPU can't be replayed"
    )]
    NotHeld {
        /// The kernel that ran.
        kernel: Arc<str>,
        /// The address.
        addr: VirtAddr,
        /// What it tried.
        access: Access,
    },
    /// A kernel raised a signal.
    #[error("kernel {kernel:?} crashed with signal {signal} at {addr}")]
    Crash {
        /// The kernel that ran.
        kernel: Arc<str>,
        /// The signal's number.
        signal: i32,
        /// The address that the signal names.
        addr: VirtAddr,
    },
    /// The worker process was killed.
    #[error("its worker process was killed by signal {signal}")]
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// The worker process left.
    #[error("its worker process exited with status {status} ({meaning})")]
    Exited {
        /// Its exit status.
        status: i32,
        /// What that status means.
        meaning: &'static str,
    },
    /// The worker did not execute a page-table command in time, and was killed.
    #[error("its worker process did not answer a page-table command for {timeout:?}")]
    Unresponsive {
        /// How long was waited.
        timeout: Duration,
    },
    /// The worker could not execute a page-table command that may not fail, and was killed.
    #[error(
        "its worker process could not {command} pages: {}",
        std::io::Error::from_raw_os_error(*errno)
    )]
    CommandFailed {
        /// What it was to do.
        command: &'static str,
        /// What the operating system said to it.
        errno: i32,
    },
    /// The worker closed its socket and lived on (a kernel closed descriptor 0), and was killed.
    #[error("its worker process closed its socket; did a kernel close descriptor 0?")]
    Disconnected,
    /// The worker did not answer a request in time, and was killed.
    #[error("its worker process did not answer the request to {request} for {timeout:?}")]
    NoAnswer {
        /// What was asked.
        request: &'static str,
        /// How long was waited.
        timeout: Duration,
    },
    /// The worker broke the protocol, and was killed.
    #[error("its worker process broke the protocol: {0}")]
    Protocol(#[from] Violation),
    /// The worker process is gone, and the application collected its status.
    #[error("its worker process is gone; how it ended is not known")]
    Vanished,
    /// The context was closed.
    #[error("it was closed")]
    Closed,
}
