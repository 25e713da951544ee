//! Moving bytes: which device copies what. A frame of host memory is known to other devices by
//! address; two XPUs copy directly where they share a fabric, else through a host frame.

use crate::Frame;
use crate::driver::{Capabilities, DriverError, Op, Place};
use crate::node::{Node, TransitFrame};
use crate::space::Space;

impl Space {
    /// Fills `target` with the bytes of `from`, or with zero bytes. The source's bytes must not
    /// change meanwhile. `bounce` is a host frame, needed if [`Space::needs_bounce`].
    ///
    /// # Errors
    /// The frames are free again, but those that an operation may still be using.
    pub(crate) fn fill<'a>(
        &self,
        from: Option<Frame>,
        target: TransitFrame<'a>,
        bounce: Option<TransitFrame<'_>>,
    ) -> Result<TransitFrame<'a>, DriverError> {
        let to = target.frame();
        let Some(from) = from else {
            return self.run_into(target, self.known_node(to.node), Op::Zero(to));
        };
        if let Some((node, op)) = self.direct(from, to) {
            return self.run_into(target, node, op);
        }
        let bounce = bounce.ok_or(DriverError::NoMemory)?;
        let no_addr = DriverError::Broken("no host address");
        let (node, op) = self.direct(from, bounce.frame()).ok_or(no_addr)?;
        let bounce = self.run_into(bounce, node, op)?;
        let (node, op) = self.direct(bounce.frame(), to).ok_or(no_addr)?;
        self.run_into(target, node, op).inspect_err(|&error| give_up(bounce, error))
    }

    /// Whether bytes go from the one to the other by way of host memory.
    pub(crate) fn needs_bounce(&self, from: Frame, to: Frame) -> bool {
        self.direct(from, to).is_none()
    }

    fn direct(&self, from: Frame, to: Frame) -> Option<(&Node, Op)> {
        direct(self.known_node(from.node), from, self.known_node(to.node), to)
    }

    /// Runs the one operation that fills `target`.
    fn run_into<'a>(
        &self,
        target: TransitFrame<'a>,
        node: &Node,
        op: Op,
    ) -> Result<TransitFrame<'a>, DriverError> {
        match self.run(node, &[op]) {
            Ok(()) => Ok(target),
            Err(error) => {
                give_up(target, error);
                Err(error)
            }
        }
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

/// What becomes of a frame that an operation was to write or map: free again, unless the operation
/// may still be running.
pub(crate) fn give_up(frame: TransitFrame<'_>, error: DriverError) {
    if error == DriverError::Timeout {
        frame.lose();
    }
}
