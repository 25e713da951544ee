//! An array device: nodes of the machine's memory, behind the `Device` trait.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use gmm_core::driver::{
    Capabilities, Device, DriverError, Extent, Fence, NodeDescription, Op, PeerAddr, RemoteHandle,
};
use gmm_core::sync::{RwLock, uncounted};
use gmm_core::{Batch, Frame, FrameNr, HostAddr, NodeId};

use super::frame::{FrameState, Memory, Slot};
use super::inject::{Call, Failure};
use super::machine::State;
use super::options::{Defect, DeviceOptions};
use super::transfer::Submitter;
use super::{ArrayContext, Machine};

/// One device of a [`Machine`]: the host or an XPU.
pub struct ArrayDevice {
    machine: Arc<Machine>,
    options: DeviceOptions,
    capabilities: Capabilities,
    descriptions: Vec<NodeDescription>,
    /// Where its memories are in the machine.
    memories: Range<usize>,
    first_node: RwLock<Option<NodeId>>,
}

impl ArrayDevice {
    pub(super) fn new(machine: &Arc<Machine>, options: DeviceOptions) -> Arc<Self> {
        let own = if options.node_frames.is_empty() {
            Capabilities::empty()
        } else {
            Capabilities::OWN_MEMORY
        };
        let memories = machine.with(|s| {
            let first = s.memories.len();
            s.memories.extend(options.node_frames.iter().map(|&n| Memory {
                frames: vec![FrameState::new(); n as usize],
                host: options.host,
                fabric: options.fabric,
                plain: false,
            }));
            first..s.memories.len()
        });
        let nodes = options.node_frames.iter();
        Arc::new(Self {
            machine: machine.clone(),
            capabilities: (options.capabilities - Capabilities::OWN_MEMORY) | own,
            descriptions: nodes.map(|&n| NodeDescription { capacity_frames: n }).collect(),
            options,
            memories,
            first_node: RwLock::new(None),
        })
    }

    /// A context of this device, on its `index`-th node; a device without memory is on node 0.
    pub fn context(&self, index: usize) -> Arc<ArrayContext> {
        let memory = if self.memories.is_empty() { 0 } else { self.memories.start + index };
        ArrayContext::new(&self.machine, memory, self.capabilities, self.options.defect)
    }

    /// The machine it is part of.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// The node in the space of its `index`-th memory, once it has joined one; `None` if it has
    /// no memory.
    pub fn node(&self, index: usize) -> Option<NodeId> {
        if index >= self.memories.len() {
            return None;
        }
        let first = uncounted(|| self.first_node.with(|first| *first));
        first.map(|n| NodeId(n.0 + index as u8))
    }

    fn by(&self) -> Submitter<'_> {
        Submitter { options: &self.options, memories: self.memories.clone() }
    }

    /// Arithmetic alone: addresses may be asked for at any time.
    fn slot_of(&self, frame: Frame) -> Option<Slot> {
        let index = frame.node.0.checked_sub(self.node(0)?.0)?;
        let capacity = self.descriptions.get(usize::from(index))?.capacity_frames;
        let memory = self.memories.start + usize::from(index);
        (frame.nr.0 < capacity).then_some(Slot { memory, nr: frame.nr.0 as usize })
    }

    fn own_slot(&self, state: &State, frame: Frame) -> Option<Slot> {
        state.slot(frame).filter(|s| self.memories.contains(&s.memory))
    }

    fn hand_over(
        &self,
        state: &mut State,
        memory: usize,
        wanted: u32,
        out: &mut Batch<Extent, 16>,
    ) {
        let defect = self.options.defect;
        let wanted = wanted.min(self.options.import_limit);
        let wanted = if defect == Some(Defect::ImportTooMany) { wanted + 1 } else { wanted };
        let frames = &mut state.memories[memory].frames;
        let held = |f: &FrameState| f.imported && defect != Some(Defect::FrameTwice);
        let mut free: Vec<usize> =
            (0..frames.len()).filter(|&nr| !held(&frames[nr])).take(wanted as usize).collect();
        if self.options.scattered {
            free.reverse();
        }
        let mut open: Option<Extent> = None;
        for nr in free {
            let extends = open.is_some_and(|e| (e.start.0 + e.nr_frames) as usize == nr);
            if let Some(extent) = open.as_mut().filter(|_| extends) {
                extent.nr_frames += 1;
            } else if out.len() + usize::from(open.is_some()) == 16 {
                break;
            } else {
                open.into_iter().for_each(|e| out.push(e));
                open = Some(Extent { start: FrameNr(nr as u32), nr_frames: 1 });
            }
            frames[nr] = FrameState { imported: true, ..FrameState::new() };
        }
        open.into_iter().for_each(|e| out.push(e));
    }

    fn take_back(&self, state: &mut State, frame: Frame) {
        let Some(slot) = self.own_slot(state, frame) else {
            return state.blame("frames released exist", format!("{frame:?}"));
        };
        let what = state.frame(slot);
        if !what.imported {
            state.blame("frames released are held", format!("{slot}"));
        } else if what.in_flight() {
            state.blame("a frame in flight is left alone", format!("release of {slot}"));
        } else if what.contents == super::frame::Contents::Lost {
            state.blame("lost frames are not used again", format!("release of {slot}"));
        }
        if state.is_mapped(slot, false) {
            state.blame("nobody maps a frame that is released", format!("{slot}"));
        }
        *state.frame_mut(slot) = FrameState::new();
    }
}

