//! The space: the unified address space of one process, its nodes and its processors.

use std::sync::{Arc, OnceLock};

use crate::attributes::AttributeTable;
use crate::driver::{Capabilities, Device, DriverError, Examine, Mmu, Protection};
use crate::node::Node;
use crate::region::Regions;
use crate::remap::Subscribers;
use crate::stats::Stats;
use crate::sync::{Mutex, MutexGuard, Rank, RwLock, Shards, Shared};
use crate::table::Table;
use crate::thrashing::Thrashing;
use crate::trace::Hook;
use crate::{
    Clock, Config, Error, EvictionPolicy, MAX_NODES, MAX_PROCESSORS, NodeId, PageNr, PageRange,
    Processor, ProcessorId, ProcessorSet, RegionInfo, Result, VirtAddr,
};

/// The unified address space of one process (the paper's `gm_as`).
pub struct Space {
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) table: Table,
    pub(crate) stats: Stats,
    pub(crate) thrashing: Thrashing,
    pub(crate) hook: Hook,
    pub(crate) regions: Mutex<Regions, { Rank::Regions as u8 }>,
    pub(crate) attributes: RwLock<AttributeTable>,
    pub(crate) subscribers: RwLock<Subscribers>,
    nodes: [OnceLock<Node>; MAX_NODES],
    processors: Shards<Processor, MAX_PROCESSORS>,
    cpu: Arc<Processor>,
    /// Held while devices join, contexts attach and detach, and regions come and go, so that each
    /// context is asked about each region.
    setup: Mutex<Setup, { Rank::Setup as u8 }>,
}

/// What only the set-up operations know.
#[derive(Default)]
pub(crate) struct Setup {
    nr_nodes: usize,
    /// Processors that have left, until nobody else has them: a thread that serves faults may
    /// have one in its hands, and must not be the one that ends a driver's context.
    left: Vec<Arc<Processor>>,
}

/// What [`Space::attach`] gives.
#[derive(Debug)]
pub struct Attached {
    /// The processor to fault as.
    pub processor: Arc<Processor>,
    /// Regions whose addresses the context could not reserve. It can't use them; the others can.
    pub refused: Vec<RegionInfo>,
}

impl Space {
    /// A space with the CPU as processor 0 and host memory as node 0.
    ///
    /// # Errors
    /// [`Error::TooManyNodes`] if the host has more than a space can hold.
    pub fn new(
        config: Config,
        host: Arc<dyn Device>,
        cpu: Arc<dyn Mmu>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let cpu =
            Arc::new(Processor::new(ProcessorId::CPU, NodeId::HOST, cpu, host.capabilities()));
        let space = Self {
            clock,
            table: Table::new(config.window),
            stats: Stats::new(),
            thrashing: Thrashing::new(),
            hook: Hook::default(),
            regions: Mutex::new(Regions::new(config.window)),
            attributes: RwLock::default(),
            subscribers: RwLock::default(),
            nodes: [const { OnceLock::new() }; MAX_NODES],
            processors: Shards::new(),
            cpu: Arc::clone(&cpu),
            setup: Mutex::default(),
            config,
        };
        space.add_device(host)?;
        space.stats.begin(&cpu);
        space.processors.set(0, Some(&cpu));
        Ok(Arc::new(space))
    }

