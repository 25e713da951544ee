//! Regions: which pages are mapped, under which name, and where there is room for more.

use std::collections::BTreeMap;

use crate::driver::Protection;
use crate::{Error, PageNr, PageRange, ProcessorId, ProcessorSet, Result};

/// One region, or the part of one that is left after a partial `munmap`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Its pages.
    pub range: PageRange,
    /// What its owner called it.
    pub name: String,
    /// What its processors may do.
    pub protection: Protection,
    /// Contexts that could not reserve its addresses and so can't use it.
    pub refused_by: ProcessorSet,
    /// Which `mmap` made it: parts of one region become one again when they are alike.
    origin: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Use {
    Region(RegionInfo),
    /// Addresses being tried by `mmap`, refused and held until it ends, or being unmapped.
    Held,
}

/// The region table. Ranges never overlap.
#[derive(Debug)]
pub(crate) struct Regions {
    window: PageRange,
    /// By first page: page count and use.
    by_start: BTreeMap<u64, (u64, Use)>,
    /// Where the last range was taken: the search goes on from there, so that addresses are
    /// used again late.
    next: u64,
    nr_made: u64,
}

impl Regions {
    pub(crate) fn new(window: PageRange) -> Self {
        Self { window, by_start: BTreeMap::new(), next: window.start.0, nr_made: 0 }
    }

    /// Finds `nr_pages` free pages at a multiple of `alignment_pages`, at or after `from` if that
    /// can be (or where addresses are oldest), and holds them.
    pub(crate) fn take(
        &mut self,
        nr_pages: u64,
        from: Option<PageNr>,
        alignment_pages: u64,
    ) -> Result<PageRange> {
        let none = Error::NoAddresses { len_bytes: nr_pages << 21, window: self.window };
        if nr_pages > self.window.nr_pages {
            return Err(none);
        }
        let (start, end) = (self.window.start.0, self.window.end().0);
        let from = from.map_or(self.next, |from| from.0.max(start));
        let found = self
            .find(from, end, nr_pages, alignment_pages)
            .or_else(|| self.find(start, end, nr_pages, alignment_pages));
        let range = PageRange { start: PageNr(found.ok_or(none)?), nr_pages };
        self.by_start.insert(range.start.0, (nr_pages, Use::Held));
        self.next = range.end().0;
        Ok(range)
    }

    fn find(&self, from: u64, end: u64, nr_pages: u64, alignment: u64) -> Option<u64> {
        let before = self.by_start.range(..=from).next_back();
        let first = before.map_or(from, |(&s, &(n, _))| from.max(s + n));
        let align = |at: u64| at.checked_next_multiple_of(alignment);
        let mut at = align(first)?;
        for (&taken, &(taken_pages, _)) in self.by_start.range(from..) {
            if at.checked_add(nr_pages)? <= taken {
                break;
            }
            at = align(at.max(taken + taken_pages))?;
        }
        (at.checked_add(nr_pages)? <= end).then_some(at)
    }

    /// Held addresses become a region.
    pub(crate) fn establish(&mut self, range: PageRange, protection: Protection, name: String) {
        self.nr_made += 1;
        let refused_by = ProcessorSet::EMPTY;
        self.free(range);
        self.insert(RegionInfo { range, name, protection, refused_by, origin: self.nr_made });
    }

    fn insert(&mut self, region: RegionInfo) {
        let (start, nr_pages) = (region.range.start.0, region.range.nr_pages);
        self.by_start.insert(start, (nr_pages, Use::Region(region)));
    }

    /// Held addresses become free.
    pub(crate) fn free(&mut self, range: PageRange) {
        let held = self.by_start.remove(&range.start.0);
        debug_assert_eq!(held, Some((range.nr_pages, Use::Held)));
    }

    /// The regions that overlap `range`, if they cover it whole.
    ///
    /// # Errors
    /// [`Error::NotMapped`] with the first address that is in no region,
    /// [`Error::AddressOverflow`] if the range has no end.
    pub(crate) fn covering(&self, range: PageRange) -> Result<Vec<&RegionInfo>> {
        let mut at = range.start;
        let end = range.checked_end()?;
        let mut regions = Vec::new();
        while at < end {
            let region = self.get(at).ok_or(Error::NotMapped { addr: at.start() })?;
            at = region.range.end();
            regions.push(region);
        }
        Ok(regions)
    }

