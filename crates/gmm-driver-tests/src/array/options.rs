//! The knobs of an array device.

use gmm_core::driver::Capabilities;

/// When the operations of a batch happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Completion {
    /// Inside `submit`, as in a simple driver.
    #[default]
    Inline,
    /// Inside `wait`, or at the second `poll`: whoever uses the result earlier sees old bytes.
    AtWait,
    /// The first half of each frame inside `submit`, the second inside `wait`.
    Halves,
}

/// A fault built into a device on purpose, to show that the conformance kit catches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// `pmap_clear` leaves the translation in the cores' TLB: they write through the old mapping.
    StaleTlb,
    /// A core's last store waits in a buffer and lands when the core is next heard of, which may
    /// be after `pmap_clear`.
    LateWrite,
    /// `va_release` does not wait for the store that is under way: it lands when the core is next
    /// heard of. `pmap_clear` does.
    LateWriteAtRelease,
    /// `import` hands out a frame that the core holds already.
    FrameTwice,
    /// `release` forgets the first frame it is given.
    FrameLost,
    /// `import` hands out more frames than it was asked for.
    ImportTooMany,
    /// A batch of clears that stops part way says that one more was done than was.
    CountTooHigh,
    /// A batch of enters that stops part way says that one fewer was done than was.
    CountTooLow,
    /// `wait` never returns.
    HangInWait,
    /// `poll` never says that a batch is complete.
    PollNever,
    /// Copies leave out the last word of the frame.
    CopyMissesTail,
    /// A copy of a part that does not end with a word writes a byte too many.
    PartWritesBeyond,
    /// Copies to host memory copy from it instead.
    CopyBackwards,
    /// `wait` returns before the copy has been made; it is made at the next call.
    WaitTooEarly,
    /// Only the first operation of a batch happens.
    BatchFirstOnly,
    /// `zero` leaves out the first word.
    ZeroMissesHead,
    /// A read-only mapping lets writes through.
    ReadOnlyIsNot,
    /// Entering a mapped page again does not change its protection.
    ReenterIgnored,
    /// `pmap_enter` maps another frame than it was told.
    WrongFrame,
    /// `pmap_enter` of several pages makes only the first mapping and reports success.
    EnterFirstOnly,
    /// `pmap_clear` removes nothing and reports success.
    ClearIgnored,
    /// `pmap_clear` on a dead context is an error.
    ClearFailsWhenDead,
    /// The frames of a context that dies are wiped.
    DeathWipesFrames,
    /// `va_release` leaves the mappings in place.
    ReleaseKeepsMappings,
    /// Every range is refused, after one was released.
    ReservationLeaks,
    /// `remote_handle` names the frame beside the one that was asked for.
    HandleOfANeighbour,
    /// A remote mapping is one of a private copy.
    RemoteIsACopy,
    /// `pmap_clear` leaves remote mappings in the cores' TLB.
    RemoteStays,
    /// `va_release` leaves remote mappings in place.
    ReleaseKeepsRemote,
    /// A write through a replica goes to the frame.
    ReplicaLetsWritesThrough,
    /// A replica takes its frame out of reach, as mapping the frame itself does.
    ReplicaTakesFrame,
    /// `pmap_clear` leaves replicas in the cores' TLB.
    ReplicaStays,
}

/// What an array device is like.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// What it is called.
    pub name: String,
    /// Whether its memory is host memory, which other devices reach by address.
    pub host: bool,
    /// The frames of each of its nodes.
    pub node_frames: Vec<u32>,
    /// What it can do. `OWN_MEMORY` is implied by `node_frames`.
    pub capabilities: Capabilities,
    /// When its operations happen.
    pub completion: Completion,
    /// Its fabric, for `PEER_COPY`.
    pub fabric: Option<u64>,
    /// How many frames one `import` hands over at most.
    pub import_limit: u32,
    /// Whether processors of other nodes can map its frames (never those that move).
    pub handles: bool,
    /// Whether an import hands over single frames in descending order instead of one run.
    pub scattered: bool,
    /// What is wrong with it.
    pub defect: Option<Defect>,
}

impl DeviceOptions {
    /// Host memory with frames that move into the CPU's page table, which has no read-only
    /// mappings: what `userfaultfd` gives.
    pub fn host(frames: u32) -> Self {
        Self {
            host: true,
            capabilities: Capabilities::REPLAYABLE_FAULTS | Capabilities::MOVABLE_FRAMES,
            ..Self::xpu("host", frames)
        }
    }

    /// An XPU with one node that can fault, map read-only, and not copy to its peers.
    pub fn xpu(name: &str, frames: u32) -> Self {
        Self {
            name: name.into(),
            host: false,
            node_frames: vec![frames],
            capabilities: Capabilities::REPLAYABLE_FAULTS | Capabilities::READ_ONLY_MAPPINGS,
            completion: Completion::default(),
            fabric: None,
            import_limit: 16,
            handles: true,
            scattered: false,
            defect: None,
        }
    }

    /// With capabilities added.
    #[must_use]
    pub fn with(mut self, capabilities: Capabilities) -> Self {
        self.capabilities |= capabilities;
        if capabilities.contains(Capabilities::PEER_COPY) {
            self.fabric.get_or_insert(1);
        }
        self
    }

    /// With capabilities taken away.
    #[must_use]
    pub fn without(mut self, capabilities: Capabilities) -> Self {
        self.capabilities -= capabilities;
        self
    }

    /// With operations that happen at another time.
    #[must_use]
    pub fn completing(mut self, completion: Completion) -> Self {
        self.completion = completion;
        self
    }

    /// With a fault built in.
    #[must_use]
    pub fn broken(mut self, defect: Defect) -> Self {
        self.defect = Some(defect);
        self
    }
}
