//! Holding pages resident: what a launch does on a device without replayable faults, and what
//! anyone does who needs frames to stay where they are.

use std::sync::Arc;

use crate::driver::{Access, Protection};
use crate::fault::{Cause, Want};
use crate::space::Space;
use crate::{Error, Frame, PageRange, Processor, Result};

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
    /// [`Error::NotMapped`], [`Error::AddressOverflow`], [`Error::OutOfMemory`] if the ranges are more than the node can
    /// hold, [`Error::PageHeld`] if another launch holds a page elsewhere for longer than
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
        let nr_pages = ranges.iter().fold(0, |n: u64, r| n.saturating_add(r.nr_pages));
        let mut hold = Hold { space: Arc::clone(self), frames: Vec::new() };
        hold.frames.reserve_exact(nr_pages.min(u64::from(node.capacity())) as usize);
        for range in ranges {
            for region in self.regions.lock().covering(range)? {
                if region.refused_by.contains(processor.id) {
                    let addr = range.start.start();
                    return Err(Error::RegionRefused { addr, processor: processor.id });
                }
            }
            for page in range.pages() {
                hold.frames.push(self.hold_page(processor, page, access)?);
            }
        }
        Ok(hold)
    }

    fn hold_page(
        &self,
        processor: &Processor,
        page: crate::PageNr,
        access: Access,
    ) -> Result<Frame> {
        let addr = page.start();
        let node = self.known_node(processor.node);
        let entry = self.table.get(page).ok_or(Error::NotMapped { addr })?;
        let access = match entry.lock().protection {
            Protection::ReadOnly => Access::Read,
            Protection::ReadWrite => access,
        };
        let processor = Some(processor);
        self.resolve(entry, &Want { page, addr, node, processor, access, cause: Cause::Hold })?;
        // Pinned: it stays the page's copy until it is unpinned.
        Ok(entry.lock().copy_on(node.id).expect("a held page has a copy on its node"))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        for frame in &self.frames {
            self.space.known_node(frame.node).release_hold(frame.nr);
        }
    }
}
