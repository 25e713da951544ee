//! All of the CPU side, set up in the right order.

use std::sync::Arc;
use std::time::Duration;

use gmm_core::{PAGE_SIZE, PageRange, Space};

use crate::handler::FaultServer;
use crate::mapping::{self, Mapping};
use crate::pagemap::{Look, Pagemap};
use crate::pool::Pool;
use crate::renew::Renewer;
use crate::uffd::{AccessKind, Features, MoveMode, RegisterMode, Uffd};
use crate::{CpuMmu, FaultHandlers, HostMemory, SetupError, Window, probe};

/// What can be chosen about the CPU side.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the window of unified addresses is to be; by default the first of
    /// [`Window::default_range`] that is free.
    pub window: Option<PageRange>,
    /// How many frames host memory has at most; by default as many as the machine's memory (or
    /// the cgroup's limit, if that is less) holds.
    pub capacity_frames: Option<u32>,
    /// How many threads serve faults.
    pub nr_handlers: usize,
    /// How long one of them looks for the next fault at most before it sleeps: for twice as long as
    /// faults took to come lately, and hardly at all if that is longer than this. By default 200 µs
    /// if there are several processors. Longer makes runs of faults faster and costs processor time.
    pub handler_spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            window: None,
            capacity_frames: None,
            nr_handlers: 2,
            handler_spin: Duration::from_micros(if cpus > 1 { 200 } else { 0 }),
        }
    }
}

/// The CPU side of one space.
///
/// ```no_run
/// use std::sync::Arc;
/// use gmm_core::{Config, Space};
/// use gmm_cpu::{CpuDriver, MonotonicClock, Options};
///
/// let cpu = CpuDriver::new(Options::default())?;
/// let config = Config { window: cpu.window(), ..Config::default() };
/// let clock = Arc::new(MonotonicClock::new());
/// let space = Space::new(config, cpu.host(), cpu.mmu(), clock)?;
/// let handlers = cpu.start(&space)?; // serves faults until dropped
/// # drop(handlers);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CpuDriver {
    host: Arc<HostMemory>,
    mmu: Arc<CpuMmu>,
    uffd: Arc<Uffd>,
    options: Options,
}

impl CpuDriver {
    /// Opens a userfaultfd, claims the window, reserves the pool.
    ///
    /// # Errors
    /// [`SetupError`]: what failed and what to do about it. Nothing is left behind.
    pub fn new(options: Options) -> Result<Self, SetupError> {
        let uffd = Arc::new(Uffd::open()?);
        let frees_page_tables = try_out(&uffd)?;
        let window = match options.window {
            Some(range) => Window::claim(range)?,
            None => Window::claim_default()?,
        };
        let capacity = options.capacity_frames.unwrap_or_else(default_capacity);
        let pool = Arc::new(Pool::new(capacity, Arc::clone(&uffd))?);
        let renewer = Renewer::new(&uffd)?;
        let mmu = Arc::new(CpuMmu::new(Arc::clone(&pool), window, renewer, frees_page_tables));
        Ok(Self { host: Arc::new(HostMemory::new(pool)), mmu, uffd, options })
    }

    /// The window, for [`Config::window`](gmm_core::Config::window).
    pub fn window(&self) -> PageRange {
        self.mmu.window()
    }

    /// Host memory, the device of node 0.
    pub fn host(&self) -> Arc<HostMemory> {
        Arc::clone(&self.host)
    }

    /// The CPU's page table.
    pub fn mmu(&self) -> Arc<CpuMmu> {
        Arc::clone(&self.mmu)
    }

    /// How the userfaultfd was obtained, and so whether system calls fault pages in.
    pub fn uffd_access(&self) -> AccessKind {
        self.uffd.access()
    }

    /// What the kernel's userfaultfd can do.
    pub fn uffd_features(&self) -> Features {
        self.uffd.features()
    }

    /// Starts the threads that serve the CPU's faults, for the space made of this host memory and
    /// page table.
    ///
    /// # Errors
    /// [`SetupError::Os`].
    pub fn start(&self, space: &Arc<Space>) -> Result<FaultHandlers, SetupError> {
        self.start_with(space)
    }

    /// The same threads for a test that stands in the place of a space.
    ///
    /// # Errors
    /// [`SetupError::Os`].
    #[doc(hidden)]
    pub fn start_with<S: FaultServer + 'static>(
        &self,
        faults: &Arc<S>,
    ) -> Result<FaultHandlers, SetupError> {
        let Options { nr_handlers, handler_spin, .. } = self.options;
        FaultHandlers::start(faults, &self.mmu, nr_handlers, handler_spin)
    }
}

fn default_capacity() -> u32 {
    let ram = probe::memory_total_bytes().unwrap_or(16 << 30);
    let limit = probe::cgroup_memory_max_bytes().unwrap_or(u64::MAX);
    u32::try_from((ram.min(limit) / PAGE_SIZE).max(1)).unwrap_or(u32::MAX)
}

/// Moves a page once, to see that it works here (a sandbox may pretend to be a newer kernel);
/// says whether `MADV_DONTNEED` frees a page table, which no version number tells.
fn try_out(uffd: &Uffd) -> Result<bool, SetupError> {
    let failed = |call, cause: std::io::Error| SetupError::Os {
        call,
        doing: "trying out how pages move",
        cause,
        remedy: "Linux 6.8 or later is needed, on x86-64 or arm64",
    };
    let memory = Mapping::anywhere(3 * PAGE_SIZE).map_err(|e| failed("mmap", e.into()))?;
    let src = memory.start().next_multiple_of(PAGE_SIZE);
    let dst = src + PAGE_SIZE;
    // SAFETY: the memory is ours alone, and nothing touches what is registered as missing.
    unsafe {
        mapping::prepare(src, 2 * PAGE_SIZE, c"gmm:trial")?;
        uffd.register(src, PAGE_SIZE, RegisterMode::WRITE_PROTECT)
            .and_then(|()| uffd.register(dst, PAGE_SIZE, RegisterMode::MISSING))
            .map_err(|e| failed("UFFDIO_REGISTER", e.into()))?;
        // The part that gets a page table first.
        uffd.zeropage(dst, 4096).map_err(|e| failed("UFFDIO_ZEROPAGE", e.errno.into()))?;
        mapping::empty(dst, PAGE_SIZE).map_err(|e| failed("madvise", e.into()))?;
        mapping::populate(src, PAGE_SIZE)
            .map_err(|e| failed("madvise(MADV_POPULATE_WRITE)", e.into()))?;
        let pagemap = Pagemap::open()?;
        let look = |at| {
            pagemap.try_look(at, PAGE_SIZE).map_err(|e| failed("ioctl(PAGEMAP_SCAN)", e.into()))
        };
        let was_huge = look(src)? == Look::Huge;
        uffd.move_pages(dst, src, PAGE_SIZE, MoveMode::default())
            .map_err(|e| failed("UFFDIO_MOVE", e.errno.into()))?;
        Ok(was_huge && look(dst)? == Look::Huge)
    }
}
