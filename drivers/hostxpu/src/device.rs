//! The host XPU as a device: its node, its frames and its copies.

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use gmm_core::driver::{
    Capabilities, Device, DriverError, Extent, Fence, NodeDescription, Op, PeerAddr, Place,
    RemoteHandle,
};
use gmm_core::{Batch, Frame, NodeId, PAGE_SIZE};
use gmm_os::Creator;

use crate::dma::{Engines, Transfer};
use crate::link::Direction;
use crate::memory::{FrameBacking, Memory};
use crate::{Error, HostXpuConfig};

/// All host XPUs of a process can copy from each other's memory.
const FABRIC: u64 = 1;

/// A host XPU: local memory and copy engines. Its contexts
/// ([`Context::new`](crate::Context::new)) run kernels.
pub struct HostXpuDevice {
    pub(crate) config: HostXpuConfig,
    nodes: [NodeDescription; 1],
    node: AtomicU8,
    joined_again: AtomicBool,
    // Engines first: they use the memory. Not dropped in a forked child, which has neither.
    engines: ManuallyDrop<Engines>,
    memory: ManuallyDrop<Memory>,
    creator: Creator,
}

const NO_NODE: u8 = u8::MAX;

impl HostXpuDevice {
    /// Makes one.
    ///
    /// # Errors
    /// A setting out of range, or the operating system refuses memory or threads.
    pub fn new(config: HostXpuConfig) -> Result<Arc<Self>, Error> {
        let capacity_frames = config.validate()?;
        let memory = Memory::new(&config, capacity_frames)?;
        let engines = Engines::start(&config)?;
        Ok(Arc::new(Self {
            nodes: [NodeDescription { capacity_frames }],
            node: AtomicU8::new(NO_NODE),
            joined_again: AtomicBool::new(false),
            engines: ManuallyDrop::new(engines),
            memory: ManuallyDrop::new(memory),
            creator: Creator::this_process(),
            config,
        }))
    }

    /// How many of the frames that the manager holds are backed how.
    pub fn frame_backing(&self) -> FrameBacking {
        self.memory.backing()
    }

    /// The number of its node, once it has joined a space.
    pub fn node(&self) -> Option<NodeId> {
        match self.node.load(Ordering::Acquire) {
            NO_NODE => None,
            node => Some(NodeId(node)),
        }
    }

    /// The number of its node in the one space that it may be in.
    pub(crate) fn only_node(&self) -> Result<NodeId, Error> {
        if self.joined_again.load(Ordering::Acquire) {
            return Err(Error::JoinedAgain);
        }
        self.node().ok_or(Error::NotJoined)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where a frame's bytes lie, if it is one of ours.
    fn bytes(&self, frame: Frame) -> Result<NonNull<u8>, DriverError> {
        let bytes =
            (Some(frame.node) == self.node()).then(|| self.memory.frame(frame.nr)).flatten();
        bytes.ok_or(DriverError::Broken("not a frame of this device"))
    }

    fn transfer(&self, op: &Op) -> Result<Transfer, DriverError> {
        let copy = op.as_bytes().ok_or(DriverError::Broken("bytes that are in no one frame"))?;
        let is_frame = |(place, _)| matches!(place, Place::Frame(_));
        if !is_frame(copy.to) && !copy.from.is_some_and(is_frame) {
            return Err(DriverError::Broken("a copy without a frame of this device"));
        }
        Ok(Transfer {
            from: copy.from.map(|from| self.at(from)).transpose()?.map(<*mut u8>::cast_const),
            to: self.at(copy.to)?,
            len: copy.len as usize,
            direction: if is_frame(copy.to) { Direction::In } else { Direction::Out },
        })
    }

    /// The byte at an offset of a place.
    fn at(&self, (place, offset): (Place, u64)) -> Result<*mut u8, DriverError> {
        let start = match place {
            Place::Frame(frame) => self.bytes(frame).map(NonNull::as_ptr)?,
            Place::Host(addr) => addr.0 as *mut u8,
            Place::Peer(addr) => addr.0 as *mut u8,
        };
        Ok(start.wrapping_add(offset as usize))
    }
}

impl Device for HostXpuDevice {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::OWN_MEMORY | Capabilities::PEER_COPY;
        capabilities.set(Capabilities::REPLAYABLE_FAULTS, self.config.replayable_faults);
        capabilities.set(Capabilities::READ_ONLY_MAPPINGS, self.config.read_only_mappings);
        capabilities
    }

    fn nodes(&self) -> &[NodeDescription] {
        &self.nodes
    }

