//! The steps that keep copies equal: clear the mappings that conflict, enter, drop copies. Each
//! works on one locked entry and leaves it true whatever fails.

use crate::driver::{Clear, DriverError, Enter, MappingKind, Protection};
use crate::entry::{MAX_COPIES, Mapping};
use crate::node::Node;
use crate::remap::RemapCause;
use crate::space::Space;
use crate::stats::Event;
use crate::sync::Shared;
use crate::{
    Departure, Error, Frame, MAX_PROCESSORS, NodeId, PageNr, Processor, ProcessorId, ProcessorSet,
    Result,
};

/// Whether the data survived: an application may have discarded a page behind the core's back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    Kept,
    /// The processor had dropped the page: it reads as zero, and its frame means nothing.
    Gone,
}

impl Space {
    /// Removes `processor`'s mapping of the page.
    pub(crate) fn clear_one(
        &self,
        m: &mut Mapping,
        page: PageNr,
        processor: &Processor,
    ) -> Result<Contents> {
        let frame = m.frame_seen_from(processor.node).expect("a mapped page has a frame");
        let mut clear = [Clear { page, frame, was_empty: false }];
        self.pmap_clear(processor, &mut clear).map_err(|partial| {
            m.set_unsure(m.is_unsure() || partial.error == DriverError::Timeout);
            mmu_error(processor, "unmap", page, partial.error)
        })?;
        m.set_unmapped(processor.id);
        Ok(if clear[0].was_empty { Contents::Gone } else { Contents::Kept })
    }

    /// The processor's driver was told to let go of the page, and it no longer counts as mapping
    /// it. If a call for it never answered, its copy is distrusted.
    pub(crate) fn forget_mapping(&self, m: &mut Mapping, id: ProcessorId) {
        let node = self.processor(id).map(|p| p.node);
        let copy = node.and_then(|node| m.frame_seen_from(node));
        if let Some(copy) = copy.filter(|_| m.is_unsure() && m.mapped().contains(id)) {
            self.known_node(copy.node).distrust(copy.nr);
        }
        m.set_unmapped(id);
    }

    /// Removes the mappings of the page by `processors`. If one of them had discarded the page
    /// the entry is Empty afterwards.
    pub(crate) fn clear(
        &self,
        m: &mut Mapping,
        page: PageNr,
        processors: ProcessorSet,
    ) -> Result<Contents> {
        let mut contents = Contents::Kept;
        for id in processors.iter() {
            let Some(processor) = self.processor(id) else { continue };
            if self.clear_one(m, page, &processor)? == Contents::Gone {
                contents = Contents::Gone;
            }
        }
        if contents == Contents::Gone && m.mapped().is_empty() {
            self.lose_contents(m, page);
        }
        Ok(contents)
    }

    /// Makes way for `reader` to map the copy on `node` (or for one that nobody maps itself): if
    /// there is none yet, nobody maps the page remotely any more. Nobody else can write another
    /// copy, nobody maps another at all if the one is to be `exclusive`, and a frame that a
    /// mapping takes out of reach is within reach.
    pub(crate) fn clear_conflicts(
        &self,
        m: &mut Mapping,
        page: PageNr,
        node: NodeId,
        reader: Option<&Processor>,
        exclusive: bool,
    ) -> Result<Contents> {
        let mut to_clear = ProcessorSet::EMPTY;
        for id in m.mapped().iter() {
            let Some(p) = self.processor(id) else { continue };
            let is_other = reader.is_none_or(|r| r.id != id);
            let conflict = if m.copy_on(p.node).is_none() {
                m.copy_on(node).is_none()
            } else if m.has_replica() && p.moves_frames() {
                exclusive
            } else if p.node == node && reader.is_some() {
                // Where frames move, only one processor can map one.
                is_other && (p.moves_frames() || reader.is_some_and(|r| r.takes_frames_of(node)))
            } else if exclusive && p.node != node || p.moves_frames() {
                true
            } else {
                m.writable().contains(id) && !self.made_read_only(m, page, &p)
            };
            if conflict {
                to_clear.insert(id);
            }
        }
        self.clear(m, page, to_clear)
    }

