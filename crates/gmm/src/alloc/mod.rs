//! Device memory, allocated and freed in the order of streams: [`DeviceAllocator`].
//!
//! It is the stitching allocator of [`gmm_alloc`] over frames of an XPU's node. What is live is
//! resident on the XPU and stays there ([`PIN`](crate::Advice::Pin)); what is freed serves the
//! next request, of any size and on any stream, which waits for the work that may still use it.
//! Kernels get addresses of unified memory as ever. The CPU gets at the contents by
//! [`Gmm::gmemcpy`](crate::Gmm::gmemcpy), or, with a coherent link, by the address.
//!
//! ```no_run
//! use gmm::alloc::DeviceAllocator;
//!
//! # fn main() -> gmm::Result<()> {
//! let gmm = gmm::Gmm::builder().xpu(gmm::HostXpu::with_memory(64 << 20)).build()?;
//! let xpu = gmm.xpu(1)?;
//! let memory = DeviceAllocator::new(&xpu, 48 << 20)?;
//! let (module, stream) = (xpu.load("libgmm_kernels.so")?, xpu.stream()?);
//! let x = memory.allocate(1 << 20, &stream)?;
//! // SAFETY: `x` has room for the numbers, and nobody else uses it.
//! let _ = unsafe { stream.launch(&module.kernel("fill")?, 1, (x.as_mut_ptr(), 1000, 2.0_f32))? };
//! // Without waiting: whoever gets this memory next comes after the launch.
//! x.free(&stream)?;
//! # Ok(())
//! # }
//! ```

mod backend;
mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gmm_alloc::{Allocation, Allocator, BlockId, Stitching, StreamId};
use gmm_core::{PageRange, VirtAddr};

pub use gmm_alloc::{Action, Cause, Error as AllocatorError, OutOfMemory, Stats};

use crate::{Error, Gmm, Result, Stream, Xpu};
use backend::XpuFrames;

/// An allocator of one XPU's memory. Clones are handles to the same one; it may be used from
/// several threads.
#[derive(Clone)]
pub struct DeviceAllocator {
    inner: Arc<Mutex<Stitching<XpuFrames>>>,
}

/// Memory that a [`DeviceAllocator`] has handed out. Dropped, it is freed on the stream that it
/// was allocated on.
#[derive(Debug)]
pub struct DeviceMemory {
    allocator: DeviceAllocator,
    block: BlockId,
    addr: VirtAddr,
    len_bytes: u64,
    /// Its own stream.
    stream: StreamId,
    is_freed: bool,
}

impl DeviceAllocator {
    /// An allocator of up to `capacity_bytes` (rounded down to whole pages) of `xpu`'s node. It
    /// holds nothing until something is allocated. A node lets programs pin three quarters of it
    /// at first: [`Gmm::set_pin_limit`](crate::Gmm::set_pin_limit) changes that.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn new(xpu: &Xpu, capacity_bytes: u64) -> Result<Self> {
        let frames = XpuFrames::new(xpu, capacity_bytes)?;
        Ok(Self { inner: Arc::new(Mutex::new(Stitching::new(frames))) })
    }

    /// Memory for work that is launched on `stream` from now on, of at least `size_bytes`. It lies
    /// at a multiple of 512 bytes and may hold anything.
    ///
    /// # Errors
    /// [`Error::Allocator`] with [`OutOfMemory`], which says whether memory is exhausted or
    /// fragmented, in numbers; [`Error::Backing`] with what the manager refused.
    pub fn allocate(&self, size_bytes: u64, stream: &Stream) -> Result<DeviceMemory> {
        let gmm = self.gmm();
        // 0 is for regions.
        let recorded_as = stream.nr() + 1;
        let mut own = StreamId::default();
        let allocate = || {
            self.with(stream, |inner, id| {
                own = id;
                inner.allocate(size_bytes, id)
            })
        };
        let at = |given: &Allocation| given.addr;
        let given = gmm.recordings().allocating(size_bytes, recorded_as, allocate, at)?;
        Ok(DeviceMemory {
            allocator: self.clone(),
            block: given.block,
            addr: given.addr,
            len_bytes: given.usable_bytes,
            stream: own,
            is_freed: false,
        })
    }

    /// Gives back to the node all memory that nothing lives in, waiting for launches that may
    /// still use it. Returns how many bytes.
    ///
    /// # Errors
    /// [`Error::Backing`]. What was given back by then is gone, the rest is kept.
    pub fn trim(&self) -> Result<u64> {
        let mut inner = self.lock();
        let trimmed = inner.trim();
        explained(&mut inner, trimmed)
    }

    /// What is and was in use.
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    fn gmm(&self) -> Gmm {
        self.lock().backend().gmm().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Stitching<XpuFrames>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        stream: &Stream,
        act: impl FnOnce(&mut Stitching<XpuFrames>, StreamId) -> gmm_alloc::Result<T>,
    ) -> Result<T> {
        let mut inner = self.lock();
        let id = inner.backend_mut().know(stream);
        let done = act(&mut inner, id);
        explained(&mut inner, done)
    }
}

/// What the manager said, where the allocator only knows that it refused.
fn explained<T>(allocator: &mut Stitching<XpuFrames>, done: gmm_alloc::Result<T>) -> Result<T> {
    let cause = allocator.backend_mut().take_refusal();
    done.map_err(|error| match (error, cause) {
        (gmm_alloc::Error::Backend { action, .. }, Some(cause)) => {
            Error::Backing { action, cause: Box::new(cause) }
        }
        (error, _) => error.into(),
    })
}

impl core::fmt::Debug for DeviceAllocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("DeviceAllocator").field(&self.stats()).finish()
    }
}

impl DeviceMemory {
    /// Its first byte, an address of unified memory.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.addr.0 as usize)
    }

    /// How many bytes are the caller's: what was asked for, rounded up.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The pages that it lies in, others' memory in them included: what
    /// [`Stream::launch_using`] is to hold on an XPU whose faults can't be replayed.
    ///
    /// # Panics
    /// Never: what was handed out is within the address space.
    pub fn pages(&self) -> PageRange {
        PageRange::covering(self.addr, self.len_bytes).expect("memory that exists is a range")
    }

    /// Says that launches on `stream` use it: it is not used again before all that `stream` has
    /// been given when it is freed has run. That they come after what filled it is the caller's
    /// affair.
    ///
    /// # Errors
    /// None that a program can cause.
    pub fn record_use(&self, stream: &Stream) -> Result<()> {
        self.allocator.with(stream, |inner, user| inner.record_use(self.block, user))
    }

    /// Frees it at the point that `stream` has come to: its own, or one whose launches used it
    /// last. Returns at once; nothing that is launched later may use it.
    ///
    /// # Errors
    /// None that a program can cause.
    pub fn free(mut self, stream: &Stream) -> Result<()> {
        self.is_freed = true;
        let free = || self.allocator.with(stream, |inner, last| inner.free(self.block, last));
        self.allocator.gmm().recordings().freeing(self.addr, self.len_bytes, free)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.is_freed {
            // It is live: nobody else can have freed it.
            let free = || Ok(self.allocator.lock().free(self.block, self.stream)?);
            let _ = self.allocator.gmm().recordings().freeing(self.addr, self.len_bytes, free);
        }
    }
}
