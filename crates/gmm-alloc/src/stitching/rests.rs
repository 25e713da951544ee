//! Mapped pages that nothing lives in, by how long they have been so.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Runs of idle pages. A run became idle at one time; runs do not overlap.
#[derive(Default)]
pub(super) struct Rests {
    /// By first page: the page after the last, and since when.
    by_page: BTreeMap<u64, (u64, u64)>,
    /// Since when, and the first page.
    by_age: BTreeSet<(u64, u64)>,
    nr_pages: u64,
}

impl Rests {
    /// How many pages are idle.
    pub(super) fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// Pages that were not idle are from `now` on.
    pub(super) fn add(&mut self, pages: Range<u64>, now: u64) {
        if pages.start < pages.end {
            self.by_page.insert(pages.start, (pages.end, now));
            self.by_age.insert((now, pages.start));
            self.nr_pages += pages.end - pages.start;
        }
    }

    /// Of `pages`, those that are idle are not any more. Returns how many those are.
    pub(super) fn remove(&mut self, pages: Range<u64>) -> u64 {
        let mut removed = 0;
        while let Some((start, end, since)) = self.last_within(&pages) {
            self.by_page.remove(&start);
            self.by_age.remove(&(since, start));
            self.nr_pages -= end - start;
            self.add(start..pages.start.max(start), since);
            self.add(pages.end.min(end)..end, since);
            removed += pages.end.min(end) - pages.start.max(start);
        }
        removed
    }

    fn last_within(&self, pages: &Range<u64>) -> Option<(u64, u64, u64)> {
        let (&start, &(end, since)) = self.by_page.range(..pages.end).next_back()?;
        (end > pages.start).then_some((start, end, since))
    }

    /// How many of `pages` are idle.
    pub(super) fn nr_within(&self, pages: Range<u64>) -> u64 {
        let runs = self.by_page.range(..pages.end).rev();
        let within = runs.take_while(|(_, (end, _))| *end > pages.start);
        within.map(|(start, (end, _))| pages.end.min(*end) - pages.start.max(*start)).sum()
    }

    /// The run that has been idle longest.
    pub(super) fn oldest(&self) -> Option<Range<u64>> {
        let &(_, start) = self.by_age.first()?;
        Some(start..self.by_page[&start].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_out_of_a_run_leaves_both_ends_at_their_age() {
        let mut rests = Rests::default();
        rests.add(10..20, 1);
        rests.add(20..30, 2);
        assert_eq!(rests.nr_within(18..22), 4);
        assert_eq!(rests.remove(15..25), 10);
        assert_eq!(rests.nr_pages(), 10);
        assert_eq!(rests.remove(15..25), 0);
        assert_eq!(rests.oldest(), Some(10..15));
        assert_eq!(rests.remove(12..13), 1);
        assert_eq!(rests.oldest(), Some(10..12));
        rests.remove(0..15);
        assert_eq!(rests.oldest(), Some(25..30));
    }
}
