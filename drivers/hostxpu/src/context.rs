//! A context: a worker process with its own page table, attached to a space.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gmm_core::driver::Mmu;
use gmm_core::{PageRange, Processor, RegionInfo, Space};
use gmm_os::{BlockedSignals, Creator};

use crate::manager::{Attachment, Manager};
use crate::mmu::ContextMmu;
use crate::module::Module;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::{Death, Error, HostXpuDevice, thread, wire};

/// How long a worker that was asked to leave may take before it is killed.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// A context of a host XPU: kernels run here, on the unified memory of its space.
///
/// Contexts of one host XPU share its memory file and so are not isolated from each other's
/// code: a kernel that means harm can map frames of another context. Page tables are separate,
/// and so a kernel that merely errs ends its own context only.
///
/// When this is dropped the context ends: what was launched and has not completed fails. The
/// data in its frames is kept. In a forked child, dropping it does nothing.
pub struct Context {
    core: ManuallyDrop<Core>,
    attachment: Arc<Attachment>,
    refused: Vec<RegionInfo>,
    creator: Creator,
}

/// What of a context does not depend on a space.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    manager: Arc<OnceLock<Arc<dyn Manager>>>,
    threads: Vec<JoinHandle<()>>,
}

/// What a context did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContextCounters {
    /// Faults for which a page was entered.
    pub faults: u64,
    /// Faults on pages that another fault had entered already.
    pub coalesced_faults: u64,
    /// Messages with page-table commands.
    pub command_batches: u64,
    /// Page-table commands.
    pub commands: u64,
    /// Launches.
    pub launches: u64,
}

impl Core {
    /// Starts a worker and its watcher. Faults wait until `serve` is called.
    pub(crate) fn start(device: &Arc<HostXpuDevice>, window: PageRange) -> Result<Self, Error> {
        let shared = Arc::new(Shared::start(device.clone(), window)?);
        let manager = Arc::new(OnceLock::new());
        let mut core = Self { shared: shared.clone(), manager: manager.clone(), threads: vec![] };
        let watcher = thread::spawn("gmm-xpu-watcher", move || {
            shared.watch(|| manager.get().cloned());
        })?;
        core.threads.push(watcher);
        Ok(core)
    }

    /// Starts serving faults.
    pub(crate) fn serve(&mut self, manager: Arc<dyn Manager>) -> Result<(), Error> {
        if self.manager.set(manager.clone()).is_err() {
            return Ok(());
        }
        for nr in 0..self.shared.device.config.cores.clamp(2, 4) {
            let (shared, manager) = (self.shared.clone(), manager.clone());
            let body = move || shared.serve_faults(&*manager);
            self.threads.push(thread::spawn(&format!("gmm-xpu-fault-{nr}"), body)?);
        }
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.shared.note_end(Death::Closed);
        // Fails if it is gone, or does not read: then it is killed.
        let _ = wire::send(&self.shared.process.socket, wire::QUIT, 0, &[], &[]);
        if self.threads.is_empty() || !self.shared.process.is_gone(Instant::now() + LEAVE_TIMEOUT) {
            self.shared.process.kill();
        }
        for thread in self.threads.drain(..) {
            // It aborts the process if it panics.
            let _ = thread.join();
        }
        if let Some(manager) = self.manager.get() {
            // The watcher did so, unless the manager came after the end. A signal handler that
            // touched unified memory meanwhile would wait for this thread.
            let _blocked = BlockedSignals::new();
            manager.detach();
        }
    }
}

impl Context {
    /// Starts a worker and attaches it to `space` as a processor of the device's node. The
    /// device must have joined that space, and no other.
    ///
    /// # Errors
    /// The device is not in that space; the worker can't be found, started or set up; the space
    /// takes no more processors.
    pub fn new(space: &Arc<Space>, device: &Arc<HostXpuDevice>) -> Result<Arc<Self>, Error> {
        let node = device.only_node()?;
        if !space.is_node_of(node, &**device) {
            return Err(Error::OtherSpace { node });
        }
        let mut core = Core::start(device, space.config().window)?;
        let mmu: Arc<dyn Mmu> = Arc::new(ContextMmu(core.shared.clone()));
        let attached = {
            let _blocked = BlockedSignals::new();
            space.attach(node, mmu)?
        };
        let attachment =
            Arc::new(Attachment { space: space.clone(), processor: attached.processor });
        core.serve(attachment.clone())?;
        if core.shared.is_dead() {
            return Err(Error::ContextDead(core.shared.death()));
        }
        Ok(Arc::new(Self {
            core: ManuallyDrop::new(core),
            attachment,
            refused: attached.refused,
            creator: Creator::this_process(),
        }))
    }

    /// The processor that it is in its space.
    pub fn processor(&self) -> &Arc<Processor> {
        &self.attachment.processor
    }

    /// The regions that existed before and whose addresses it refused: it can't use them.
    pub fn refused_regions(&self) -> &[RegionInfo] {
        &self.refused
    }

    /// Loads a kernel library. A relative path is looked for as it is, in the directories that
    /// `GMM_KERNEL_PATH` lists, and in the directories of the executable and above it.
    ///
    /// # Errors
    /// [`Error::LibraryNotFound`], [`Error::LibraryLoad`]; [`Error::ContextDead`].
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Module, Error> {
        Module::load(&self.core.shared, path.as_ref())
    }

    /// A new stream.
    pub fn stream(&self) -> Stream {
        Stream::new(self.core.shared.clone(), self.attachment.clone())
    }

    /// Whether its worker lives and has not been told to end.
    pub fn is_alive(&self) -> bool {
        !self.core.shared.is_doomed()
    }

    /// Why it ended, if it has.
    pub fn death(&self) -> Option<Death> {
        self.core.shared.is_doomed().then(|| self.core.shared.death())
    }

    /// Kills its worker, as an accident would. Returns without waiting for its end.
    pub fn kill(&self) {
        self.core.shared.process.kill();
    }

    /// The process that it is.
    pub fn pid(&self) -> i32 {
        self.core.shared.process.pid.as_raw_pid()
    }

    /// The device that it is a context of.
    pub fn device(&self) -> &Arc<HostXpuDevice> {
        &self.core.shared.device
    }

    /// What it did so far.
    pub fn counters(&self) -> ContextCounters {
        let counters = &self.core.shared.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        ContextCounters {
            faults: read(&counters.faults),
            coalesced_faults: read(&counters.coalesced),
            command_batches: read(&counters.command_batches),
            commands: read(&counters.commands),
            launches: read(&counters.launches),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.creator.is_this_process() {
            // SAFETY: dropped here only, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.core) }
        }
    }
}
