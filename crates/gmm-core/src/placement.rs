//! Where a want is served, and how: what was advised decides, in the order of NVIDIA's UVM.
//!
//! 1. A page that is pinned stays: it is mapped remotely, or read from a copy, or not at all.
//! 2. Reads of read-mostly pages make copies.
//! 3. A page that prefers a node is (brought and) mapped there, if it can be from here.
//! 4. So is one that goes back and forth, or that this node's processors are known to access:
//!    where it is now.
//! 5. Else it comes to the node of who wants it; as it does for a prefetch or a launch, which
//!    name the node.

use crate::driver::{Access, Capabilities, MappingKind, Protection};
use crate::entry::Mapping;
use crate::fault::{Cause, Want};
use crate::node::Node;
use crate::space::Space;
use crate::{Frame, NodeId, Processor};

/// How a want is served.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    /// Where the page has a copy afterwards.
    pub(crate) node: &'a Node,
    /// Whether that is the only one.
    pub(crate) exclusive: bool,
    pub(crate) way: Way,
}

/// How the processor maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Local,
    Replica,
    Remote,
}

impl Space {
    /// The plan for a want, as the page is now. `own_only`: the node that the page prefers has no
    /// room.
    pub(crate) fn plan<'a>(&'a self, m: &Mapping, want: &Want<'a>, own_only: bool) -> Plan<'a> {
        let reads = want.access == Access::Read;
        // Without read-only mappings nothing would tell a later write.
        let exclusive = !reads || want.processor.is_some_and(|p| !p.maps_read_only());
        let here = Plan { node: want.node, exclusive, way: Way::Local };
        let Some(p) = want.processor.filter(|_| want.cause == Cause::Fault) else { return here };
        if !m.is_advised() && !self.is_thrashing(want.page) {
            return here;
        }
        let advised = self.attributes_of(m, want.page);
        let pinned = advised.pinned.map(|(node, _)| node);
        if pinned == Some(p.node) {
            return here;
        }
        let is_elsewhere = m.copies().any(|c| c.node != p.node);
        let copy = match (reads && is_elsewhere, exclusive) {
            (true, false) => Some(here),
            (true, true) if p.maps_replicas() => {
                Some(Plan { exclusive: false, way: Way::Replica, ..here })
            }
            _ => None,
        };
        if let Some(copy) = copy.filter(|_| advised.read_mostly) {
            return copy;
        }
        let has_room = |&node: &NodeId| !own_only || m.copy_on(node).is_some();
        let home = match (pinned, advised.preferred.filter(has_room)) {
            (None, Some(preferred)) if preferred == p.node => return here,
            (None, Some(preferred)) if self.maps_remotely(p, preferred) => Some(preferred),
            (None, _) if advised.accessed_by.contains(p.node) || self.is_thrashing(want.page) => {
                m.copies().map(|c| c.node).find(|&at| at != p.node && self.maps_remotely(p, at))
            }
            (pinned, _) => pinned.filter(|&at| self.maps_remotely(p, at)),
        };
        match (home, copy) {
            (Some(home), _) => {
                Plan { node: self.known_node(home), exclusive: true, way: Way::Remote }
            }
            (None, Some(copy)) if pinned.is_some() => copy,
            (None, _) => here,
        }
    }

    /// Whether `p` can map frames of `node`, which is not its own.
    pub(crate) fn maps_remotely(&self, p: &Processor, node: NodeId) -> bool {
        let device = &self.known_node(node).device;
        let any = Frame { node, nr: crate::FrameNr(0) };
        p.capabilities.contains(Capabilities::COHERENT_LINK) && device.remote_handle(any).is_some()
    }

    /// How `p` maps `frame`, which is a copy of the page: as it does already if it does.
    pub(crate) fn kind_of(&self, m: &Mapping, p: &Processor, frame: Frame) -> MappingKind {
        if frame.node != p.node {
            let handle = self.known_node(frame.node).device.remote_handle(frame);
            return handle.map_or(MappingKind::Local, MappingKind::Remote);
        }
        match m.has_replica() && p.moves_frames() {
            true => MappingKind::Replica,
            false => MappingKind::Local,
        }
    }

    /// The protection under which `p` maps the page now.
    pub(crate) fn mapping_protection(&self, m: &Mapping, p: &Processor) -> Protection {
        let is_replica = m.has_replica() && p.moves_frames();
        match is_replica || m.writable().contains(p.id) {
            true => m.protection,
            false => Protection::ReadOnly,
        }
    }
}