impl Device for ArrayDevice {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn nodes(&self) -> &[NodeDescription] {
        &self.descriptions
    }

    fn set_first_node(&self, first: NodeId) {
        self.first_node.with_mut(|n| *n = Some(first));
        self.machine.with(|s| {
            for (index, memory) in self.memories.clone().enumerate() {
                s.name_node(NodeId(first.0 + index as u8), memory);
            }
        });
    }

    fn import(
        &self,
        node: NodeId,
        nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError> {
        self.machine.call_hook(Call::Import);
        self.machine.with(|s| {
            match s.injector.decide(Call::Import) {
                Some(Failure::Error(error)) => return Err(error),
                Some(Failure::Hang) => return Err(DriverError::Timeout),
                Some(Failure::Death) | None => {}
            }
            let Some(slot) = self.own_slot(s, Frame { node, nr: FrameNr(0) }) else {
                return Err(s.refuse("nodes named exist", format!("import from {node:?}")));
            };
            self.hand_over(s, slot.memory, nr_frames, out);
            Ok(())
        })
    }

    fn release(&self, node: NodeId, extents: &[Extent]) {
        self.machine.with(|s| {
            let numbers = extents.iter().flat_map(|e| e.start.0..e.start.0 + e.nr_frames);
            let lose = usize::from(self.options.defect == Some(Defect::FrameLost));
            for nr in numbers.skip(lose) {
                self.take_back(s, Frame { node, nr: FrameNr(nr) });
            }
        });
    }

    fn submit(&self, ops: &[Op]) -> Result<Fence, DriverError> {
        self.machine.call_hook(Call::Submit);
        self.machine.with(|s| {
            s.catch_up(&self.by());
            s.submit(&self.by(), ops)
        })
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), DriverError> {
        self.machine.call_hook(Call::Wait);
        while self.options.defect == Some(Defect::HangInWait) {
            std::thread::park();
        }
        self.machine.with(|s| s.wait(&self.by(), fence, timeout, self.machine.clock()))
    }

    fn poll(&self, fence: Fence) -> bool {
        self.machine.with(|s| s.poll(&self.by(), fence))
    }

    fn host_addr(&self, frame: Frame) -> Option<HostAddr> {
        self.options.host.then_some(())?;
        self.slot_of(frame).map(Slot::host_addr)
    }

    fn fabric(&self) -> Option<u64> {
        self.options.fabric
    }

    fn peer_addr(&self, frame: Frame) -> Option<PeerAddr> {
        self.options.fabric?;
        self.slot_of(frame).map(Slot::peer_addr)
    }

    fn remote_handle(&self, frame: Frame) -> Option<RemoteHandle> {
        let stays = !self.capabilities.contains(Capabilities::MOVABLE_FRAMES);
        let neighbour = self.options.defect == Some(Defect::HandleOfANeighbour);
        let frame = Frame { nr: FrameNr(frame.nr.0 ^ u32::from(neighbour)), ..frame };
        self.slot_of(frame).filter(|_| stays && self.options.handles).map(Slot::remote_handle)
    }
}
