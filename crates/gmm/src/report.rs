//! What has happened so far, for people.

use core::fmt;

use gmm_core::{NodeId, NodeStats, PAGE_SIZE, Snapshot};

use crate::display_bytes;

/// Who holds how much, and what moved: shows itself as text.
#[derive(Clone, Debug)]
pub struct Report {
    snapshot: Snapshot,
    backing: Vec<(NodeId, String)>,
}

impl Report {
    pub(crate) fn new(snapshot: Snapshot, backing: Vec<(NodeId, String)>) -> Self {
        Self { snapshot, backing }
    }

    /// The numbers.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn node(&self, f: &mut fmt::Formatter<'_>, n: &NodeStats) -> fmt::Result {
        let pages = |nr: u64| display_bytes(nr * PAGE_SIZE);
        write!(f, "node {} ({}", n.node, n.device)?;
        if let Some((_, backing)) = self.backing.iter().find(|(node, _)| *node == n.node) {
            write!(f, ", {backing}")?;
        }
        writeln!(f, ")")?;
        writeln!(
            f,
            "  memory    {} resident of {} (peak {}, pinned {})",
            pages(n.resident_frames.into()),
            pages(n.capacity_frames.into()),
            pages(n.peak_resident_frames.into()),
            pages(n.pinned_frames.into()),
        )?;
        writeln!(f, "  touched   {} by its processors", pages(n.touched_pages))?;
        writeln!(
            f,
            "  faults    {} served, {} found the page ready, {} failed",
            n.faults, n.coalesced_faults, n.failed_faults
        )?;
        writeln!(
            f,
            "  filled    {} pages zeroed, {} prefetched",
            n.zeroed_pages, n.prefetched_pages
        )?;
        writeln!(
            f,
            "  evicted   {} pages, {} of them clean (without a copy)",
            n.evicted_pages, n.evicted_clean_pages
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.snapshot.nodes {
            self.node(f, node)?;
        }
        for &(from, to, bytes) in &self.snapshot.migrated_bytes {
            writeln!(f, "moved {} from node {from} to node {to}", display_bytes(bytes))?;
        }
        Ok(())
    }
}
