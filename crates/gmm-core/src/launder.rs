//! Laundering: in idle time cold pages that only an XPU has are copied to host memory and kept
//! there as well. They leave without a copy later; a write before that costs a fault that copies
//! nothing.

use crate::node::{Node, Offer, TransitFrame};
use crate::reclaim::Victim;
use crate::space::Space;
use crate::stats::MoveCause;
use crate::{Arrival, Batch, Frame, MovedBy, NodeId, Result};

/// How many pages are copied at a time: so long may a fault on one of them have to wait.
const MAX_PAGES: usize = 4;

/// Host memory is used down to this fraction of its frames; spare copies are to push out nothing.
const HOST_RESERVE: u32 = 8;

impl Space {
    /// Launders `node` on this thread, as background reclaim does in idle time; says how many
    /// pages. For simulations and tests.
    ///
    /// # Errors
    /// [`Error::UnknownNode`](crate::Error::UnknownNode).
    pub fn launder(&self, node: NodeId) -> Result<u32> {
        Ok(self.launder_node(self.node(node)?, || false))
    }

    /// Copies out the coldest pages that only `node` has, up to the configured share of it, until
    /// host memory has no room or it is `interrupted`; says how many.
    pub(crate) fn launder_node(&self, node: &Node, interrupted: impl Fn() -> bool) -> u32 {
        let share = node.capacity() / self.config.launder_share.max(1);
        let (mut seen, mut laundered) = (0, 0);
        while node.id != NodeId::HOST && seen < share && self.has_host_room() && !interrupted() {
            let offers = node.victims_after::<MAX_PAGES>(seen);
            let mut pages = Batch::new();
            for &offer in offers.iter().take((share - seen) as usize) {
                pages.extend(self.made_clean(node, offer));
            }
            seen += MAX_PAGES as u32;
            self.save_victims(node, &mut pages, MoveCause::Laundering);
            let moved_by = MovedBy::new(MoveCause::Laundering, None);
            for Victim { page, mut entry, refuge, .. } in pages {
                let Some(refuge) = refuge else { continue };
                let count = || {
                    let (from, cause) = (Some(node.id), MoveCause::Laundering);
                    self.stats.count_arrival_locked(from, NodeId::HOST, cause);
                };
                entry.add_copy(refuge.activate(page, Arrival::Evicted, moved_by, count));
                self.note_spare(&entry);
                laundered += 1;
            }
            if !offers.is_full() {
                break;
            }
        }
        laundered
    }

    /// The page, locked, if only this frame has its data and nobody can write it any more.
    fn made_clean<'a>(&'a self, node: &Node, offer: Offer) -> Option<Victim<'a>> {
        let Offer { nr, page, .. } = offer;
        let mut entry = self.table.get(page)?.try_lock()?;
        let frame = Frame { node: node.id, nr };
        let is_dirty = entry.nr_copies() == 1 && entry.copy_on(node.id) == Some(frame);
        if !is_dirty || !entry.is_open() || entry.is_unsure() || !node.is_unused_since(offer) {
            return None;
        }
        // What is mapped from another node has one copy.
        let mut mappers = entry.mapped().iter().filter_map(|id| self.processor(id));
        if mappers.any(|p| p.node != node.id) {
            return None;
        }
        let refuge = Some(self.host_room()?);
        for id in entry.writable().iter() {
            let processor = self.processor(id)?;
            if !self.made_read_only(&mut entry, page, &processor) {
                return None;
            }
        }
        Some(Victim { page, frame, entry, refuge, failed: false })
    }

    /// A host frame that nobody is likely to need.
    fn host_room(&self) -> Option<TransitFrame<'_>> {
        let host = self.known_node(NodeId::HOST);
        self.has_host_room().then(|| self.free_or_imported(host, || ()).0).flatten()
    }

    fn has_host_room(&self) -> bool {
        let host = self.known_node(NodeId::HOST);
        host.nr_obtainable() > host.capacity() / HOST_RESERVE
    }
}
