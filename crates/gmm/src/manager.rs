//! The handle on a process's unified memory.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use bitflags::bitflags;
use gmm_core::driver::Protection;
use gmm_core::{
    NextUse, NodeId, PAGE_SIZE, PageInfo, PageRange, RegionInfo, RegionUsage, Run, Snapshot, Space,
    VirtAddr,
};
use gmm_cpu::BlockedSignals;
use zerocopy::FromZeros;

use crate::background::Background;
use crate::control::ControlSocket;
use crate::recording::{RecordingGuard, Recordings};
use crate::trace::{self, Recorder};
use crate::workers::Workers;
use crate::xpu::{Device, Xpu};
use crate::{Advice, Builder, Error, Report, Result, TraceGuard, Unified};

bitflags! {
    /// What kind of memory [`Gmm::mmap_raw`] makes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MapFlags: u32 {
        /// Valid on every processor (the paper's `MAP_XPU_VISIBLE`).
        const XPU_VISIBLE = 1;
    }
}

/// A process's unified memory: its CPU, its XPUs, its address window. Cheap to clone; everything
/// is taken down when the last clone, buffer and XPU handle are gone.
#[derive(Clone)]
pub struct Gmm {
    inner: Arc<Inner>,
}

struct Inner {
    // In this order: nobody asks any more, nothing moves by itself or is under way while contexts
    // end, and they end before the CPU stops serving faults.
    control: Option<Result<ControlSocket, String>>,
    workers: Workers,
    _background: Background,
    devices: Vec<Device>,
    _handlers: gmm_cpu::FaultHandlers,
    /// What the program allocates, where that is recorded.
    recordings: Arc<Recordings>,
    recorder: OnceLock<Arc<Recorder>>,
    /// What `GMM_TRACE` has asked for: it ends when nothing can happen any more.
    trace: OnceLock<TraceGuard>,
    space: Arc<Space>,
    owner: u32,
}

