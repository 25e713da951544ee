//! Whole pages on their way to a node in a flight (`bulk.rs`), for `WILLNEED` and look-ahead: which
//! pages can go so, and what has to be done with each.

use crate::bulk::{Bytes, Copy, Flight, Locked, To};
use crate::entry::{MAX_COPIES, Mapping};
use crate::node::TransitFrame;
use crate::space::Space;
use crate::sync::Shared;
use crate::{NodeId, PAGE_SIZE, Processor};

impl Space {
    /// Whether a page can go to `node` with others, for `mappers` to map. Pages with something
    /// special are done one by one, as a fault does them.
    pub(crate) fn is_plain(
        &self,
        m: &Mapping,
        node: NodeId,
        mappers: &[Shared<Processor>],
        exclusive: bool,
    ) -> bool {
        let is_special = m.is_advised() || m.is_watched() || m.has_replica() || m.is_unsure();
        // Of several processors whose frames move only one can map a page.
        let is_mapper = |p: &Processor| mappers.iter().any(|mapper| mapper.id == p.id);
        let one_by_one = mappers.iter().any(|p| p.moves_frames())
            && (mappers.len() > 1 || self.mappers_on(m, node).any(|p| !is_mapper(&p)));
        let has_room = m.copy_on(node).is_some() || m.nr_copies() < MAX_COPIES;
        let reader = mappers.first().map(|p| &**p);
        let is_held = || self.holder(m, node, reader, exclusive).is_some();
        !is_special && !one_by_one && has_room && !is_held()
    }

    /// Says what has to be done so that the page's copy on the node can be mapped there; `false` if
    /// there is none.
    pub(crate) fn set_up_here(&self, l: &mut Locked<'_>, node: NodeId, exclusive: bool) -> bool {
        l.here = l.m.copy_on(node);
        l.alone = exclusive || l.m.nr_copies() == 1;
        self.set_up_mappings(l, node, exclusive);
        l.here.is_some()
    }

    /// Says what has to be done so that the page, which has no copy on the node, comes to it in
    /// `frame`.
    ///
    /// # Errors
    /// The frame, if its bytes can't go there straight.
    pub(crate) fn set_up_arrival<'a>(
        &self,
        l: &mut Locked<'a>,
        node: NodeId,
        exclusive: bool,
        frame: TransitFrame<'a>,
    ) -> Result<(), TransitFrame<'a>> {
        if l.m.source().is_some_and(|from| self.needs_bounce(from, frame.frame())) {
            return Err(frame);
        }
        l.incoming = Some(frame);
        l.alone = exclusive || l.m.nr_copies() == 0;
        self.set_up_mappings(l, node, exclusive);
        Ok(())
    }

    fn set_up_mappings(&self, l: &mut Locked<'_>, node: NodeId, exclusive: bool) {
        for id in l.m.mapped().iter() {
            let Some(p) = self.processor(id) else { continue };
            if l.m.copy_on(p.node).is_none() {
                // A remote mapping, of a frame that goes.
                if l.here.is_none() {
                    l.clear.insert(id);
                }
            } else if p.node != node && (exclusive || p.moves_frames()) {
                l.clear.insert(id);
            } else if p.node != node && l.m.writable().contains(id) {
                match p.maps_read_only() {
                    true => l.protect.insert(id),
                    false => l.clear.insert(id),
                }
            }
        }
    }

    /// Clears the way for a flight of whole pages, and starts it.
    pub(crate) fn depart(&self, flight: &mut Flight<'_>) {
        self.quiesce(&mut flight.pages);
        for nr in 0..flight.pages.len() {
            let l = &mut flight.pages[nr];
            // An application may have discarded the page.
            l.alone |= l.m.nr_copies() == 0;
            l.here = l.here.filter(|here| l.m.copy_on(here.node) == Some(*here));
            if l.incoming.is_some() && l.failed.is_none() {
                let from = l.m.source().map(Bytes::Frame);
                flight.copies.push(Copy::new(from, 0, To::Page(nr), 0, PAGE_SIZE));
            }
        }
        self.start(flight);
    }
}