    /// Lets `p` keep reading the page; says whether that worked (else it has to be cleared).
    pub(crate) fn made_read_only(&self, m: &mut Mapping, page: PageNr, p: &Processor) -> bool {
        let frame = m.copy_on(p.node).expect("a mapped page has a copy on the mapper's node");
        p.maps_read_only() && self.enter(m, page, p, frame, Protection::ReadOnly).is_ok()
    }

    /// Maps the page for `processor`, or changes the protection of its mapping. After a timeout
    /// the mapping of a copy counts as made: it has to be cleared before others get the page.
    pub(crate) fn enter(
        &self,
        m: &mut Mapping,
        page: PageNr,
        processor: &Processor,
        frame: Frame,
        protection: Protection,
    ) -> Result<()> {
        let kind = self.kind_of(m, processor, frame);
        self.enter_as(m, Enter { page, frame, protection, kind }, processor)
    }

    /// As [`Space::enter`], in a way that may be new.
    pub(crate) fn enter_as(
        &self,
        m: &mut Mapping,
        enter: Enter,
        processor: &Processor,
    ) -> Result<()> {
        let entered = self.pmap_enter(processor, &[enter]);
        self.note_entered(m, enter, processor, entered.err().map(|partial| partial.error))
    }

    /// Notes what became of an enter.
    pub(crate) fn note_entered(
        &self,
        m: &mut Mapping,
        enter: Enter,
        processor: &Processor,
        error: Option<DriverError>,
    ) -> Result<()> {
        let Enter { page, frame, protection, kind } = enter;
        let is_replica = kind == MappingKind::Replica;
        // Where read-only mappings can't be had, the core must count on writes.
        let writable = protection == Protection::ReadWrite || !processor.maps_read_only();
        let writable = writable && !is_replica;
        let Some(error) = error else {
            self.note_mapped(m, processor, writable);
            m.set_replica(is_replica || m.has_replica() && !processor.moves_frames());
            m.set_unsure(m.is_unsure() && m.mapped() != ProcessorSet::only(processor.id));
            return Ok(());
        };
        if error == DriverError::Timeout && m.copy_on(frame.node) == Some(frame) {
            let writable = writable || m.writable().contains(processor.id);
            self.note_mapped(m, processor, writable);
            m.set_replica(is_replica || m.has_replica());
            m.set_unsure(true);
        }
        Err(mmu_error(processor, "map", page, error))
    }

    fn note_mapped(&self, m: &mut Mapping, processor: &Processor, writable: bool) {
        if m.set_mapped(processor.id, processor.node, writable) {
            self.stats.count(processor.node, Event::Touched);
        }
    }

    /// Drops the copies for which `which` says so; nobody maps them.
    pub(crate) fn drop_copies(&self, m: &mut Mapping, page: PageNr, which: impl Fn(Frame) -> bool) {
        let nodes: [Option<NodeId>; MAX_COPIES] = {
            let mut copies = m.copies().filter(|&c| which(c)).map(|c| c.node);
            core::array::from_fn(|_| copies.next())
        };
        for node in nodes.into_iter().flatten() {
            if let Some(frame) = m.remove_copy(node) {
                self.known_node(node).free_copy(frame.nr, page, Departure::Gone);
            }
        }
        self.note_spare(m);
    }

    /// Tells host memory whether its copy of the page could go without losing anything.
    pub(crate) fn note_spare(&self, m: &Mapping) {
        if let Some(copy) = m.copy_on(NodeId::HOST) {
            self.known_node(NodeId::HOST).set_spare(copy.nr, m.nr_copies() > 1);
        }
    }

