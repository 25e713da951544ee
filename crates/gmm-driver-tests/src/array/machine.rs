//! The machine that the array devices are part of: all memories, all page tables, one lock.

use std::fmt;
use std::sync::Arc;

use gmm_core::driver::{DriverError, PeerAddr, RemoteHandle};
use gmm_core::sync::{Mutex, RwLock, uncounted};
use gmm_core::{Frame, HostAddr, MAX_NODES, NodeId, PAGE_SHIFT, PAGE_SIZE, PageNr};

use super::frame::{FRAME_WORDS, FrameState, Memory, Slot, byte_at};
use super::inject::{Call, Injector, Trigger};
use super::mappings::Table;
use super::transfer::Pending;
use super::{ArrayDevice, DeviceOptions};
use crate::TestClock;

/// Something the core did that the driver traits don't allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule, as the traits state it.
    pub rule: &'static str,
    /// What was done.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// What a hook is called with: the kind of driver call, before it happens and with no lock of the
/// machine held.
pub(super) type Hook = Arc<dyn Fn(Call) + Send + Sync>;

/// A machine of array devices.
pub struct Machine {
    state: Mutex<State, 3>,
    hook: RwLock<Option<Hook>>,
    clock: Arc<TestClock>,
}

/// What the machine's lock guards.
pub(super) struct State {
    pub(super) memories: Vec<Memory>,
    pub(super) tables: Vec<Table>,
    pub(super) pending: Vec<Pending>,
    pub(super) next_fence: u64,
    pub(super) injector: Injector,
    /// The memory of each node of the space.
    nodes: [Option<usize>; MAX_NODES],
    violations: Vec<Violation>,
}

const HOST_TAG: u64 = 1 << 60;
const PEER_TAG: u64 = 1 << 61;

impl Machine {
    /// A machine with no device yet. `clock` goes on when a driver call hangs.
    pub fn new(clock: Arc<TestClock>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                memories: Vec::new(),
                tables: Vec::new(),
                pending: Vec::new(),
                next_fence: 1,
                injector: Injector::default(),
                nodes: [None; MAX_NODES],
                violations: Vec::new(),
            }),
            hook: RwLock::new(None),
            clock,
        })
    }

    /// Adds a device.
    pub fn device(self: &Arc<Self>, options: DeviceOptions) -> Arc<ArrayDevice> {
        ArrayDevice::new(self, options)
    }

    /// What the core did wrong so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.with(|s| s.violations.clone())
    }

    /// Records what only a quiet machine can tell: batches that nobody waited for.
    pub fn check_quiet(&self) {
        self.with(|s| {
            for fence in s.pending.iter().map(|p| p.fence).collect::<Vec<_>>() {
                s.blame("each fence is waited for once", format!("fence {fence} never was"));
            }
        });
    }

    /// Sets which driver calls fail from now on; `None` lets all succeed.
    pub fn inject(&self, trigger: Option<Trigger>) {
        self.with(|s| s.injector.set(trigger));
    }

    /// How many calls the trigger made fail since it was set, and the kind of the last.
    pub fn injected(&self) -> (u64, Option<Call>) {
        self.with(|s| s.injector.hits())
    }

    /// How many calls of a kind there were.
    pub fn calls(&self, call: Call) -> u64 {
        self.with(|s| s.injector.count(call))
    }

    /// Has `hook` called before each driver call, on the thread that makes it. It may block, and
    /// so let a test hold a driver call while something else happens.
    pub fn set_hook(&self, hook: Option<Arc<dyn Fn(Call) + Send + Sync>>) {
        self.hook.with_mut(|h| *h = hook);
    }

    /// The words of the frame that a handle names.
    pub fn handle_words(&self, handle: RemoteHandle) -> Option<[u64; FRAME_WORDS]> {
        self.with(|s| s.handle_slot(handle).map(|slot| s.frame(slot).words))
    }

    /// Fills the frame that a handle names.
    pub fn set_handle_words(&self, handle: RemoteHandle, words: [u64; FRAME_WORDS]) {
        self.with(|s| {
            if let Some(slot) = s.handle_slot(handle) {
                let frame = s.frame_mut(slot);
                frame.words = words;
                if frame.contents == super::frame::Contents::Rubbish {
                    frame.contents = super::frame::Contents::Filled;
                }
            }
        });
    }

    /// The words of a frame of host memory, by the address that devices use.
    pub fn read_host(&self, addr: HostAddr) -> Option<[u64; FRAME_WORDS]> {
        self.with(|s| s.host_slot(addr).map(|slot| s.frame(slot).words))
    }

    /// Fills a frame of host memory, by the address that devices use.
    pub fn write_host(&self, addr: HostAddr, words: [u64; FRAME_WORDS]) {
        self.with(|s| {
            if let Some(slot) = s.host_slot(addr) {
                s.frame_mut(slot).words = words;
                s.frame_mut(slot).contents = super::frame::Contents::Filled;
            }
        });
    }

    /// Ordinary memory of the process, of `nr_frames` frames' length, full of zero bytes; the
    /// address by which devices copy from and to it.
    pub fn plain_memory(&self, nr_frames: usize) -> HostAddr {
        self.with(|s| {
            let frame = FrameState { imported: true, ..FrameState::filled() };
            let frames = vec![frame; nr_frames];
            s.memories.push(Memory { frames, host: true, fabric: None, plain: true });
            Slot { memory: s.memories.len() - 1, nr: 0 }.host_addr()
        })
    }

    /// The byte of host memory at `addr`; `None` if it does not exist.
    pub fn host_byte(&self, addr: HostAddr) -> Option<u8> {
        self.with(|s| {
            let slot = s.host_slot(addr)?;
            byte_at(addr.0 & (PAGE_SIZE - 1)).map(|byte| s.frame(slot).byte(byte))
        })
    }

    /// Writes the byte of host memory at `addr`, if it exists.
    pub fn set_host_byte(&self, addr: HostAddr, value: u8) {
        self.with(|s| {
            let (slot, byte) = (s.host_slot(addr), byte_at(addr.0 & (PAGE_SIZE - 1)));
            if let (Some(slot), Some(byte)) = (slot, byte) {
                s.frame_mut(slot).set_byte(byte, value);
            }
        });
    }

    /// How many frames of `node` are in the core's hands.
    pub fn nr_imported(&self, node: NodeId) -> usize {
        self.with(|s| {
            let memory = s.nodes[usize::from(node.0)];
            memory.map_or(0, |m| s.memories[m].frames.iter().filter(|f| f.imported).count())
        })
    }

    /// How many mappings of `page` there are, in all contexts.
    pub fn nr_mappers(&self, page: PageNr) -> usize {
        self.with(|s| s.tables.iter().filter(|t| t.entries.contains_key(&page)).count())
    }

    pub(super) fn clock(&self) -> &TestClock {
        &self.clock
    }

    pub(super) fn call_hook(&self, call: Call) {
        if let Some(hook) = uncounted(|| self.hook.with(Clone::clone)) {
            hook(call);
        }
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        uncounted(|| f(&mut self.state.lock()))
    }
}

