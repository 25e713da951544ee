//! One bit for each page of the window. A page's bit is read and changed under its entry's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use gmm_core::{PageNr, PageRange};

/// A set of pages of one range.
#[derive(Debug)]
pub(crate) struct PageBits {
    range: PageRange,
    words: Box<[AtomicU64]>,
}

impl PageBits {
    /// No page of `range`.
    pub(crate) fn new(range: PageRange) -> Self {
        let words = (0..range.nr_pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { range, words }
    }

    fn place(&self, page: PageNr) -> Option<(&AtomicU64, u64)> {
        let index = page.0.checked_sub(self.range.start.0)?;
        Some((self.words.get((index / 64) as usize)?, 1 << (index % 64)))
    }

    /// Whether the page is in the set.
    pub(crate) fn has(&self, page: PageNr) -> bool {
        self.place(page).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Puts a page in. One beyond the range never is.
    pub(crate) fn insert(&self, page: PageNr) {
        if let Some((word, bit)) = self.place(page) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes a page out; says whether it was in.
    pub(crate) fn remove(&self, page: PageNr) -> bool {
        self.place(page)
            .is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_from_insert_to_remove_and_others_are_not() {
        let range = PageRange { start: PageNr(1000), nr_pages: 130 };
        let bits = PageBits::new(range);
        for page in [1000, 1063, 1064, 1129].map(PageNr) {
            bits.insert(page);
            let others = range.pages().filter(|&p| p != page);
            assert!(bits.has(page) && others.into_iter().all(|p| !bits.has(p)));
            assert!(bits.remove(page) && !bits.remove(page) && !bits.has(page));
        }
        for page in [999, 2000].map(PageNr) {
            bits.insert(page);
            assert!(!bits.has(page) && !bits.remove(page));
        }
    }
}