impl Gmm {
    /// Starts setting up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn set_up(builder: Builder) -> Result<Self> {
        let mut options = gmm_cpu::Options::default();
        if let Some(bytes) = builder.host_memory_bytes {
            let frames = u32::try_from(bytes / PAGE_SIZE).unwrap_or(u32::MAX);
            options.capacity_frames = Some(frames);
        }
        if let Some(threads) = builder.fault_threads {
            options.nr_handlers = threads;
        }
        let cpu = gmm_cpu::CpuDriver::new(options)?;
        let config = gmm_core::Config { window: cpu.window(), ..builder.config };
        let clock = Arc::new(gmm_cpu::MonotonicClock::new());
        let space = Space::new(config, cpu.host(), cpu.mmu(), clock)?;
        let handlers = cpu.start(&space)?;
        let devices = builder.xpus.into_iter().map(|xpu| Device::new(&space, xpu));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        let background = Background::start(&space, devices.iter().map(Device::node))?;
        let control = builder.control_socket.then(|| ControlSocket::offer(&space, &devices));
        let gmm = Self {
            inner: Arc::new(Inner {
                control,
                workers: Workers::new(&space),
                _background: background,
                devices,
                _handlers: handlers,
                recordings: Arc::default(),
                recorder: OnceLock::new(),
                trace: OnceLock::new(),
                space,
                owner: std::process::id(),
            }),
        };
        if let Some(path) = trace::path_from_environment() {
            let _ = gmm.inner.trace.set(gmm.trace_to(path)?);
        }
        Ok(gmm)
    }

    /// Writes what the manager does (faults, copies, page-table changes, evictions) to a file that
    /// [Perfetto](https://ui.perfetto.dev) opens, until the guard is dropped. The environment
    /// variable `GMM_TRACE=FILE` does so from [`Builder::build`] to the end. Recording neither
    /// waits nor allocates on the threads that serve faults; it takes 8 MiB of memory.
    ///
    /// # Errors
    /// [`Error::Trace`] if the file can't be made, [`Error::TraceRunning`].
    pub fn trace_to(&self, path: impl AsRef<Path>) -> Result<TraceGuard> {
        let inside = self.enter()?;
        let recorder = self.inner.recorder.get_or_init(|| {
            let recorder = Arc::new(Recorder::new());
            inside.space.set_observer(Arc::clone(&recorder) as _);
            recorder
        });
        TraceGuard::begin(inside.space, recorder, path.as_ref())
    }

    /// Writes what the program allocates and frees (regions, and memory of
    /// [`DeviceAllocator`](crate::alloc::DeviceAllocator)s) to a file, until the guard is dropped: an
    /// event list, `a ID SIZE STREAM` and `f ID`, which `gmm replay` reads. Regions that are there
    /// already come first. Allocating takes turns meanwhile.
    ///
    /// # Errors
    /// [`Error::Recording`] if the file can't be made, [`Error::RecordingRunning`].
    pub fn record_allocations(&self, path: impl AsRef<Path>) -> Result<RecordingGuard> {
        let inside = self.enter()?;
        self.inner.recordings.begin(path.as_ref(), || inside.space.regions())
    }

    /// What the program allocates is noted there.
    pub(crate) fn recordings(&self) -> &Recordings {
        &self.inner.recordings
    }

    /// The core's view, for drivers and tools.
    ///
    /// # Safety
    /// What is done through it must not unmap, discard or protect memory that a reference points
    /// to or that a [`Unified`] owns, nor detach the CPU. Signal handlers of the calling thread
    /// must not touch unified memory meanwhile (what this crate does blocks them).
    pub unsafe fn space(&self) -> &Arc<Space> {
        &self.inner.space
    }

    /// Enters the manager: not in a forked child, and with signals blocked until the result is
    /// dropped, since a signal handler that touched unified memory would wait for a lock that
    /// this thread holds.
    pub(crate) fn enter(&self) -> Result<Inside<'_>> {
        let owner = self.inner.owner;
        if owner != std::process::id() {
            return Err(Error::Forked { owner });
        }
        Ok(Inside { space: &self.inner.space, _signals: BlockedSignals::new() })
    }

    /// The threads that help with what moves much; only of use once it was entered.
    pub(crate) fn workers(&self) -> &Workers {
        &self.inner.workers
    }

    /// A buffer of `len` values that read as zero, valid on every processor.
    ///
    /// # Errors
    /// [`Error::Manager`] for a length of 0 or when there are no addresses left,
    /// [`Error::TooLong`].
    pub fn mmap<T: FromZeros>(&self, len: usize) -> Result<Unified<T>> {
        self.mmap_named(len, "")
    }

    /// As [`Gmm::mmap`], with a name that reports show.
    ///
    /// # Errors
    /// As [`Gmm::mmap`].
    pub fn mmap_named<T: FromZeros>(&self, len: usize, name: &str) -> Result<Unified<T>> {
        const { assert!(align_of::<T>() as u64 <= PAGE_SIZE, "aligned to more than a page") };
        let size_bytes = size_of::<T>();
        let len_bytes = len.checked_mul(size_bytes).filter(|&bytes| bytes <= isize::MAX as usize);
        let len_bytes = len_bytes.ok_or(Error::TooLong { len, size_bytes })? as u64;
        let range = self.map(len_bytes, Protection::ReadWrite, name)?;
        // SAFETY: the region was made just now, is as long as asked, and goes to nobody else.
        Ok(unsafe { Unified::new(self.clone(), range, len) })
    }

    /// Maps `len_bytes` (rounded up to whole pages) and gives the address: `mmap` as a system
    /// call has it. The memory reads as zero and stays until [`Gmm::munmap`].
    ///
    /// # Errors
    /// As [`Gmm::mmap`]; [`Error::NotXpuVisible`] without that flag.
    pub fn mmap_raw(
        &self,
        len_bytes: u64,
        protection: Protection,
        flags: MapFlags,
        name: &str,
    ) -> Result<*mut u8> {
        if !flags.contains(MapFlags::XPU_VISIBLE) {
            return Err(Error::NotXpuVisible);
        }
        let range = self.map(len_bytes, protection, name)?;
        Ok(core::ptr::with_exposed_provenance_mut(range.start.start().0 as usize))
    }

    /// Unmaps the pages that hold `addr .. addr + len_bytes`: whole regions or parts of them.
    /// Their contents are lost; whoever accesses them later gets what a wild access gets.
    ///
    /// # Safety
    /// As of `munmap(2)`: nobody holds a reference into these pages, or uses an address in them
    /// later, and no [`Unified`] owns them (unless it is forgotten).
    ///
    /// # Errors
    /// [`Error::Manager`] if the address starts no page, the length is 0, the range runs past the
    /// end of the address space, part of it is not mapped, or a running launch holds it. Nothing
    /// has been unmapped then.
    pub unsafe fn munmap(&self, addr: *const u8, len_bytes: u64) -> Result<()> {
        self.unmap(virt(addr), len_bytes)
    }

    fn map(&self, len_bytes: u64, protection: Protection, name: &str) -> Result<PageRange> {
        let inside = self.enter()?;
        let map = || Ok(inside.space.mmap(len_bytes, protection, name)?);
        self.recordings().allocating(len_bytes, 0, map, |range| range.start.start())
    }

    pub(crate) fn unmap(&self, addr: VirtAddr, len_bytes: u64) -> Result<()> {
        let inside = self.enter()?;
        let unmap = || Ok(inside.space.munmap(addr, len_bytes)?);
        // Whole pages go.
        let whole_bytes = len_bytes.checked_next_multiple_of(PAGE_SIZE).unwrap_or(len_bytes);
        self.recordings().freeing(addr, whole_bytes, unmap)
    }

    /// Changes what processors may do with the pages that hold `addr .. addr + len_bytes`. A CPU
    /// write to a read-only page raises SIGSEGV; an XPU's ends the launch with an error.
    ///
    /// # Safety
    /// Where it makes pages read-only, nobody writes through a reference into them.
    ///
    /// # Errors
    /// As [`Gmm::munmap`], but the address may lie anywhere in a page.
    pub unsafe fn mprotect(
        &self,
        addr: *const u8,
        len_bytes: u64,
        protection: Protection,
    ) -> Result<()> {
        Ok(self.enter()?.space.protect(virt(addr), len_bytes, protection)?)
    }

    /// Tells the manager how `addr .. addr + len_bytes` will be used on `node`.
    ///
    /// # Safety
    /// [`Advice::DontNeed`] makes whole pages read as zero: nobody holds a reference into them, or
    /// zero is what they may become. The other advices ask for nothing.
    ///
    /// # Errors
    /// [`Error::Manager`] for a bad range, a node that does not exist, a page that could not be
    /// moved, pinned or dropped, or one that is not pinned. Nothing has been done if the range or
    /// the node is bad, or if pages could not be pinned or unpinned.
    pub unsafe fn gmadvise(
        &self,
        addr: *const u8,
        len_bytes: u64,
        advice: Advice,
        node: u8,
    ) -> Result<()> {
        let inside = self.enter()?;
        inside.space.check_node(NodeId(node))?;
        match advice {
            Advice::WillNeed => {
                drop(inside);
                self.prefetch_pages(virt(addr), len_bytes, NodeId(node)).map(drop)
            }
            Advice::DontNeed => Ok(inside.space.discard(virt(addr), len_bytes)?),
            Advice::Pin => Ok(inside.space.pin(virt(addr), len_bytes, NodeId(node))?),
            Advice::Unpin => Ok(inside.space.unpin(virt(addr), len_bytes, NodeId(node))?),
            _ => match advice.attribute(NodeId(node)) {
                Some(attribute) => {
                    Ok(inside.space.set_attribute(virt(addr), len_bytes, attribute)?)
                }
                None => Ok(()),
            },
        }
    }

    /// Has `node` evict by the order in which its pages will be used: again and again that of
    /// `addresses`, each of which stands for its page. Where the program does otherwise the least
    /// recently mapped leaves, until it follows the order again. An empty order ends it.
    ///
    /// # Errors
    /// [`Error::Manager`] for a node that does not exist.
    pub fn follow_order(
        &self,
        node: u8,
        addresses: impl IntoIterator<Item = *const u8>,
    ) -> Result<()> {
        let record: Vec<_> = addresses.into_iter().map(|addr| virt(addr).page()).collect();
        let inside = self.enter()?;
        let by_default = inside.space.config().policy;
        Ok(inside.space.set_policy(NodeId(node), |capacity| match record.is_empty() {
            true => by_default.make(capacity),
            false => Box::new(NextUse::new(capacity, &record)),
        })?)
    }

    /// The XPU whose memory is `node`, with a context to launch kernels on. Handles to one XPU
    /// share a context; [`Xpu::new_context`] makes another.
    ///
    /// # Errors
    /// [`Error::NotAnXpu`], or [`Error::Xpu`] if the context can't be made.
    pub fn xpu(&self, node: u8) -> Result<Xpu> {
        let _inside = self.enter()?;
        let device = self.inner.devices.iter().find(|d| d.node() == NodeId(node));
        match device {
            Some(device) => Ok(Xpu::new(self.clone(), device.clone(), device.context(self)?)),
            None => Err(Error::NotAnXpu { node, xpus: self.describe_xpus() }),
        }
    }

    fn describe_xpus(&self) -> String {
        let nodes: Vec<_> = self.inner.devices.iter().map(|d| d.node().to_string()).collect();
        if nodes.is_empty() { "none here".to_owned() } else { nodes.join(", ") }
    }

    /// One page, as it is now; `None` if it was never mapped (or this is a forked child).
    pub fn inspect(&self, addr: *const u8) -> Option<PageInfo> {
        self.enter().ok()?.space.inspect(virt(addr))
    }

    /// Where the pages that hold `addr .. addr + len_bytes` are, as runs of pages alike. Waits for
    /// nothing: a page that is being moved is said to be.
    ///
    /// # Errors
    /// [`Error::Manager`] for a length of 0, a range past the end of the address space, or one
    /// that is not mapped.
    pub fn residency(&self, addr: *const u8, len_bytes: u64) -> Result<Vec<Run>> {
        Ok(self.enter()?.space.residency(virt(addr), len_bytes)?)
    }

    /// The regions, by address; none in a forked child.
    pub fn regions(&self) -> Vec<RegionInfo> {
        self.enter().map(|inside| inside.space.regions()).unwrap_or_default()
    }

    /// The counters, as numbers; of no node in a forked child.
    pub fn snapshot(&self) -> Snapshot {
        self.enter().map(|inside| inside.space.snapshot()).unwrap_or_default()
    }

    /// Which region holds how many pages of which node; none in a forked child.
    pub fn usage(&self) -> Vec<RegionUsage> {
        self.enter().map(|inside| inside.space.usage()).unwrap_or_default()
    }

    /// The counters, for people: shows itself as text.
    pub fn report(&self) -> Report {
        Report::new(self.snapshot(), self.usage(), self.frame_backing(), self.control_socket())
    }

    /// Where this process can be asked from outside; or why it can't be, in words.
    pub fn control_socket(&self) -> core::result::Result<std::path::PathBuf, &str> {
        match &self.inner.control {
            Some(Ok(socket)) => Ok(socket.path()),
            Some(Err(why)) => Err(why),
            None => Err("turned off"),
        }
    }

    /// How the XPUs' frames are backed, one entry an XPU.
    pub fn frame_backing(&self) -> Vec<(NodeId, String)> {
        self.inner.devices.iter().map(|d| (d.node(), d.backing())).collect()
    }
}

/// The right to use the manager from a thread of the application.
pub(crate) struct Inside<'a> {
    pub(crate) space: &'a Arc<Space>,
    _signals: BlockedSignals,
}

pub(crate) fn virt(addr: *const u8) -> VirtAddr {
    VirtAddr(addr.addr() as u64)
}
