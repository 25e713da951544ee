//! What has happened so far, for people.

use core::fmt;

use gmm_core::{NodeId, NodeStats, PAGE_SIZE, RegionUsage, Snapshot};

use crate::display_bytes;

/// Who holds how much, and what moved: shows itself as text.
#[derive(Clone, Debug)]
pub struct Report {
    snapshot: Snapshot,
    usage: Vec<RegionUsage>,
    backing: Vec<(NodeId, String)>,
    /// Where the control socket lies, or why there is none.
    control: String,
}

/// How many regions a report shows: the largest.
const SHOWN_REGIONS: usize = 20;

impl Report {
    pub(crate) fn new(
        snapshot: Snapshot,
        mut usage: Vec<RegionUsage>,
        backing: Vec<(NodeId, String)>,
        control: core::result::Result<std::path::PathBuf, &str>,
    ) -> Self {
        usage.sort_by_key(|u| core::cmp::Reverse(u.region.range.nr_pages));
        let control = match control {
            Ok(path) => path.display().to_string(),
            Err(why) => format!("none ({why})"),
        };
        Self { snapshot, usage, backing, control }
    }

    /// The numbers.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn regions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for RegionUsage { region, resident_pages, .. } in self.usage.iter().take(SHOWN_REGIONS) {
            let name = if region.name.is_empty() { "(unnamed)" } else { &region.name };
            write!(f, "region {name}: {}", display_bytes(region.range.len_bytes()))?;
            for (node, &pages) in resident_pages.iter().enumerate().filter(|(_, pages)| **pages > 0)
            {
                write!(f, ", {} on node {node}", display_bytes(pages * PAGE_SIZE))?;
            }
            writeln!(f)?;
        }
        match self.usage.len().saturating_sub(SHOWN_REGIONS) {
            0 => Ok(()),
            more => writeln!(f, "and {more} smaller regions"),
        }
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
        write!(
            f,
            "  faults    {} served, {} found the page ready, {} failed",
            n.faults, n.coalesced_faults, n.failed_faults
        )?;
        if n.throttled_faults > 0 {
            write!(f, ", {} sent back to wait", n.throttled_faults)?;
        }
        writeln!(f)?;
        if n.faults > 0 {
            let [p50, p99] =
                [50, 99].map(|percent| display_ns(n.fault_service.percentile_ns(percent)));
            let max = display_ns(n.fault_service.max_ns);
            writeln!(f, "  served in {p50} (median), {p99} (p99), {max} (longest)")?;
        }
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

/// A time for people: three digits will do.
fn display_ns(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.snapshot.nodes {
            self.node(f, node)?;
        }
        for &(from, to, bytes) in &self.snapshot.migrated_bytes {
            write!(f, "moved {} from node {from} to node {to}", display_bytes(bytes))?;
            let of_pair = self.snapshot.moves.iter().filter(|m| (m.from, m.to) == (from, to));
            let why = of_pair.map(|m| format!("{} by {}", display_bytes(m.bytes), m.cause.name()));
            writeln!(f, " ({})", why.collect::<Vec<_>>().join(", "))?;
        }
        self.regions(f)?;
        writeln!(f, "control socket: {}", self.control)
    }
}
