//! XPUs as a program uses them: load a kernel, launch it, wait.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gmm_core::driver::Access;
use gmm_core::{Hold, NodeId, PageRange, Space, VirtAddr};
use gmm_hostxpu::{Context, HostXpuConfig, HostXpuDevice, KernelArgs};

use crate::{Gmm, Result};

/// A host XPU to add to a [`Builder`](crate::Builder): an accelerator made of a process, which
/// every machine has.
#[derive(Clone, Debug)]
pub struct HostXpu(HostXpuConfig);

impl HostXpu {
    /// A host XPU with that much memory of its own, in bytes.
    pub fn with_memory(bytes: u64) -> Self {
        Self(HostXpuConfig::new(bytes))
    }

    /// How many cores run kernels.
    #[must_use]
    pub fn cores(self, cores: u32) -> Self {
        Self(self.0.cores(cores))
    }

    /// Everything else that can be set about it.
    #[must_use]
    pub fn config(self, change: impl FnOnce(HostXpuConfig) -> HostXpuConfig) -> Self {
        Self(change(self.0))
    }
}

/// An XPU of a [`Gmm`], and its default context, made when it is first asked for and again after
/// it has died.
#[derive(Clone)]
pub(crate) struct Device {
    device: Arc<HostXpuDevice>,
    node: NodeId,
    replayable_faults: bool,
    context: Arc<Mutex<Option<Arc<Context>>>>,
}

impl Device {
    pub(crate) fn new(space: &Arc<Space>, xpu: HostXpu) -> Result<Self> {
        use gmm_core::driver::{Capabilities, Device as _};
        let device = HostXpuDevice::new(xpu.0)?;
        let node = space.add_device(Arc::clone(&device) as _)?;
        let replayable_faults = device.capabilities().contains(Capabilities::REPLAYABLE_FAULTS);
        Ok(Self { device, node, replayable_faults, context: Arc::default() })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn backing(&self) -> String {
        self.device.frame_backing().kind().to_string()
    }

    /// The default context, alive.
    pub(crate) fn context(&self, gmm: &Gmm) -> Result<Arc<Context>> {
        let mut slot = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = slot.as_ref().filter(|c| c.is_alive()) {
            return Ok(Arc::clone(context));
        }
        let context = Context::new(gmm.enter()?.space, &self.device)?;
        *slot = Some(Arc::clone(&context));
        Ok(context)
    }
}

/// A context of an XPU: a page table of its own, and cores to run kernels.
#[derive(Clone)]
pub struct Xpu {
    gmm: Gmm,
    device: Device,
    context: Arc<Context>,
}

impl Xpu {
    pub(crate) fn new(gmm: Gmm, device: Device, context: Arc<Context>) -> Self {
        Self { gmm, device, context }
    }

    /// The node of its memory.
    pub fn node(&self) -> u8 {
        self.device.node.0
    }

    /// Another context of the same XPU: another page table over the same memory. Contexts of one
    /// host XPU are not isolated from each other's code.
    ///
    /// # Errors
    /// [`Error::Xpu`](crate::Error::Xpu) if it can't be made.
    pub fn new_context(&self) -> Result<Self> {
        let context = Context::new(self.gmm.enter()?.space, &self.device.device)?;
        Ok(Self { context, ..self.clone() })
    }

    /// Loads a library of kernels. A name without a directory is looked for beside the program,
    /// in `deps/` there and above, and in the directories of `GMM_KERNEL_PATH`.
    ///
    /// # Errors
    /// [`Error::Xpu`](crate::Error::Xpu), naming the library and where it was looked for, or what
    /// the dynamic linker said.
    pub fn load(&self, library: impl AsRef<Path>) -> Result<Module> {
        let _inside = self.gmm.enter()?;
        Ok(Module { xpu: self.clone(), inner: self.context.load(library)? })
    }

    /// A new stream: launches on it run in order, those of other streams at the same time.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn stream(&self) -> Result<Stream> {
        let _inside = self.gmm.enter()?;
        static STREAMS: AtomicU64 = AtomicU64::new(0);
        let nr = STREAMS.fetch_add(1, Ordering::Relaxed);
        Ok(Stream { nr, xpu: self.clone(), inner: Arc::new(self.context.stream()) })
    }

    /// Makes `pages` resident on this XPU and mapped by this context, and keeps them there until
    /// the result is dropped: neither evicted nor moved. Others that need to write them, or to
    /// read them while they can be written, wait.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager): not mapped, or out of memory with numbers.
    pub fn hold(&self, pages: &[PageRange], access: Access) -> Result<Held> {
        let inside = self.gmm.enter()?;
        let hold = inside.space.hold(self.context.processor(), pages, access)?;
        Ok(Held { gmm: self.gmm.clone(), hold: Some(hold) })
    }