    /// Begins a set-up operation.
    pub(crate) fn set_up(&self) -> MutexGuard<'_, Setup, { Rank::Setup as u8 }> {
        let mut setup = self.setup.lock();
        setup.left.retain(|processor| Arc::strong_count(processor) > 1);
        setup
    }

    /// The settings it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The CPU.
    pub fn cpu(&self) -> &Arc<Processor> {
        &self.cpu
    }

    /// A device joins; says the number of its first node (the others follow), which is node 0 if
    /// it has no memory.
    ///
    /// # Errors
    /// [`Error::TooManyNodes`]; [`Error::NeedsStableFrames`] if its DMA pins host memory and the
    /// host's frames move.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<NodeId> {
        let mut setup = self.set_up();
        let nr_nodes = setup.nr_nodes;
        let needs_stable = device.capabilities().contains(Capabilities::NEEDS_STABLE_HOST_FRAMES);
        if needs_stable && self.cpu.moves_frames() {
            return Err(Error::NeedsStableFrames);
        }
        let descriptions = device.nodes();
        if nr_nodes + descriptions.len() > MAX_NODES {
            return Err(Error::TooManyNodes { wanted: descriptions.len() });
        }
        if descriptions.is_empty() {
            return Ok(NodeId::HOST);
        }
        let first = NodeId(nr_nodes as u8);
        device.set_first_node(first);
        for (i, description) in descriptions.iter().enumerate() {
            let id = NodeId((nr_nodes + i) as u8);
            let capacity = description.capacity_frames;
            // Of host memory only copies that another node duplicates leave: no policy is asked.
            let policy = if id == NodeId::HOST { EvictionPolicy::Lru } else { self.config.policy };
            let policy = policy.make(capacity);
            let node = Node::new(id, Arc::clone(&device), capacity, policy, &self.config);
            let percent = u64::from(self.config.pin_limit_percent.min(100));
            node.set_pin_limit((u64::from(capacity) * percent / 100) as u32);
            assert!(self.nodes[id.index()].set(node).is_ok(), "node {id} was made twice");
        }
        setup.nr_nodes += descriptions.len();
        Ok(first)
    }

    /// A context joins as a processor of `node`. It is asked to reserve the addresses of every
    /// region that exists.
    ///
    /// # Errors
    /// [`Error::UnknownNode`], [`Error::TooManyProcessors`].
    pub fn attach(&self, node: NodeId, mmu: Arc<dyn Mmu>) -> Result<Attached> {
        let _setup = self.set_up();
        let of_node = self.node(node)?.device.capabilities();
        let capabilities = mmu.capabilities().unwrap_or(of_node);
        let free = (0..MAX_PROCESSORS).find(|&id| self.processors.get(id).is_none());
        let id = ProcessorId(free.ok_or(Error::TooManyProcessors)? as u8);
        // Frames move for the processor that owns the window, not for others of its node.
        let capabilities = capabilities - Capabilities::MOVABLE_FRAMES;
        let processor = Arc::new(Processor::new(id, node, mmu, capabilities));
        let regions: Vec<_> = self.regions.lock().iter().map(|r| r.range).collect();
        let mut refused = Vec::new();
        for range in regions {
            if !matches!(processor.mmu.va_examine(range), Ok(Examine::Reserved)) {
                refused.extend(self.note_refusal(range, id));
            }
        }
        self.stats.begin(&processor);
        // Seen by others only when it is known what it can use.
        self.processors.set(id.index(), Some(&processor));
        Ok(Attached { processor, refused })
    }

    fn note_refusal(&self, range: PageRange, id: ProcessorId) -> Vec<RegionInfo> {
        let mut noted = Vec::new();
        self.regions.lock().for_each_mut(|region| {
            if range.contains_range(region.range) {
                region.refused_by.insert(id);
                noted.push(region.clone());
            }
        });
        for region in &noted {
            for (_, entry) in self.table.entries(region.range) {
                entry.lock().set_refused_by_some(true);
            }
        }
        noted
    }

    /// A context leaves: nothing is mapped for it any more when this returns, and faults of it
    /// fail. The data in its node's frames stays. Does nothing the second time.
    pub fn detach(&self, processor: &Processor) {
        let mut setup = self.set_up();
        if !processor.set_detached() {
            return;
        }
        let regions = self.regions.lock().ranges_not_refused_by(processor.id);
        for range in regions {
            for (page, entry) in self.table.entries(range) {
                let mut mapping = entry.lock();
                if mapping.mapped().contains(processor.id) {
                    // A context that can't be cleared has been killed by its driver, and is
                    // dead; or it does as it likes with the frame, which is no other page's then.
                    let _ = self.clear_one(&mut mapping, page, processor);
                    self.forget_mapping(&mut mapping, processor.id);
                }
            }
            processor.mmu.va_release(range);
        }
        self.regions.lock().for_each_mut(|region| region.refused_by.remove(processor.id));
        self.stats.end(processor);
        let left = self.processors.get(processor.id.index()).map(|left| left.to_arc());
        self.processors.set(processor.id.index(), None);
        setup.left.extend(left);
    }

    /// Makes a region of at least `len_bytes`, rounded up to whole pages, which reads as zero.
    /// Every context is asked about the addresses before the CPU claims them.
    ///
    /// # Errors
    /// [`Error::ZeroLength`], [`Error::AddressOverflow`], [`Error::NoAddresses`],
    /// [`Error::Refused`] after [`Config::examine_tries`] ranges, or at once with the cause if
    /// the CPU's driver fails.
    pub fn mmap(&self, len_bytes: u64, protection: Protection, name: &str) -> Result<PageRange> {
        let nr_pages = PageRange::covering(VirtAddr(0), len_bytes)?.nr_pages;
        // Read, and allocated, before any lock is taken: it may lie in unified memory.
        let name = name.to_owned();
        let _setup = self.set_up();
        let mut tries = Tries { space: self, rejected: Vec::new() };
        let mut hint = None;
        loop {
            let (from, alignment_pages) = hint.take().unwrap_or((None, 1));
            let range = self.regions.lock().take(nr_pages, from, alignment_pages)?;
            match self.reserve_everywhere(range) {
                Ok(()) => {
                    self.open(range, protection, name);
                    return Ok(range);
                }
                Err(refusal) => {
                    tries.rejected.push(range);
                    let nr_tries = tries.rejected.len() as u32;
                    let Refusal { processor, cause, .. } = refusal;
                    // What keeps the CPU from one range (a limit of the process, say) keeps it
                    // from all.
                    let is_final = cause.is_some() && processor == ProcessorId::CPU;
                    if is_final || nr_tries >= self.config.examine_tries {
                        let (tries, last) = (nr_tries, range);
                        return Err(Error::Refused { processor, tries, last, cause });
                    }
                    hint = refusal.suggestion;
                }
            }
        }
    }

    /// Asks every context, and the CPU last, to reserve `range`; all or none.
    fn reserve_everywhere(&self, range: PageRange) -> Result<(), Refusal> {
        let mut reserved = ProcessorSet::EMPTY;
        let cpu_last = self.processors().chain(self.processors.get(0));
        for processor in cpu_last {
            let (suggestion, cause) = match processor.mmu.va_examine(range) {
                Ok(Examine::Reserved) => {
                    reserved.insert(processor.id);
                    continue;
                }
                Ok(Examine::Suggest { base, alignment_bytes }) => {
                    let alignment_pages = (alignment_bytes >> crate::PAGE_SHIFT).max(1);
                    (Some((Some(base.page()), alignment_pages)), None)
                }
                // A dead context will use no addresses.
                Err(DriverError::Dead) => continue,
                Ok(Examine::Refused) => (None, None),
                Err(cause) => (None, Some(cause)),
            };
            for other in self.processors().filter(|p| reserved.contains(p.id)) {
                other.mmu.va_release(range);
            }
            return Err(Refusal { processor: processor.id, suggestion, cause });
        }
        Ok(())
    }

    fn open(&self, range: PageRange, protection: Protection, name: String) {
        self.table.make(range);
        for (page, entry) in self.table.entries(range) {
            entry.lock().open(protection, page == range.start);
        }
        self.regions.lock().establish(range, protection, name);
    }

    /// Whether a node of that number exists.
    ///
    /// # Errors
    /// [`Error::UnknownNode`].
    pub fn check_node(&self, node: NodeId) -> Result<()> {
        self.node(node).map(drop)
    }

    /// Whether a node is one of `device`'s, in this space.
    pub fn is_node_of(&self, node: NodeId, device: &dyn Device) -> bool {
        let wanted = core::ptr::from_ref(device).cast::<()>();
        self.node(node).is_ok_and(|n| Arc::as_ptr(&n.device).cast::<()>() == wanted)
    }

    /// Whether regions cover the whole range.
    ///
    /// # Errors
    /// [`Error::NotMapped`] with the first address that is in no region,
    /// [`Error::AddressOverflow`].
    pub fn check_mapped(&self, range: PageRange) -> Result<()> {
        self.regions.lock().covering(range).map(drop)
    }

    /// The regions, by address.
    pub fn regions(&self) -> Vec<RegionInfo> {
        self.regions.lock().iter().cloned().collect()
    }

    /// The node of that number.
    pub(crate) fn node(&self, id: NodeId) -> Result<&Node> {
        let node = self.nodes.get(id.index()).and_then(OnceLock::get);
        node.ok_or_else(|| Error::UnknownNode {
            node: id,
            last: NodeId(self.nodes().count().saturating_sub(1) as u8),
        })
    }

    /// The node of a copy or a processor, which exists.
    pub(crate) fn known_node(&self, id: NodeId) -> &Node {
        self.nodes[id.index()].get().expect("a copy's or processor's node exists")
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter_map(OnceLock::get)
    }

    /// All processors, the CPU first.
    pub(crate) fn all_processors(&self) -> impl Iterator<Item = Shared<Processor>> {
        (0..MAX_PROCESSORS).filter_map(|id| self.processors.get(id))
    }

    /// The attached contexts, without the CPU.
    pub(crate) fn processors(&self) -> impl Iterator<Item = Shared<Processor>> {
        (1..MAX_PROCESSORS).filter_map(|id| self.processors.get(id))
    }

    /// The processor of that number.
    pub(crate) fn processor(&self, id: ProcessorId) -> Option<Shared<Processor>> {
        self.processors.get(id.index())
    }
}

/// Who refused a range, what it would rather have, or why it could not be asked.
struct Refusal {
    processor: ProcessorId,
    /// The lowest first page and the alignment in pages.
    suggestion: Option<(Option<PageNr>, u64)>,
    cause: Option<DriverError>,
}

/// Ranges that were refused, held until `mmap` ends so that they aren't tried again.
struct Tries<'a> {
    space: &'a Space,
    rejected: Vec<PageRange>,
}

impl Drop for Tries<'_> {
    fn drop(&mut self) {
        let mut regions = self.space.regions.lock();
        for &range in &self.rejected {
            regions.free(range);
        }
    }
}