    /// The region that holds `page`.
    pub(crate) fn get(&self, page: PageNr) -> Option<&RegionInfo> {
        match self.by_start.range(..=page.0).next_back()? {
            (_, (_, Use::Region(region))) if region.range.contains(page) => Some(region),
            _ => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RegionInfo> {
        self.by_start.values().filter_map(|(_, used)| match used {
            Use::Region(region) => Some(region),
            Use::Held => None,
        })
    }

    /// Every range that `processor` may have reserved.
    pub(crate) fn ranges_not_refused_by(&self, processor: ProcessorId) -> Vec<PageRange> {
        let usable = self.iter().filter(|r| !r.refused_by.contains(processor));
        usable.map(|r| r.range).collect()
    }

    /// Changes every region, whatever it likes except the range.
    pub(crate) fn for_each_mut(&mut self, mut change: impl FnMut(&mut RegionInfo)) {
        for (_, used) in self.by_start.values_mut() {
            if let Use::Region(region) = used {
                change(region);
            }
        }
    }

    /// Takes `range` out of the regions that cover it: it is held. Says which parts of which
    /// regions it was.
    ///
    /// # Errors
    /// As [`Regions::covering`]; nothing is changed then.
    pub(crate) fn carve(&mut self, range: PageRange) -> Result<Vec<RegionInfo>> {
        self.covering(range)?;
        self.split_at(range.start);
        self.split_at(range.end());
        let parts: Vec<_> = self.covering(range)?.into_iter().cloned().collect();
        for part in &parts {
            self.by_start.remove(&part.range.start.0);
        }
        self.by_start.insert(range.start.0, (range.nr_pages, Use::Held));
        Ok(parts)
    }

    /// The reverse of [`Regions::carve`].
    pub(crate) fn restore(&mut self, range: PageRange, parts: Vec<RegionInfo>) {
        self.free(range);
        for part in parts {
            self.insert(part);
        }
        self.merge_in(range);
    }

    /// Changes the protection of `range`, which regions cover.
    pub(crate) fn set_protection(&mut self, range: PageRange, protection: Protection) {
        self.split_at(range.start);
        self.split_at(range.end());
        self.for_each_mut(|region| {
            if range.contains_range(region.range) {
                region.protection = protection;
            }
        });
        self.merge_in(range);
    }

    /// Makes `page` the first of its region.
    fn split_at(&mut self, page: PageNr) {
        let Some(region) = self.get(page).filter(|r| r.range.start < page).cloned() else {
            return;
        };
        let nr_low = page.0 - region.range.start.0;
        for (start, nr_pages) in
            [(region.range.start, nr_low), (page, region.range.nr_pages - nr_low)]
        {
            self.insert(RegionInfo { range: PageRange { start, nr_pages }, ..region.clone() });
        }
    }

    /// Joins parts of one region that meet in `range` or at its ends and are alike.
    fn merge_in(&mut self, range: PageRange) {
        let mut at = range.start;
        while at <= range.end() {
            let low = at.0.checked_sub(1).and_then(|last| self.get(PageNr(last)));
            let (Some(low), Some(high)) = (low, self.get(at)) else {
                at = at.plus(1);
                continue;
            };
            let (nr_low, next) = (low.range.nr_pages, high.range.end());
            let whole = PageRange { nr_pages: nr_low + high.range.nr_pages, ..low.range };
            let alike = RegionInfo { range: high.range, ..low.clone() } == *high;
            if alike && low.range.end() == at {
                let joined = RegionInfo { range: whole, ..low.clone() };
                self.by_start.remove(&at.0);
                self.insert(joined);
            }
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, nr_pages: u64) -> PageRange {
        PageRange { start: PageNr(start), nr_pages }
    }

    fn map(regions: &mut Regions, nr_pages: u64) -> PageRange {
        let range = regions.take(nr_pages, None, 1).unwrap();
        regions.establish(range, Protection::ReadWrite, String::new());
        range
    }

    #[test]
    fn addresses_are_used_again_late() {
        let mut regions = Regions::new(range(100, 10));
        let first = map(&mut regions, 4);
        assert_eq!(first, range(100, 4));
        regions.carve(first).unwrap();
        regions.free(first);
        assert_eq!(map(&mut regions, 4), range(104, 4));
        assert_eq!(map(&mut regions, 4), range(100, 4));
        assert!(regions.take(4, None, 1).is_err());
        assert_eq!(regions.take(2, None, 1).unwrap(), range(108, 2));
    }

    #[test]
    fn suggestions_and_alignment_are_kept() {
        let mut regions = Regions::new(range(100, 100));
        assert_eq!(regions.take(3, Some(PageNr(120)), 16).unwrap(), range(128, 3));
        assert_eq!(regions.take(3, Some(PageNr(120)), 16).unwrap(), range(144, 3));
        // Beyond the window's end: anywhere.
        assert_eq!(regions.take(3, Some(PageNr(199)), 16).unwrap(), range(112, 3));
        assert_eq!(regions.take(1, Some(PageNr(u64::MAX)), 16).unwrap(), range(160, 1));
        assert!(regions.take(u64::MAX, None, 1).is_err());
        assert!(regions.take(1, Some(PageNr(120)), 1 << 63).is_err());
    }

    #[test]
    fn a_middle_part_can_be_carved_out() {
        let mut regions = Regions::new(range(0, 100));
        let whole = map(&mut regions, 10);
        let parts = regions.carve(range(3, 4)).unwrap();
        assert_eq!(parts.iter().map(|p| p.range).collect::<Vec<_>>(), [range(3, 4)]);
        assert!(regions.covering(whole).is_err());
        assert!(regions.get(PageNr(2)).is_some() && regions.get(PageNr(3)).is_none());
        assert!(regions.get(PageNr(6)).is_none() && regions.get(PageNr(7)).is_some());
        regions.restore(range(3, 4), parts);
        assert!(regions.covering(whole).is_ok());
        assert_eq!(
            regions.covering(range(9, 2)).unwrap_err(),
            Error::NotMapped { addr: PageNr(10).start() }
        );
    }

    #[test]
    fn what_fails_or_is_undone_leaves_regions_whole() {
        let mut regions = Regions::new(range(0, 100));
        let (one, two) = (map(&mut regions, 10), map(&mut regions, 5));
        let before: Vec<_> = regions.iter().cloned().collect();
        assert!(regions.carve(range(8, 8)).is_err());
        let parts = regions.carve(range(8, 4)).unwrap();
        assert_eq!(parts.len(), 2);
        regions.restore(range(8, 4), parts);
        for part in [range(0, 3), range(4, 2), range(9, 6), one, two] {
            regions.set_protection(part, Protection::ReadOnly);
            regions.set_protection(part, Protection::ReadWrite);
        }
        let after: Vec<_> = regions.iter().cloned().collect();
        assert_eq!(after, before, "two regions that meet stay two");
    }
}