    pub(crate) fn gmm(&self) -> &Gmm {
        &self.gmm
    }

    /// The host XPU's own view of the context: its process, its counters.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What a launch must hold resident: nothing where faults can be replayed, else the regions
    /// of all words that are addresses in unified memory.
    fn ranges_used(&self, args: &impl KernelArgs) -> Vec<PageRange> {
        if self.device.replayable_faults {
            return Vec::new();
        }
        let regions = self.gmm.regions();
        let mut used = Vec::new();
        for word in args.words() {
            let page = VirtAddr(word).page();
            let region = regions.iter().map(|r| r.range).find(|range| range.contains(page));
            used.extend(region.filter(|range| !used.contains(range)));
        }
        used
    }
}

impl core::fmt::Debug for Xpu {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Xpu(node {}, process {})", self.node(), self.context.pid())
    }
}

/// Pages that [`Xpu::hold`] keeps where they are.
pub struct Held {
    gmm: Gmm,
    hold: Option<Hold>,
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.gmm.enter() {
            Ok(_inside) => drop(self.hold.take()),
            // In a forked child nothing is ours.
            Err(_) => core::mem::forget(self.hold.take()),
        }
    }
}

impl core::fmt::Debug for Held {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Held")
    }
}

/// A loaded library of kernels.
#[derive(Clone)]
pub struct Module {
    xpu: Xpu,
    inner: gmm_hostxpu::Module,
}

impl Module {
    /// Finds a kernel by name.
    ///
    /// # Errors
    /// [`Error::Xpu`](crate::Error::Xpu), naming the kernel and the library.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let _inside = self.xpu.gmm.enter()?;
        Ok(Kernel { inner: self.inner.kernel(name)? })
    }
}

/// A kernel: an `unsafe extern "C" fn(index: u64, count: u64, args: *const u64)`.
#[derive(Clone)]
pub struct Kernel {
    inner: gmm_hostxpu::Kernel,
}

/// A queue of launches.
pub struct Stream {
    /// No other stream of this process has it.
    nr: u64,
    xpu: Xpu,
    inner: Arc<gmm_hostxpu::Stream>,
}

impl Stream {
    pub(crate) fn nr(&self) -> u64 {
        self.nr
    }

    pub(crate) fn queue(&self) -> &Arc<gmm_hostxpu::Stream> {
        &self.inner
    }

    /// Launches `kernel` over the indices `0 .. grid`, which the XPU's cores take one by one.
    /// Where faults can't be replayed, the regions of all pointers in `args` are made resident
    /// and held until the launch completes; [`Stream::launch_using`] names them instead.
    ///
    /// # Safety
    /// As on every accelerator, the caller answers for the kernel: `args` are what it expects; it
    /// stays within memory that is valid for it; and until the launch completes nobody else
    /// writes what it reads or touches what it writes, in ways that Rust's references exclude.
    ///
    /// # Errors
    /// [`Error::Xpu`](crate::Error::Xpu) if it can't be started. What goes wrong later is
    /// [`Launch::wait`]'s error.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: u64,
        args: impl KernelArgs,
    ) -> Result<Launch> {
        let ranges = self.xpu.ranges_used(&args);
        // SAFETY: the caller's promise.
        unsafe { self.launch_using(kernel, grid, args, &ranges) }
    }

    /// As [`Stream::launch`], with the ranges that the kernel uses: they are made resident and
    /// held until the launch completes.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    ///
    /// # Errors
    /// As [`Stream::launch`], and out of memory if the ranges don't fit.
    pub unsafe fn launch_using(
        &self,
        kernel: &Kernel,
        grid: u64,
        args: impl KernelArgs,
        ranges: &[PageRange],
    ) -> Result<Launch> {
        let _inside = self.xpu.gmm.enter()?;
        // SAFETY: the caller's promise.
        let inner = unsafe { self.inner.launch(&kernel.inner, grid, args, ranges)? };
        Ok(Launch { inner, _xpu: self.xpu.clone() })
    }
}

/// A launch under way. Dropping it does not stop it.
#[must_use = "a launch that is not waited for may still run when its data is dropped"]
pub struct Launch {
    inner: gmm_hostxpu::Launch,
    _xpu: Xpu,
}

impl Launch {
    /// Waits until every index has run.
    ///
    /// # Errors
    /// [`Error::Xpu`](crate::Error::Xpu): the kernel made a wild access (with address and kernel),
    /// crashed, ran out of memory, or its context was killed.
    pub fn wait(self) -> Result<()> {
        Ok(self.inner.wait()?)
    }

    /// As [`Launch::wait`], at most `timeout`; says whether it has completed.
    ///
    /// # Errors
    /// As [`Launch::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        Ok(self.inner.wait_timeout(timeout)?)
    }
}
