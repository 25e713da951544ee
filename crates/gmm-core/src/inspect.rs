//! Looking at a space: one page, the counters, and whether the invariants hold.

use crate::driver::Protection;
use crate::entry::{Mapping, PageState};
use crate::node::FramePlace;
use crate::space::Space;
use crate::stats::{Event, MoveCause};
use crate::{
    Frame, FrameNr, MAX_NODES, NodeId, NodeStats, PageNr, PageRange, ProcessorSet, RegionInfo,
    Snapshot, VirtAddr,
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
}

impl Space {
    /// Which region holds how many pages of which node. Visits every entry once.
    pub fn usage(&self) -> Vec<RegionUsage> {
        let usage = |region: RegionInfo| {
            // Devices may join meanwhile.
            let mut resident_pages = vec![0; MAX_NODES];
            for (_, entry) in self.table.entries(region.range) {
                for copy in entry.lock().copies() {
                    resident_pages[copy.node.index()] += 1;
                }
            }
            resident_pages.truncate(self.nodes().count());
            RegionUsage { region, resident_pages }
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

    /// The counters. Visits every entry once, for the pages touched.
    pub fn snapshot(&self) -> Snapshot {
        let ranges: Vec<PageRange> = self.regions.lock().iter().map(|r| r.range).collect();
        let nodes: Vec<_> = self.nodes().collect();
        let mut touched = vec![0; nodes.len()];
        for (_, entry) in ranges.iter().flat_map(|&range| self.table.entries(range)) {
            let m = entry.lock();
            for (node, touched) in nodes.iter().zip(&mut touched) {
                *touched += u64::from(m.was_touched_on(node.id));
            }
        }
        let mut migrated_bytes = Vec::new();
        for from in &nodes {
            for to in &nodes {
                let bytes = self.stats.copied_bytes(from.id, to.id);
                if bytes > 0 {
                    migrated_bytes.push((from.id, to.id, bytes));
                }
            }
        }
        let stats = nodes.iter().zip(touched).map(|(node, touched_now)| {
            let counts = node.counts();
            let get = |event| self.stats.get(node.id, event);
            NodeStats {
                node: node.id,
                device: node.device.name().to_owned(),
                capacity_frames: counts.capacity,
                free_frames: counts.free,
                resident_frames: counts.active + counts.spare + counts.pinned,
                pinned_frames: counts.pinned,
                in_transit_frames: counts.in_transit,
                lost_frames: counts.lost,
                peak_resident_frames: counts.peak_resident,
                touched_pages: touched_now + get(Event::TouchedBefore),
                faults: get(Event::Fault),
                coalesced_faults: get(Event::Coalesced),
                failed_faults: get(Event::Failed),
                prefetched_pages: get(Event::Prefetched),
                zeroed_pages: get(Event::Zeroed),
                evicted_pages: get(Event::Evicted),
                evicted_clean_pages: get(Event::EvictedClean),
                discarded_pages: get(Event::Discarded),
                frames_found_free: get(Event::FrameFree),
                frames_reclaimed: get(Event::FrameReclaimed),
                throttled_faults: get(Event::Throttled),
                thrashing_pages: get(Event::Thrashing),
                laundered_pages: self.stats.copied_for(
                    node.id,
                    NodeId::HOST,
                    MoveCause::Laundering,
                ),
                reclaimer_wakeups: counts.reclaimer_wakeups,
            }
        });
        Snapshot { nodes: stats.collect(), migrated_bytes }
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
            self.check_entry(&m).map_err(|what| format!("page {}: {what}", page.start()))?;
            nr_copies += m.nr_copies();
        }
        let mut nr_owned = 0;
        for node in self.nodes() {
            let owners = node.owners();
            nr_owned += owners.len();
            for (nr, page, place) in owners {
                self.check_frame(Frame { node: node.id, nr }, page, place)?;
            }
            let counts = node.counts();
            if counts.in_transit != 0 {
                let lost = counts.in_transit;
                return Err(format!("node {}: {lost} frames are in nobody's hands", node.id));
            }
        }
        if nr_copies != nr_owned {
            return Err(format!("{nr_owned} frames hold pages, the entries name {nr_copies}"));
        }
        Ok(())
    }

    fn check_entry(&self, m: &Mapping) -> Result<(), String> {
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
            if m.copy_on(processor.node).is_none() {
                return Err(format!("mapped by processor {id}, without a copy on its node"));
            }
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
