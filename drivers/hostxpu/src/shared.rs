//! What all host threads of a context share: the ring, the worker process, and how it ended.
//!
//! A context is *alive*, then *doomed* (its cause of death is known, its worker was told to die),
//! then *dead* (its worker is gone: no access of it can land any more). The watcher alone makes
//! it dead. Waits on what the worker writes read the word first and the state after it; the
//! watcher sets the state first and changes the words after it. So no wait outlives the context.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gmm_core::PageRange;
use gmm_os::Waits;

use crate::faults::Faults;
use crate::hold::Holders;
use crate::launch::Launches;
use crate::request::Requests;
use crate::ring::{RingMap, Violation};
use crate::spawn::Process;
use crate::wire::{self, Hello};
use crate::{Death, Error, HostXpuDevice, wait};

/// How long a killed worker may take to be gone.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Shared {
    pub(crate) device: Arc<HostXpuDevice>,
    pub(crate) window: PageRange,
    pub(crate) ring: RingMap,
    pub(crate) process: Process,
    /// The last command batch posted; whoever holds this may post.
    pub(crate) commands: Mutex<u32>,
    /// For the worker to execute a batch, and to end a launch.
    pub(crate) command_waits: Waits,
    pub(crate) launch_waits: Waits,
    pub(crate) faults: Faults,
    pub(crate) launches: Launches,
    pub(crate) holders: Arc<Holders>,
    pub(crate) requests: Requests,
    pub(crate) counters: Counters,
    cause: OnceLock<Death>,
    dead: AtomicBool,
}

/// Counts of one context.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) faults: AtomicU64,
    pub(crate) coalesced: AtomicU64,
    pub(crate) command_batches: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) launches: AtomicU64,
}

impl Shared {
    /// Starts a worker whose window is `window`.
    pub(crate) fn start(device: Arc<HostXpuDevice>, window: PageRange) -> Result<Self, Error> {
        let (ring, ring_fd) = RingMap::create()?;
        let hello = Hello {
            version: wire::VERSION,
            ring_bytes: size_of::<crate::ring::Ring>() as u64,
            window_start_page: window.start.0,
            window_pages: window.nr_pages,
            nr_frames: device.memory().nr_frames().into(),
            cores: device.config.cores.into(),
            spin_ns: device.config.spin.as_nanos() as u64,
        };
        use std::os::fd::AsFd;
        let process = Process::start(hello, device.memory().fd(), ring_fd.as_fd())?;
        Ok(Self {
            device,
            window,
            ring,
            process,
            commands: Mutex::new(0),
            command_waits: Waits::default(),
            launch_waits: Waits::default(),
            faults: Faults::default(),
            launches: Launches::default(),
            holders: Arc::default(),
            requests: Requests::default(),
            counters: Counters::default(),
            cause: OnceLock::new(),
            dead: AtomicBool::new(false),
        })
    }

    /// Whether the worker is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Whether it is gone or about to go.
    pub(crate) fn is_doomed(&self) -> bool {
        self.cause.get().is_some()
    }

    /// Why it ended. For callers that know that it has.
    pub(crate) fn death(&self) -> Death {
        self.cause.get().cloned().unwrap_or(Death::Closed)
    }

    /// Ends the context for `cause`, unless it is ending already for another. Does not allocate.
    pub(crate) fn doom(&self, cause: Death) {
        let _ = self.cause.set(cause);
        self.process.kill();
    }

    pub(crate) fn doom_for(&self, violation: Violation) {
        self.doom(Death::Protocol(violation));
    }

    /// Notes how it ended, if it was not for a cause that is known already.
    pub(crate) fn note_end(&self, cause: Death) {
        let _ = self.cause.set(cause);
    }

    /// Waits until a doomed worker is gone: then no access of it can land any more.
    pub(crate) fn wait_gone(&self) -> bool {
        self.process.is_gone(Instant::now() + DEATH_TIMEOUT)
    }

    /// The worker is gone and the cause noted: makes the context dead and wakes all who wait.
    pub(crate) fn bury(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.launches.fail_all(&self.ring);
        wait::bump(&self.ring.end_bell);
        wait::bump(&self.ring.fault_bell);
        wait::bump(&self.ring.command.done);
        self.requests.wake();
    }
}
