//! Moving bytes: which device copies what. A frame of host memory is known to other devices by
//! address; two XPUs copy directly where they share a fabric, else through a host frame.

use crate::driver::{Capabilities, DriverError, Op, Place};
use crate::node::{Node, TransitFrame};
use crate::space::Space;
use crate::{Frame, NodeId};

impl Space {
    /// Fills a frame with zero bytes.
    pub(crate) fn zero(&self, node: &Node, frame: Frame) -> Result<(), DriverError> {
        self.run(node, &[Op::Zero(frame)])
    }

    /// Copies one frame to another, of any nodes. The source's bytes must not change meanwhile.
    pub(crate) fn copy(&self, from: Frame, to: Frame) -> Result<(), DriverError> {
        let (source, target) = (self.known_node(from.node), self.known_node(to.node));
        if let Some((node, op)) = direct(source, from, target, to) {
            return self.run(node, &[op]);
        }
        let host = self.known_node(NodeId::HOST);
        let bounce = self.try_take_frame(host).ok_or(DriverError::NoMemory)?;
        let halves = [(from, bounce.frame()), (bounce.frame(), to)];
        for (from, to) in halves {
            let ends = (self.known_node(from.node), self.known_node(to.node));
            let (node, op) =
                direct(ends.0, from, ends.1, to).ok_or(DriverError::Broken("no host address"))?;
            if let Err(error) = self.run(node, &[op]) {
                give_up(bounce, error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs a batch of operations on a node's device and waits for it.
    pub(crate) fn run(&self, node: &Node, ops: &[Op]) -> Result<(), DriverError> {
        let fence = node.device.submit(ops)?;
        node.device.wait(fence, self.config.copy_timeout)
    }
}

/// The copy as one operation, and the node whose device does it; `None` if no device can.
pub(crate) fn direct<'n>(
    source: &'n Node,
    from: Frame,
    target: &'n Node,
    to: Frame,
) -> Option<(&'n Node, Op)> {
    if std::sync::Arc::ptr_eq(&source.device, &target.device) {
        return Some((target, Op::Copy { from: Place::Frame(from), to: Place::Frame(to) }));
    }
    if let Some(addr) = source.device.host_addr(from) {
        return Some((target, Op::Copy { from: Place::Host(addr), to: Place::Frame(to) }));
    }
    if let Some(addr) = target.device.host_addr(to) {
        return Some((source, Op::Copy { from: Place::Frame(from), to: Place::Host(addr) }));
    }
    let is_peer = target.device.capabilities().contains(Capabilities::PEER_COPY)
        && source.device.fabric().is_some()
        && source.device.fabric() == target.device.fabric();
    let peer = source.device.peer_addr(from).filter(|_| is_peer)?;
    Some((target, Op::Copy { from: Place::Peer(peer), to: Place::Frame(to) }))
}

/// What becomes of a frame that an operation was to write: free again, unless the operation may
/// still be running.
pub(crate) fn give_up(frame: TransitFrame<'_>, error: DriverError) {
    if error == DriverError::Timeout {
        frame.lose();
    }
}
