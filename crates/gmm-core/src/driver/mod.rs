//! What a driver implements so that its accelerator takes part in unified memory.
//!
//! Two traits, because memory belongs to a device and a page table to a context: [`Device`] (its
//! nodes, frames, zeroing and copying) and [`Mmu`] (five page-table operations). This is the
//! kernel programming interface of the GMM paper (its Table 3), in user space.
//!
//! Setting up, in order: make the device, give it to [`Space::new`](crate::Space::new) (the host)
//! or [`Space::add_device`](crate::Space::add_device) (an XPU), which says its node numbers; make
//! a context and give its `Mmu` to [`Space::attach`](crate::Space::attach), which says its
//! processor; call [`Space::fault`](crate::Space::fault) when the context faults.

mod device;
mod error;
mod mmu;

pub use device::{
    ByteCopy, Capabilities, Device, Extent, Fence, NodeDescription, Op, PeerAddr, Place,
    RemoteHandle,
};
pub use error::{DriverError, Partial};
pub use mmu::{Access, Clear, Enter, Examine, MappingKind, Mmu, Protection};