    /// Makes room for one more copy of the page by dropping one on a node other than host memory
    /// and `node`.
    pub(crate) fn make_room_for_copy(
        &self,
        m: &mut Mapping,
        page: PageNr,
        node: NodeId,
    ) -> Result<()> {
        if m.nr_copies() < MAX_COPIES {
            return Ok(());
        }
        let movable = |c: &Frame| {
            c.node != NodeId::HOST && c.node != node && !self.known_node(c.node).is_pinned(c.nr)
        };
        let asked = |c: &Frame| self.ask(m, page, RemapCause::Move, |other| other == *c).is_ok();
        let Some(victim) = m.copies().filter(movable).find(asked) else {
            let held = m.copies().find(|c| c.node != NodeId::HOST).map_or(node, |c| c.node);
            return Err(Error::PageHeld { addr: page.start(), node: held });
        };
        let mut mappers = ProcessorSet::EMPTY;
        self.mappers_on(m, victim.node).for_each(|p| mappers.insert(p.id));
        self.clear(m, page, mappers)?;
        self.drop_copies(m, page, |c| c.node == victim.node);
        Ok(())
    }

    /// The processors that map the page.
    fn mappers(&self, m: &Mapping) -> impl Iterator<Item = Shared<Processor>> {
        let mapped = m.mapped();
        let attached = (0..MAX_PROCESSORS as u8).map(ProcessorId);
        attached.filter(move |&id| mapped.contains(id)).filter_map(|id| self.processor(id))
    }

    /// The processors of `node` that map the page.
    pub(crate) fn mappers_on(
        &self,
        m: &Mapping,
        node: NodeId,
    ) -> impl Iterator<Item = Shared<Processor>> {
        self.mappers(m).filter(move |p| p.node == node)
    }

    /// The processors that map this copy of the page, from wherever.
    pub(crate) fn mappers_of(
        &self,
        m: &Mapping,
        copy: Frame,
    ) -> impl Iterator<Item = Shared<Processor>> {
        self.mappers(m).filter(move |p| m.frame_seen_from(p.node) == Some(copy))
    }

    /// Whether a launch holds the page in a way that would have to be broken for `reader` (or for
    /// a copy on `node`); says on which node.
    pub(crate) fn holder(
        &self,
        m: &Mapping,
        node: NodeId,
        reader: Option<&Processor>,
        exclusive: bool,
    ) -> Option<NodeId> {
        // Other nodes may keep what they hold if nobody writes and nobody is about to.
        let breaks = exclusive || !m.writable().is_empty();
        // A replica is in nobody's way but a writer's.
        let takes = |p: &Processor| p.moves_frames() && (exclusive || !m.has_replica());
        let must_go = |p: &Processor| match (p.node == node, reader) {
            // On its own node the mapping of a neighbour has to go where frames move,
            (true, Some(r)) => p.id != r.id && (takes(p) || r.takes_frames_of(node)),
            (true, None) => false,
            // and on another one that puts the frame out of reach of the copy.
            (false, _) => takes(p),
        };
        let broken = |at| (breaks && at != node) || self.mappers_on(m, at).any(|p| must_go(&p));
        let held = m.copies().filter(|c| self.known_node(c.node).is_held(c.nr));
        held.map(|c| c.node).find(|&at| broken(at))
    }

    /// Ends the poisoning of a page: it is about to be served.
    pub(crate) fn unpoison(&self, m: &mut Mapping, page: PageNr) {
        if m.is_poisoned() {
            self.cpu().mmu.unpoison(page);
            self.processors().for_each(|processor| {
                processor.mmu.unpoison(page);
            });
            m.set_poisoned(false);
        }
    }
}

pub(crate) fn mmu_error(
    processor: &Processor,
    operation: &'static str,
    page: PageNr,
    cause: DriverError,
) -> Error {
    let addr = page.start();
    match cause {
        DriverError::Busy => Error::PageBusy { addr, node: processor.node },
        cause => Error::Mmu { processor: processor.id, operation, addr, cause },
    }
}

/// The error of a copy or zero-fill for `page`.
pub(crate) fn transfer_error(page: PageNr, from: NodeId, to: &Node, cause: DriverError) -> Error {
    Error::Transfer { addr: page.start(), from, to: to.id, cause }
}
