//! Looking at a space: one page, who holds what, and whether the invariants hold.

use crate::driver::Protection;
use crate::entry::{Mapping, PageState};
use crate::node::FramePlace;
use crate::residency::look;
use crate::space::Space;
use crate::{
    Attributes, Frame, FrameNr, MAX_NODES, NodeId, PageNr, ProcessorId, ProcessorSet, RegionInfo,
    VirtAddr,
};

/// One page, as it was at the moment of asking.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PageInfo {
    /// The page.
    pub page: PageNr,
    /// Its state.
    pub state: PageState,
    /// Where it has valid copies.
    pub copies: Vec<Frame>,
    /// Who maps it.
    pub mapped: ProcessorSet,
    /// Who maps it for writing.
    pub writable: ProcessorSet,
    /// What its region allows.
    pub protection: Protection,
    /// Whether a fault on it failed and none has been served since.
    pub poisoned: bool,
}

/// How much of a region is where.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RegionUsage {
    /// The region.
    pub region: RegionInfo,
    /// Of each node, how many of the region's pages have a valid copy there.
    pub resident_pages: Vec<u64>,
    /// How many of its pages someone was working on: where they are is not known.
    pub in_motion_pages: u64,
}

impl Space {
    /// Which region holds how many pages of which node. Visits every entry once, and waits for
    /// none.
    pub fn usage(&self) -> Vec<RegionUsage> {
        let usage = |region: RegionInfo| {
            // Devices may join meanwhile.
            let mut resident_pages = vec![0; MAX_NODES];
            let mut in_motion_pages = 0;
            for (_, entry) in self.table.entries(region.range) {
                match look(entry) {
                    Some(m) => m.copies().for_each(|c| resident_pages[c.node.index()] += 1),
                    None => in_motion_pages += 1,
                }
            }
            resident_pages.truncate(self.nodes().count());
            RegionUsage { region, resident_pages, in_motion_pages }
        };
        self.regions().into_iter().map(usage).collect()
    }

    /// The page that holds `addr`; `None` if no region was ever near it. May wait for a fault on
    /// the page that is under way.
    pub fn inspect(&self, addr: VirtAddr) -> Option<PageInfo> {
        let page = addr.page();
        let m = self.table.get(page)?.lock();
        Some(PageInfo {
            page,
            state: m.state(),
            copies: m.copies().collect(),
            mapped: m.mapped(),
            writable: m.writable(),
            protection: m.protection,
            poisoned: m.is_poisoned(),
        })
    }

    /// Checks the invariants on a space on which nothing is under way.
    ///
    /// # Errors
    /// A sentence that says which invariant does not hold, and where.
    pub fn check(&self) -> Result<(), String> {
        let regions = self.regions();
        let mut nr_copies = 0;
        for (page, entry) in regions.iter().flat_map(|r| self.table.entries(r.range)) {
            let m = entry.lock();
            self.check_entry(&m, page).map_err(|what| format!("page {}: {what}", page.start()))?;
            nr_copies += m.nr_copies();
        }
        let mut nr_owned = 0;
        for node in self.nodes() {
            let owners = node.owners();
            nr_owned += owners.len();
            for (nr, page, place) in owners {
                self.check_frame(Frame { node: node.id, nr }, page, place)?;
            }
            if !node.counts_pins() {
                return Err(format!("node {}: its pins don't add up", node.id));
            }
            let counts = node.counts();
            if counts.in_transit != 0 {
                let lost = counts.in_transit;
                return Err(format!("node {}: {lost} frames are in nobody's hands", node.id));
            }
        }
        self.check_attributes(&regions)?;
        if nr_copies != nr_owned {
            return Err(format!("{nr_owned} frames hold pages, the entries name {nr_copies}"));
        }
        Ok(())
    }

    /// Nothing is advised or watched where nothing is mapped.
    fn check_attributes(&self, regions: &[RegionInfo]) -> Result<(), String> {
        let advised = self.attributes.with(|table| table.ranges());
        let watched = self.subscribers.with(|s| s.ranges());
        for range in advised.into_iter().chain(watched) {
            let is_mapped = |page| regions.iter().any(|r| r.range.contains(page));
            if !range.pages().all(is_mapped) {
                return Err(format!("{range} is advised or watched, and not mapped"));
            }
        }
        Ok(())
    }

    fn check_entry(&self, m: &Mapping, page: PageNr) -> Result<(), String> {
        if !m.writable().difference(m.mapped()).is_empty() {
            return Err(format!("{:?} write what only {:?} map", m.writable(), m.mapped()));
        }
        if !m.writable().is_empty() && m.nr_copies() > 1 {
            return Err(format!("{:?} write one of {} copies", m.writable(), m.nr_copies()));
        }
        for id in m.mapped().iter() {
            let Some(processor) = self.processor(id) else {
                return Err(format!("mapped by processor {id}, which is not attached"));
            };
            match m.frame_seen_from(processor.node) {
                None => {
                    return Err(format!("mapped by processor {id}, without a copy on its node"));
                }
                Some(far) if far.node != processor.node => {
                    if !self.maps_remotely(&processor, far.node) {
                        return Err(format!("processor {id} can't map node {} remotely", far.node));
                    }
                }
                Some(_) => {}
            }
        }
        let is_mapped = m.mapped().contains(ProcessorId::CPU) && m.copy_on(NodeId::HOST).is_some();
        if m.has_replica() && !(is_mapped && m.writable().is_empty()) {
            let writable = m.writable();
            return Err(format!("a replica that nobody maps, or beside writes by {writable:?}"));
        }
        let attributes = self.attributes.with(|table| table.get(page));
        if m.is_advised() != (attributes != Attributes::default() || self.pin_of(m).is_some()) {
            return Err(format!("advised: {}, yet it has {attributes:?}", m.is_advised()));
        }
        if m.is_watched() != self.subscribers.with(|s| s.watches(page)) {
            return Err(format!("watched: {}, yet no subscriber says so", m.is_watched()));
        }
        Ok(())
    }

    fn check_frame(&self, frame: Frame, page: PageNr, place: FramePlace) -> Result<(), String> {
        let FrameNr(nr) = frame.nr;
        let copy = self.table.get(page).and_then(|entry| {
            let m = entry.lock();
            m.copy_on(frame.node).map(|c| (c, m.nr_copies()))
        });
        match copy {
            Some((c, copies)) if c == frame => {
                let is_spare = place == FramePlace::Spare;
                if is_spare && copies < 2 {
                    return Err(format!(
                        "frame {nr} of node {} is the only copy, yet spare",
                        frame.node
                    ));
                }
                Ok(())
            }
            _ => Err(format!(
                "frame {nr} of node {} names page {} as its owner, which does not name it",
                frame.node,
                page.start()
            )),
        }
    }
}