impl State {
    pub(super) fn blame(&mut self, rule: &'static str, detail: String) {
        self.violations.push(Violation { rule, detail });
    }

    /// Records a violation and gives the error with which the call then fails.
    pub(super) fn refuse(&mut self, rule: &'static str, detail: String) -> DriverError {
        self.blame(rule, detail);
        DriverError::Broken(rule)
    }

    pub(super) fn name_node(&mut self, node: NodeId, memory: usize) {
        self.nodes[usize::from(node.0)] = Some(memory);
    }

    pub(super) fn slot(&self, frame: Frame) -> Option<Slot> {
        let memory = (*self.nodes.get(usize::from(frame.node.0))?)?;
        let nr = frame.nr.0 as usize;
        (nr < self.memories[memory].frames.len()).then_some(Slot { memory, nr })
    }

    pub(super) fn frame(&self, slot: Slot) -> &super::frame::FrameState {
        &self.memories[slot.memory].frames[slot.nr]
    }

    pub(super) fn frame_mut(&mut self, slot: Slot) -> &mut super::frame::FrameState {
        &mut self.memories[slot.memory].frames[slot.nr]
    }

    fn handle_slot(&self, handle: RemoteHandle) -> Option<Slot> {
        let slot = Slot {
            memory: usize::try_from(handle.fd).ok()?,
            nr: (handle.offset_bytes >> PAGE_SHIFT) as usize,
        };
        let memory = self.memories.get(slot.memory)?;
        (slot.nr < memory.frames.len()).then_some(slot)
    }

    pub(super) fn host_slot(&self, addr: HostAddr) -> Option<Slot> {
        self.tagged(addr.0, HOST_TAG).filter(|s| self.memories[s.memory].host)
    }

    pub(super) fn peer_slot(&self, addr: PeerAddr, fabric: Option<u64>) -> Option<Slot> {
        let slot = self.tagged(addr.0, PEER_TAG)?;
        (fabric.is_some() && self.memories[slot.memory].fabric == fabric).then_some(slot)
    }

    fn tagged(&self, addr: u64, tag: u64) -> Option<Slot> {
        let frames = addr.checked_sub(tag)? >> PAGE_SHIFT;
        let slot = Slot { memory: (frames >> 20) as usize, nr: (frames & 0xF_FFFF) as usize };
        let memory = self.memories.get(slot.memory)?;
        (slot.nr < memory.frames.len()).then_some(slot)
    }
}

impl Slot {
    pub(super) fn host_addr(self) -> HostAddr {
        HostAddr(HOST_TAG + self.offset())
    }

    pub(super) fn peer_addr(self) -> PeerAddr {
        PeerAddr(PEER_TAG + self.offset())
    }

    /// Its memory as the file, its place as the offset.
    pub(super) fn remote_handle(self) -> RemoteHandle {
        let offset_bytes = (self.nr as u64) << PAGE_SHIFT;
        RemoteHandle { fd: self.memory as i32, offset_bytes }
    }

    fn offset(self) -> u64 {
        ((self.memory as u64) << 20 | self.nr as u64) << PAGE_SHIFT
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {} of memory {}", self.nr, self.memory)
    }
}