    fn set_first_node(&self, first: NodeId) {
        // It has one number. What another space has copied, under another, fails; and no context
        // is made that would map frames of whatever has the first number there.
        let joins = (Ordering::AcqRel, Ordering::Acquire);
        if self.node.compare_exchange(NO_NODE, first.0, joins.0, joins.1).is_err() {
            self.joined_again.store(true, Ordering::Release);
        }
    }

    fn import(
        &self,
        node: NodeId,
        nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError> {
        if Some(node) != self.node() {
            return Err(DriverError::Broken("the device has joined twice"));
        }
        if let Some(extent) = self.memory.import(nr_frames)? {
            out.push(extent);
        }
        Ok(())
    }

    fn release(&self, _node: NodeId, extents: &[Extent]) {
        self.memory.release(extents);
    }

    fn submit(&self, ops: &[Op]) -> Result<Fence, DriverError> {
        for op in ops {
            self.transfer(op)?;
        }
        let transfers = ops.iter().map(|op| {
            // Checked just now; the node's number, once set, and the frames' places never change.
            self.transfer(op).expect("an operation that was checked")
        });
        // SAFETY: frames lie in the alias, which outlives the engines, and an operation within
        // them; host and peer addresses stay valid until the fence completes, as the core
        // promises; the two ranges of an operation don't overlap.
        Ok(unsafe { self.engines.submit(transfers) })
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), DriverError> {
        self.engines.wait(fence, timeout)
    }

    fn poll(&self, fence: Fence) -> bool {
        self.engines.poll(fence)
    }

    fn fabric(&self) -> Option<u64> {
        Some(FABRIC)
    }

    fn remote_handle(&self, frame: Frame) -> Option<RemoteHandle> {
        self.bytes(frame).ok()?;
        let fd = self.memory.fd().as_raw_fd();
        Some(RemoteHandle { fd, offset_bytes: u64::from(frame.nr.0) * PAGE_SIZE })
    }

    fn peer_addr(&self, frame: Frame) -> Option<PeerAddr> {
        self.bytes(frame).ok().map(|bytes| PeerAddr(bytes.as_ptr() as u64))
    }
}

impl Drop for HostXpuDevice {
    fn drop(&mut self) {
        if self.creator.is_this_process() {
            // SAFETY: dropped here only, and not used after.
            unsafe {
                ManuallyDrop::drop(&mut self.engines);
                ManuallyDrop::drop(&mut self.memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use gmm_core::{FrameNr, HostAddr};

    use super::*;

    const LEN: usize = PAGE_SIZE as usize;
    const LONG: Duration = Duration::from_secs(60);

    fn device(config: HostXpuConfig, node: u8) -> Arc<HostXpuDevice> {
        let device = HostXpuDevice::new(config).unwrap();
        device.set_first_node(NodeId(node));
        let mut out = Batch::new();
        (0..2).for_each(|_| device.import(NodeId(node), 16, &mut out).unwrap());
        device
    }

    fn frame(node: u8, nr: u32) -> Frame {
        Frame { node: NodeId(node), nr: FrameNr(nr) }
    }

    /// A host frame, aligned.
    struct Host(Vec<u8>, usize);

    impl Host {
        fn new(seed: u8) -> Self {
            let mut bytes = vec![0; 2 * LEN];
            let at = bytes.as_ptr().align_offset(LEN);
            bytes[at..at + LEN].iter_mut().enumerate().for_each(|(i, b)| {
                *b = (i as u8).wrapping_mul(seed) ^ (i >> 12) as u8;
            });
            Self(bytes, at)
        }
        fn addr(&mut self) -> Place {
            Place::Host(HostAddr(self.0[self.1..].as_mut_ptr() as u64))
        }
        fn bytes(&self) -> &[u8] {
            &self.0[self.1..self.1 + LEN]
        }
    }

    fn run(device: &HostXpuDevice, ops: &[Op]) {
        device.wait(device.submit(ops).unwrap(), LONG).unwrap();
    }

    #[test]
    fn bytes_survive_the_way_in_across_and_out() {
        let one = device(HostXpuConfig::new(8 * PAGE_SIZE), 1);
        let two = device(HostXpuConfig::new(8 * PAGE_SIZE).backing(crate::Backing::SmallPages), 2);
        assert_eq!(one.fabric(), two.fabric());
        let (mut from, mut to) = (Host::new(7), Host::new(1));
        let on_one = Place::Frame(frame(1, 3));
        run(&one, &[Op::Copy { from: from.addr(), to: on_one }]);
        let peer = Place::Peer(one.peer_addr(frame(1, 3)).unwrap());
        run(&two, &[Op::Copy { from: peer, to: Place::Frame(frame(2, 0)) }]);
        run(&two, &[Op::Copy { from: Place::Frame(frame(2, 0)), to: to.addr() }]);
        assert!(from.bytes() == to.bytes());
        run(&two, &[Op::Zero(frame(2, 0))]);
        run(&two, &[Op::Copy { from: Place::Frame(frame(2, 0)), to: to.addr() }]);
        assert!(to.bytes().iter().all(|&b| b == 0));
    }

    #[test]
    fn batches_of_any_length_and_number_complete() {
        let device = device(HostXpuConfig::new(4 * PAGE_SIZE).copy_engines(3), 1);
        let ops = [Op::Zero(frame(1, 0)); 40];
        run(&device, &ops);
        // More batches than there are slots: the rest completes at once.
        let fences: Vec<_> =
            (0..150).map(|_| device.submit(&[Op::Zero(frame(1, 1))]).unwrap()).collect();
        assert!(device.poll(fences[149]));
        fences.iter().for_each(|&fence| device.wait(fence, LONG).unwrap());
        run(&device, &[]);
    }

    #[test]
    fn polling_alone_completes_a_batch() {
        let device = device(HostXpuConfig::new(4 * PAGE_SIZE).copy_engines(1), 1);
        let fence = device.submit(&[Op::Zero(frame(1, 0))]).unwrap();
        while !device.poll(fence) {
            std::thread::yield_now();
        }
        device.wait(fence, Duration::ZERO).unwrap();
    }

    #[test]
    fn an_impossible_operation_starts_nothing() {
        let device = device(HostXpuConfig::new(4 * PAGE_SIZE), 1);
        let mut host = Host::new(3);
        let good = Op::Copy { from: host.addr(), to: Place::Frame(frame(1, 0)) };
        for bad in [
            Op::Zero(frame(1, 4)),
            Op::Zero(frame(2, 0)),
            Op::Copy { from: host.addr(), to: host.addr() },
        ] {
            assert!(matches!(device.submit(&[good, bad]), Err(DriverError::Broken(_))));
        }
        assert!(matches!(device.wait(Fence(77), LONG), Err(DriverError::Broken(_))));
    }

    #[test]
    fn a_remote_mapping_is_of_the_frame_and_outlives_the_device() {
        let device = device(HostXpuConfig::new(4 * PAGE_SIZE), 1);
        let mut host = Host::new(5);
        run(&device, &[Op::Copy { from: host.addr(), to: Place::Frame(frame(1, 2)) }]);
        assert_eq!(device.remote_handle(frame(1, 4)), None);
        assert_eq!(device.remote_handle(frame(2, 2)), None);
        let RemoteHandle { fd, offset_bytes } = device.remote_handle(frame(1, 2)).unwrap();
        // SAFETY: the device is there, and so is its file; a new mapping, which only this test
        // knows, read as bytes that nobody writes while they are read.
        let mapped = unsafe {
            let fd = std::os::fd::BorrowedFd::borrow_raw(fd);
            let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
            let at = rustix::mm::mmap(core::ptr::null_mut(), LEN, prot, flags, fd, offset_bytes);
            core::slice::from_raw_parts(at.unwrap().cast::<u8>(), LEN)
        };
        assert!(mapped == host.bytes());
        drop(device);
        assert!(mapped == host.bytes());
    }

    #[test]
    fn a_second_join_changes_nothing_but_is_known() {
        let device = device(HostXpuConfig::new(8 * PAGE_SIZE), 1);
        assert_eq!(device.only_node().unwrap(), NodeId(1));
        device.set_first_node(NodeId(2));
        assert!(matches!(device.only_node(), Err(Error::JoinedAgain)));
        run(&device, &[Op::Zero(frame(1, 3))]);
        assert!(device.submit(&[Op::Zero(frame(2, 3))]).is_err());
        assert!(device.import(NodeId(2), 1, &mut Batch::new()).is_err());
    }

    #[test]
    fn the_modelled_link_takes_its_time() {
        let config = HostXpuConfig::new(4 * PAGE_SIZE).link_bandwidth(100 * PAGE_SIZE);
        let device = device(config, 1);
        let mut host = Host::new(3);
        let ops = [Op::Copy { from: host.addr(), to: Place::Frame(frame(1, 0)) }; 3];
        let start = Instant::now();
        run(&device, &ops);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
