//! What a driver's test supplies so that the kit can check the driver.

use core::time::Duration;
use std::sync::Arc;

use gmm_core::driver::{Access, Device, Mmu, RemoteHandle};
use gmm_core::{Config, Frame, HostAddr, PAGE_SIZE, PageRange, VirtAddr};

use super::PlainHostMemory;

/// A driver under test.
pub trait Subject: Send + Sync {
    /// What to call it in the report.
    fn name(&self) -> String;

    /// A fresh device: nothing imported, no context, `set_first_node` not called yet. Called once
    /// for each rule; what the last one left behind is dropped.
    fn bench(&self) -> Box<dyn Bench>;

    /// How long one rule may take before it counts as broken.
    fn deadline(&self) -> Duration {
        Duration::from_secs(20)
    }
}

impl<S: Subject> Subject for &'static S {
    fn name(&self) -> String {
        (*self).name()
    }

    fn bench(&self) -> Box<dyn Bench> {
        (*self).bench()
    }

    fn deadline(&self) -> Duration {
        (*self).deadline()
    }
}

/// One device with all that is needed to try it.
pub trait Bench: Send + Sync {
    /// The device.
    fn device(&self) -> Arc<dyn Device>;

    /// A new context on the device's `node`-th node, attached to nothing.
    fn context(&self, node: usize) -> Box<dyn TestContext>;

    /// Host memory for copies, `nr_frames` frames of it. The default is ordinary memory of this
    /// process at its real address.
    fn host_memory(&self, nr_frames: usize) -> Box<dyn HostMemory> {
        Box::new(PlainHostMemory::new(nr_frames))
    }

    /// Addresses that the kit may use: at least 24 pages.
    fn window(&self) -> PageRange {
        let window = Config::default().window;
        PageRange { start: window.start, nr_pages: 64 }
    }

    /// The offsets within a page that the kit reads and writes: ascending multiples of 8, no two
    /// of them the same word, the first and the last word of the page among them.
    fn offsets(&self) -> Vec<u64> {
        let mut offsets: Vec<u64> = (0..PAGE_SIZE).step_by(4096).collect();
        offsets.push(PAGE_SIZE - 8);
        offsets
    }

    /// A host and a CPU to share a space with, for the rules about faults: a host device and the
    /// page table of its CPU. `None`: those rules are skipped. Where the device *is* the host,
    /// the device itself and its CPU.
    fn host(&self) -> Option<(Arc<dyn Device>, Box<dyn TestContext>)> {
        None
    }

    /// The word at `offset` of the frame that one of the device's handles names; `None` if there
    /// is nothing. The default reads the file.
    fn read_handle(&self, handle: RemoteHandle, offset: u64) -> Option<u64> {
        super::far::read_file(handle, offset)
    }

    /// A frame of another device, for contexts of this one to map remotely. The default is a file
    /// in shared memory; `None`: the rules about remote mappings are skipped.
    fn far_frame(&self) -> Option<Box<dyn FarFrame>> {
        Some(Box::new(super::FarFile::new()?))
    }
}

/// A frame of another device than the one under test, as that device sees it.
pub trait FarFrame: Send + Sync {
    /// Its name.
    fn frame(&self) -> Frame;

    /// What maps it.
    fn handle(&self) -> RemoteHandle;

    /// The word at `offset`.
    fn read(&self, offset: u64) -> u64;

    /// Writes the word at `offset`.
    fn write(&self, offset: u64, value: u64);
}

/// Serves a fault of a context; `true` if the access can go on.
pub type Serve = Arc<dyn Fn(VirtAddr, Access) -> bool + Send + Sync>;

/// A context and the cores behind it.
pub trait TestContext: Send + Sync {
    /// Its page table.
    fn mmu(&self) -> Arc<dyn Mmu>;

    /// Has one of its cores read the word at `addr`. Called by several threads at once: each is
    /// to be a core of its own where the device has several.
    ///
    /// # Errors
    /// [`Refused`]: the access faulted and was not served, or the context is dead.
    fn load(&self, addr: VirtAddr) -> Result<u64, Refused>;

    /// Has one of its cores write the word at `addr`.
    ///
    /// # Errors
    /// As [`TestContext::load`].
    fn store(&self, addr: VirtAddr, value: u64) -> Result<(), Refused>;

    /// Has one of its cores add 1 to the word at `addr`, atomically. The default is for devices
    /// without atomic operations: the kit then skips what needs them.
    ///
    /// # Errors
    /// As [`TestContext::load`].
    fn increment(&self, addr: VirtAddr) -> Option<Result<(), Refused>> {
        let _ = addr;
        None
    }

    /// Has faults served from now on, where the device replays them. Until this is called (and
    /// after `None`) an access that faults is refused.
    fn serve(&self, serve: Option<Serve>);

    /// Kills the context as an accident would; `false` if it can't be killed. Returns without
    /// waiting for the death to have happened.
    fn kill(&self) -> bool {
        false
    }

    /// Makes the next batch of enters or clears stop after `done` elements with an error;
    /// `false` if the driver has no such switch (most have none, the array device has).
    fn stop_next_batch_after(&self, done: usize) -> bool {
        let _ = done;
        false
    }
}

/// An access did not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the access faulted and was not served")]
pub struct Refused;

/// Host memory that devices copy from and to.
pub trait HostMemory: Send + Sync {
    /// The address of a frame for DMA.
    fn addr(&self, frame: usize) -> HostAddr;

    /// The word at `offset` of a frame.
    fn read(&self, frame: usize, offset: u64) -> u64;

    /// Writes the word at `offset` of a frame.
    fn write(&self, frame: usize, offset: u64, value: u64);
}
