//! From a page number to its entry: plain arithmetic over the window, without a lock.
//!
//! The window is cut into leaves of [`LEAF_PAGES`] entries. A leaf is made by the first `mmap`
//! that needs it and stays, so a reference to an entry is good for as long as the space is.

use std::sync::OnceLock;

use crate::entry::Entry;
use crate::{PageNr, PageRange};

/// Entries in a leaf: 32 KiB of them, for 1 GiB of addresses.
const LEAF_PAGES: u64 = 512;

pub(crate) struct Table {
    window: PageRange,
    leaves: Box<[OnceLock<Box<[Entry]>>]>,
}

impl Table {
    pub(crate) fn new(window: PageRange) -> Self {
        let nr_leaves = window.nr_pages.div_ceil(LEAF_PAGES);
        Self { window, leaves: (0..nr_leaves).map(|_| OnceLock::new()).collect() }
    }

    /// The entry of `page`, if an `mmap` has ever covered its neighbourhood.
    pub(crate) fn get(&self, page: PageNr) -> Option<&Entry> {
        let index = page.0.checked_sub(self.window.start.0)?;
        let leaf = self.leaves.get((index / LEAF_PAGES) as usize)?.get()?;
        leaf.get((index % LEAF_PAGES) as usize)
    }

    /// Makes the entries of `range`, which lies in the window. Allocates.
    pub(crate) fn make(&self, range: PageRange) {
        let first = (range.start.0 - self.window.start.0) / LEAF_PAGES;
        let last = (range.end().0 - 1 - self.window.start.0) / LEAF_PAGES;
        for leaf in &self.leaves[first as usize..=last as usize] {
            leaf.get_or_init(|| (0..LEAF_PAGES).map(|_| Entry::new()).collect());
        }
    }

    /// The entries of `range`, made by [`Table::make`] before.
    pub(crate) fn entries(&self, range: PageRange) -> impl Iterator<Item = (PageNr, &Entry)> {
        range.pages().filter_map(|page| self.get(page).map(|entry| (page, entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_made_leaves_have_entries() {
        let table = Table::new(PageRange { start: PageNr(1000), nr_pages: 2000 });
        let range = PageRange { start: PageNr(1511), nr_pages: 2 };
        assert!(table.get(range.start).is_none());
        table.make(range);
        assert_eq!(table.entries(range).count(), 2);
        for outside in [0, 999, 3000, u64::MAX] {
            assert!(table.get(PageNr(outside)).is_none());
        }
        assert!(table.get(PageNr(2999)).is_none(), "the last leaf was not made");
    }
}
