//! Host memory as a device: one node, whose frames are the slots of the pool.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gmm_core::driver::{
    Capabilities, Device, DriverError, Extent, Fence, NodeDescription, Op, Place,
};
use gmm_core::{Batch, Frame, FrameNr, HostAddr, NodeId};
use gmm_os::copy::stream_copy;
use rustix::io::Errno;

use crate::pool::{POPULATE, Pool};

/// Host memory. Its frames are ordinary anonymous memory: the kernel's swap, cgroups and NUMA
/// policy work on them. Operations complete inside [`Device::submit`].
#[derive(Debug)]
pub struct HostMemory {
    pool: Arc<Pool>,
    nodes: [NodeDescription; 1],
    first_node: AtomicU8,
    /// What the core does not hold: ascending, with gaps between.
    free: Mutex<Vec<Extent>>,
}

impl HostMemory {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        let all = Extent { start: FrameNr(0), nr_frames: pool.capacity() };
        Self {
            nodes: [NodeDescription { capacity_frames: pool.capacity() }],
            pool,
            first_node: AtomicU8::new(NodeId::HOST.0),
            free: Mutex::new(vec![all]),
        }
    }

    /// A frame's number, if it is one of ours.
    fn own(&self, frame: Frame) -> Result<FrameNr, DriverError> {
        let ours = frame.node.0 == self.first_node.load(Ordering::Relaxed);
        match ours && self.pool.has(frame.nr) {
            true => Ok(frame.nr),
            false => Err(DriverError::Broken("host memory was asked for a frame it doesn't have")),
        }
    }

    /// Whether an operation can be done at all.
    fn examine(&self, op: &Op) -> Result<(), DriverError> {
        let copy = op.as_bytes().ok_or(DriverError::Broken("bytes that are in no one frame"))?;
        if let Some((Place::Frame(frame), _)) = copy.from
            && self.pool.entered(self.own(frame)?).is_some()
        {
            return Err(DriverError::Broken("a copy from a frame that is in the window"));
        }
        if let (Op::CopyPart { .. }, Place::Frame(frame)) = (op, copy.to.0)
            && (self.pool.entered(self.own(frame)?).is_some() || self.pool.is_replicated(frame.nr))
        {
            return Err(DriverError::Broken("a copy to part of a frame that is in the window"));
        }
        copy.from.map_or(Ok(0), |from| self.at(from)).and(self.at(copy.to)).map(drop)
    }

    fn run(&self, op: &Op) -> Result<(), DriverError> {
        let copy = op.as_bytes().ok_or(DriverError::Broken("bytes that are in no one frame"))?;
        let Some(from) = copy.from else {
            let Op::Zero(frame) = *op else { return Err(DriverError::Unsupported) };
            return self.pool.zero(frame.nr);
        };
        if let Place::Frame(frame) = copy.to.0 {
            self.pool.set_entered(frame.nr, None);
            self.pool.populate(frame.nr)?;
        }
        let (to, from) = (self.at(copy.to)?, self.at(from)?);
        // SAFETY: bytes of frames of ours, or of other memory that the core vouches for until the
        // fence completes; the two ranges don't overlap.
        unsafe { stream_copy(to as *mut u8, from as *const u8, copy.len as usize) };
        Ok(())
    }

    /// The address of the byte at an offset of a place.
    fn at(&self, (place, offset): (Place, u64)) -> Result<u64, DriverError> {
        match place {
            Place::Frame(frame) => Ok(self.pool.slot(self.own(frame)?) + offset),
            Place::Host(addr) => Ok(addr.0 + offset),
            Place::Peer(_) => Err(DriverError::Unsupported),
        }
    }
}

/// A fence that says how a batch ended: 0 well, else with this error number in making a frame
/// present, which is all that can fail of what was examined.
fn fence_of(done: Result<(), DriverError>) -> Fence {
    Fence(match done {
        Ok(()) => 0,
        Err(DriverError::Os { errno, .. }) => u64::from(errno.unsigned_abs()),
        Err(_) => u64::from(Errno::NOMEM.raw_os_error().unsigned_abs()),
    })
}

fn outcome_of(fence: Fence) -> Result<(), DriverError> {
    match fence.0 {
        0 => Ok(()),
        errno => Err(crate::os_error(POPULATE, Errno::from_raw_os_error(errno as i32))),
    }
}

impl Device for HostMemory {
    fn name(&self) -> &str {
        "host memory"
    }

    fn capabilities(&self) -> Capabilities {
        // Not READ_ONLY_MAPPINGS: the CPU can map read-only, but a write through such a mapping is
        // a SIGSEGV, not a fault that the core hears of.
        Capabilities::REPLAYABLE_FAULTS
            | Capabilities::OWN_MEMORY
            | Capabilities::MOVABLE_FRAMES
            | Capabilities::COHERENT_LINK
            | Capabilities::READ_ONLY_REPLICAS
    }

    fn nodes(&self) -> &[NodeDescription] {
        &self.nodes
    }

    fn set_first_node(&self, first: NodeId) {
        self.first_node.store(first.0, Ordering::Relaxed);
    }

    fn import(
        &self,
        _: NodeId,
        mut nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while nr_frames > 0 && !out.is_full() && !free.is_empty() {
            let first = &mut free[0];
            let taken = Extent { start: first.start, nr_frames: first.nr_frames.min(nr_frames) };
            first.start.0 += taken.nr_frames;
            first.nr_frames -= taken.nr_frames;
            if first.nr_frames == 0 {
                free.remove(0);
            }
            nr_frames -= taken.nr_frames;
            out.push(taken);
        }
        Ok(())
    }

    fn release(&self, _: NodeId, extents: &[Extent]) {
        for extent in extents {
            for nr in extent.start.0..extent.start.0 + extent.nr_frames {
                // A frame that can't be emptied only costs memory until it is handed out again.
                let _ = self.pool.discard(FrameNr(nr));
            }
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let at = free.partition_point(|e| e.start < extent.start);
            free.insert(at, *extent);
            for left in [at, at.saturating_sub(1)] {
                if let [a, b, ..] = free[left..]
                    && a.start.0 + a.nr_frames == b.start.0
                {
                    free[left].nr_frames += b.nr_frames;
                    free.remove(left + 1);
                }
            }
        }
    }

    fn submit(&self, ops: &[Op]) -> Result<Fence, DriverError> {
        ops.iter().try_for_each(|op| self.examine(op))?;
        Ok(fence_of(ops.iter().try_for_each(|op| self.run(op))))
    }

    fn wait(&self, fence: Fence, _: Duration) -> Result<(), DriverError> {
        outcome_of(fence)
    }

    fn poll(&self, _: Fence) -> bool {
        true
    }

    fn host_addr(&self, frame: Frame) -> Option<HostAddr> {
        self.own(frame).ok().map(|nr| HostAddr(self.pool.slot(nr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_says_what_went_wrong() {
        let hardware = DriverError::Os { call: POPULATE, errno: libc::EHWPOISON };
        for done in [Ok(()), Err(DriverError::NoMemory), Err(hardware)] {
            assert_eq!(outcome_of(fence_of(done)), done);
        }
    }
}
