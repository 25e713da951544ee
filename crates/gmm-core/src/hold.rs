//! Holding pages resident: what a launch does on a device without replayable faults, and what
//! anyone does who needs frames to stay where they are.

use std::sync::Arc;

use crate::driver::{Access, Protection};
use crate::fault::{Cause, Want};
use crate::space::Space;
use crate::{Error, Frame, PageNr, PageRange, Processor, Result};

/// Pages that are resident on a node, mapped by a processor, and neither evicted nor moved until
/// this is dropped.
pub struct Hold {
    space: Arc<Space>,
    frames: Vec<Frame>,
}

impl Space {
    /// Makes every page of `ranges` resident on the processor's node and mapped by it, and holds
    /// it there. `access` beyond what a region allows is asked for reading only.
    ///
    /// # Errors
    /// Before anything is moved: [`Error::NotMapped`], [`Error::AddressOverflow`],
    /// [`Error::RegionRefused`], and [`Error::HoldTooLarge`] if the ranges are more than the node
    /// has. Later, [`Error::PageHeld`] if another launch holds a page elsewhere for longer than
    /// [`Config::hold_wait`](crate::Config::hold_wait), and those of [`Space::fault`]. Nothing is
    /// held then.
    pub fn hold(
        self: &Arc<Self>,
        processor: &Processor,
        ranges: &[PageRange],
        access: Access,
    ) -> Result<Hold> {
        let node = self.known_node(processor.node);
        // By address, so that two that hold the same pages never wait for each other.
        let mut ranges = ranges.to_vec();
        ranges.sort_by_key(|r| r.start);
        for &range in &ranges {
            for region in self.regions.lock().covering(range)? {
                if region.refused_by.contains(processor.id) {
                    let addr = range.start.start();
                    return Err(Error::RegionRefused { addr, processor: processor.id });
                }
            }
        }
        let (asked, capacity) = (nr_distinct(&ranges), node.capacity());
        if asked > u64::from(capacity) {
            return Err(Error::HoldTooLarge { node: node.id, capacity, asked });
        }
        let mut hold = Hold { space: Arc::clone(self), frames: Vec::new() };
        hold.frames.reserve_exact(asked as usize);
        for page in ranges.iter().flat_map(|range| range.pages()) {
            hold.frames.push(self.hold_page(processor, page, access)?);
        }
        Ok(hold)
    }

    fn hold_page(&self, processor: &Processor, page: PageNr, access: Access) -> Result<Frame> {
        let addr = page.start();
        let node = self.known_node(processor.node);
        let entry = self.table.get(page).ok_or(Error::NotMapped { addr })?;
        let access = match entry.lock().protection {
            Protection::ReadOnly => Access::Read,
            Protection::ReadWrite => access,
        };
        let processor = Some(processor);
        self.resolve(
            entry,
            &Want { page, addr, node, processor, access, cause: Cause::Hold, since: None },
        )?;
        // Pinned: it stays the page's copy until it is unpinned.
        Ok(entry.lock().copy_on(node.id).expect("a held page has a copy on its node"))
    }
}

/// How many pages there are in ranges that are sorted by their start, and may overlap.
fn nr_distinct(ranges: &[PageRange]) -> u64 {
    let mut counted = PageNr(0);
    let new = ranges.iter().map(|range| {
        let start = range.start.max(counted);
        counted = range.end().max(counted);
        counted.0 - start.0
    });
    new.sum()
}

impl Drop for Hold {
    fn drop(&mut self) {
        for frame in &self.frames {
            self.space.known_node(frame.node).release_hold(frame.nr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_ranges_that_overlap_are_counted_once() {
        let count = |ranges: &[(u64, u64)]| {
            let range = |&(start, nr_pages)| PageRange { start: PageNr(start), nr_pages };
            nr_distinct(&ranges.iter().map(range).collect::<Vec<_>>())
        };
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[(3, 4), (7, 1), (9, 2)]), 7);
        assert_eq!(count(&[(3, 4), (3, 4), (4, 2), (5, 3)]), 5);
        assert_eq!(count(&[(3, 0), (3, 1), (4, 0)]), 1);
    }
}
