//! The handle on a process's unified memory.

use std::sync::Arc;

use bitflags::bitflags;
use gmm_core::driver::Protection;
use gmm_core::{NodeId, PAGE_SIZE, PageInfo, PageRange, RegionInfo, Snapshot, Space, VirtAddr};
use zerocopy::FromZeros;

use crate::xpu::{Device, Xpu};
use crate::{Advice, Builder, Error, Report, Result, Unified};

bitflags! {
    /// What kind of memory [`Gmm::mmap_raw`] makes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MapFlags: u32 {
        /// Valid on every processor (the paper's `MAP_XPU_VISIBLE`).
        const XPU_VISIBLE = 1;
    }
}

/// The most threads that one `WILLNEED` uses (as the paper).
const MAX_PREFETCH_WORKERS: usize = 4;

/// A process's unified memory: its CPU, its XPUs, its address window. Cheap to clone; everything
/// is taken down when the last clone, buffer and XPU handle are gone.
#[derive(Clone)]
pub struct Gmm {
    inner: Arc<Inner>,
}

struct Inner {
    // In this order: contexts end before the CPU stops serving faults.
    devices: Vec<Device>,
    _handlers: gmm_cpu::FaultHandlers,
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
        let devices = devices.collect::<Result<_>>()?;
        Ok(Self {
            inner: Arc::new(Inner {
                devices,
                _handlers: handlers,
                space,
                owner: std::process::id(),
            }),
        })
    }

    /// The core's view, for drivers and tools.
    pub fn space(&self) -> &Arc<Space> {
        &self.inner.space
    }

    /// Whether this process may use the handle: not a fork's child.
    pub(crate) fn check_owner(&self) -> Result<()> {
        let owner = self.inner.owner;
        if owner == std::process::id() { Ok(()) } else { Err(Error::Forked { owner }) }
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
        self.check_owner()?;
        let range = self.space().mmap(len_bytes, Protection::ReadWrite, name)?;
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
        self.check_owner()?;
        let range = self.space().mmap(len_bytes, protection, name)?;
        Ok(core::ptr::with_exposed_provenance_mut(range.start.start().0 as usize))
    }

    /// Unmaps the pages that hold `addr .. addr + len_bytes`: whole regions or parts of them.
    /// Their contents are lost; whoever accesses them later gets what a wild access gets.
    ///
    /// # Errors
    /// [`Error::Manager`] if the address starts no page, the length is 0, the range runs past the
    /// end of the address space, part of it is not mapped, or a running launch holds it. Nothing
    /// has been unmapped then.
    pub fn munmap(&self, addr: *const u8, len_bytes: u64) -> Result<()> {
        self.check_owner()?;
        Ok(self.space().munmap(virt(addr), len_bytes)?)
    }

    /// Changes what processors may do with the pages that hold `addr .. addr + len_bytes`. A CPU
    /// write to a read-only page raises SIGSEGV; an XPU's ends the launch with an error.
    ///
    /// # Errors
    /// As [`Gmm::munmap`], but the address may lie anywhere in a page.
    pub fn mprotect(&self, addr: *const u8, len_bytes: u64, protection: Protection) -> Result<()> {
        self.check_owner()?;
        Ok(self.space().protect(virt(addr), len_bytes, protection)?)
    }

    /// Tells the manager how `addr .. addr + len_bytes` will be used on `node`.
    ///
    /// # Errors
    /// [`Error::Manager`] for a bad range, a node that does not exist, or a page that could not
    /// be moved or dropped; nothing has been done if the range or the node is bad.
    pub fn gmadvise(
        &self,
        addr: *const u8,
        len_bytes: u64,
        advice: Advice,
        node: u8,
    ) -> Result<()> {
        self.check_owner()?;
        self.space().check_node(NodeId(node))?;
        match advice {
            Advice::WillNeed => self.prefetch(virt(addr), len_bytes, NodeId(node)),
            Advice::DontNeed => Ok(self.space().discard(virt(addr), len_bytes)?),
        }
    }

    /// `WILLNEED`, on several threads: each takes a run of pages.
    fn prefetch(&self, addr: VirtAddr, len_bytes: u64, node: NodeId) -> Result<()> {
        let range = PageRange::covering(addr, len_bytes)?;
        self.space().check_mapped(range)?;
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let workers = cpus.min(MAX_PREFETCH_WORKERS) as u64;
        let per_worker = range.nr_pages.div_ceil(workers);
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..workers)
                .filter_map(|i| part(range, i * per_worker, per_worker))
                .map(|part| {
                    let (start, len) = (part.start.start(), part.len_bytes());
                    scope.spawn(move || self.space().prefetch(start, len, node))
                })
                .collect();
            let mut result = Ok(());
            // Every worker ends before the first error is reported.
            for worker in started {
                let one = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(one.map_err(Error::from));
            }
            result
        })
    }

    /// The XPU whose memory is `node`, with a context to launch kernels on. Handles to one XPU
    /// share a context; [`Xpu::new_context`] makes another.
    ///
    /// # Errors
    /// [`Error::NotAnXpu`], or [`Error::Xpu`] if the context can't be made.
    pub fn xpu(&self, node: u8) -> Result<Xpu> {
        self.check_owner()?;
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

    /// One page, as it is now; `None` if it was never mapped.
    pub fn inspect(&self, addr: *const u8) -> Option<PageInfo> {
        self.space().inspect(virt(addr))
    }

    /// The regions, by address.
    pub fn regions(&self) -> Vec<RegionInfo> {
        self.space().regions()
    }

    /// The counters, as numbers.
    pub fn snapshot(&self) -> Snapshot {
        self.space().snapshot()
    }

    /// The counters, for people.
    pub fn report(&self) -> Report {
        Report::new(self.snapshot(), self.space().usage(), self.frame_backing())
    }

    /// How the XPUs' frames are backed, one entry an XPU.
    pub fn frame_backing(&self) -> Vec<(NodeId, String)> {
        self.inner.devices.iter().map(|d| (d.node(), d.backing())).collect()
    }
}

fn virt(addr: *const u8) -> VirtAddr {
    VirtAddr(addr.addr() as u64)
}

/// Pages `skip .. skip + nr_pages` of `range`, as far as it goes.
fn part(range: PageRange, skip: u64, nr_pages: u64) -> Option<PageRange> {
    let left = range.nr_pages.checked_sub(skip).filter(|&left| left > 0)?;
    Some(PageRange { start: range.start.plus(skip), nr_pages: nr_pages.min(left) })
}
