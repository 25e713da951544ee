//! Attributes: what was advised about ranges of pages, in a table apart from regions and entries.
//!
//! A range without attributes is not in the table; neighbours that are alike are one. Entries of
//! pages in the table have a flag, so that faults of other pages look nothing up.
//!
//! # Lock order
//! The table's lock is a leaf, read for a moment with an entry locked. Writers hold set-up, and
//! no entry: the flags of the entries follow the table.

use std::collections::BTreeMap;

use crate::space::Space;
use crate::{NodeId, NodeSet, PageNr, PageRange, Result, VirtAddr};

/// What is advised about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Attributes {
    /// Reads make copies on several nodes, where a processor can map one for reading only.
    pub read_mostly: bool,
    /// Where the page should be, if those who touch it can reach it there.
    pub preferred: Option<NodeId>,
    /// Nodes whose processors map the page where it is instead of moving it.
    pub accessed_by: NodeSet,
    /// Where its frame stays, and how many pins keep it there.
    pub pinned: Option<(NodeId, u32)>,
}

/// One change of the attributes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// Pages are mostly read.
    ReadMostly(bool),
    /// Pages should be on the node; `None`: anywhere.
    Preferred(Option<NodeId>),
    /// The node's processors map pages where they are (`false`: move them, as usual).
    AccessedBy(NodeId, bool),
}

impl Attribute {
    fn node(self) -> Option<NodeId> {
        match self {
            Self::ReadMostly(_) => None,
            Self::Preferred(node) => node,
            Self::AccessedBy(node, _) => Some(node),
        }
    }

    fn apply(self, attributes: &mut Attributes) {
        match self {
            Self::ReadMostly(is) => attributes.read_mostly = is,
            Self::Preferred(node) => attributes.preferred = node,
            Self::AccessedBy(node, is) => attributes.accessed_by.set(node, is),
        }
    }
}

/// Ranges and their attributes (but pins, which are the frames'). No two ranges overlap.
#[derive(Debug, Default)]
pub(crate) struct AttributeTable {
    /// By first page: page count and attributes, never the default.
    by_start: BTreeMap<u64, (u64, Attributes)>,
}

impl AttributeTable {
    /// The attributes of one page.
    pub(crate) fn get(&self, page: PageNr) -> Attributes {
        match self.by_start.range(..=page.0).next_back() {
            Some((start, &(nr_pages, attributes))) if page.0 - start < nr_pages => attributes,
            _ => Attributes::default(),
        }
    }

    /// Where there are any.
    pub(crate) fn ranges(&self) -> Vec<PageRange> {
        let range = |(&start, &(nr_pages, _)): (&u64, &(u64, _))| PageRange {
            start: PageNr(start),
            nr_pages,
        };
        self.by_start.iter().map(range).collect()
    }

    /// Changes the attributes of every page of `range`.
    fn change(&mut self, range: PageRange, change: impl Fn(&mut Attributes)) {
        let mut at = range.start.0;
        let mut parts = Vec::new();
        self.split_at(range.start.0);
        self.split_at(range.end().0);
        for (&start, &(nr_pages, attributes)) in self.by_start.range(at..range.end().0) {
            parts.push((at, start - at, Attributes::default()));
            parts.push((start, nr_pages, attributes));
            at = start + nr_pages;
        }
        parts.push((at, range.end().0 - at, Attributes::default()));
        for (start, nr_pages, mut attributes) in parts.into_iter().filter(|part| part.1 > 0) {
            change(&mut attributes);
            self.by_start.remove(&start);
            if attributes != Attributes::default() {
                self.by_start.insert(start, (nr_pages, attributes));
            }
        }
        self.merge_in(range);
    }

    /// Forgets what was said about `range`.
    pub(crate) fn remove(&mut self, range: PageRange) {
        self.change(range, |attributes| *attributes = Attributes::default());
    }

    /// Makes `page` the first of its range.
    fn split_at(&mut self, page: u64) {
        let low = self.by_start.range_mut(..page).next_back();
        let Some((start, (nr_pages, attributes))) = low else { return };
        let nr_low = page - start;
        if nr_low < *nr_pages {
            let (nr_high, attributes) = (*nr_pages - nr_low, *attributes);
            *nr_pages = nr_low;
            self.by_start.insert(page, (nr_high, attributes));
        }
    }

    /// Joins neighbours that meet in `range` or at its ends and are alike.
    fn merge_in(&mut self, range: PageRange) {
        let meets = |&start: &u64| start <= range.end().0;
        let starts: Vec<u64> = self
            .by_start
            .range(range.start.0..)
            .map(|(&start, _)| start)
            .take_while(meets)
            .collect();
        for start in starts {
            let high = self.by_start[&start];
            let Some((&low, &(nr_low, alike))) = self.by_start.range(..start).next_back() else {
                continue;
            };
            if low + nr_low == start && alike == high.1 {
                self.by_start.remove(&start);
                self.by_start.insert(low, (nr_low + high.0, alike));
            }
        }
    }
}

impl Space {
    /// Changes one attribute of the pages that hold `addr .. addr + len_bytes`. It counts from
    /// the next fault on; nothing is moved now.
    ///
    /// # Errors
    /// [`Error::ZeroLength`](crate::Error::ZeroLength),
    /// [`Error::AddressOverflow`](crate::Error::AddressOverflow),
    /// [`Error::UnknownNode`](crate::Error::UnknownNode),
    /// [`Error::NotMapped`](crate::Error::NotMapped) with the first address in no region. Nothing
    /// is changed then.
    pub fn set_attribute(
        &self,
        addr: VirtAddr,
        len_bytes: u64,
        attribute: Attribute,
    ) -> Result<()> {
        let range = PageRange::covering(addr, len_bytes)?;
        attribute.node().map_or(Ok(()), |node| self.check_node(node))?;
        // No region comes or goes meanwhile.
        let _setup = self.set_up();
        self.check_mapped(range)?;
        self.attributes.with_mut(|table| table.change(range, |a| attribute.apply(a)));
        for (page, entry) in self.table.entries(range) {
            self.note_advised(&mut entry.lock(), page);
        }
        Ok(())
    }

    /// What is advised about the pages of `range`: runs of pages that are alike, by address;
    /// pages without attributes are left out.
    ///
    /// # Errors
    /// [`Error::NotMapped`](crate::Error::NotMapped),
    /// [`Error::AddressOverflow`](crate::Error::AddressOverflow).
    pub fn attributes(&self, range: PageRange) -> Result<Vec<(PageRange, Attributes)>> {
        self.check_mapped(range)?;
        let mut runs: Vec<(PageRange, Attributes)> = Vec::new();
        for (page, entry) in self.table.entries(range) {
            let m = entry.lock();
            let attributes = self.attributes_of(&m, page);
            drop(m);
            match runs.last_mut().filter(|(run, of)| run.end() == page && *of == attributes) {
                Some((run, _)) => run.nr_pages += 1,
                None if attributes == Attributes::default() => {}
                None => runs.push((PageRange { start: page, nr_pages: 1 }, attributes)),
            }
        }
        Ok(runs)
    }

    /// All that is advised about a page.
    pub(crate) fn attributes_of(&self, m: &crate::entry::Mapping, page: PageNr) -> Attributes {
        match m.is_advised() && m.is_open() {
            true => Attributes {
                pinned: self.pin_of(m).map(|(frame, pins)| (frame.node, pins)),
                ..self.attributes.with(|table| table.get(page))
            },
            false => Attributes::default(),
        }
    }

    /// Makes the entry's flag say what the table and the frames do.
    pub(crate) fn note_advised(&self, m: &mut crate::entry::Mapping, page: PageNr) {
        let listed = self.attributes.with(|table| table.get(page)) != Attributes::default();
        let advised = listed || self.pin_of(m).is_some();
        m.set_advised(advised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, nr_pages: u64) -> PageRange {
        PageRange { start: PageNr(start), nr_pages }
    }

    fn lengths(table: &AttributeTable) -> Vec<(u64, u64)> {
        table.by_start.iter().map(|(&start, &(nr_pages, _))| (start, nr_pages)).collect()
    }

    #[test]
    fn ranges_split_and_merge() {
        let mut table = AttributeTable::default();
        let read_mostly = |is| move |a: &mut Attributes| a.read_mostly = is;
        table.change(range(10, 10), read_mostly(true));
        table.change(range(13, 2), |a| a.preferred = Some(NodeId(1)));
        assert_eq!(lengths(&table), [(10, 3), (13, 2), (15, 5)]);
        assert!(table.get(PageNr(14)).read_mostly);
        assert_eq!(table.get(PageNr(14)).preferred, Some(NodeId(1)));
        assert_eq!(table.get(PageNr(15)).preferred, None);
        table.change(range(0, 100), |a| a.preferred = None);
        assert_eq!(lengths(&table), [(10, 10)]);
        table.change(range(20, 5), read_mostly(true));
        table.change(range(5, 5), read_mostly(true));
        assert_eq!(lengths(&table), [(5, 20)]);
        table.remove(range(8, 4));
        assert_eq!(lengths(&table), [(5, 3), (12, 13)]);
        for outside in [0, 4, 8, 11, 25, u64::MAX] {
            assert_eq!(table.get(PageNr(outside)), Attributes::default(), "{outside}");
        }
        table.change(range(7, 7), read_mostly(false));
        assert_eq!(lengths(&table), [(5, 2), (14, 11)]);
        table.remove(range(0, 100));
        assert!(lengths(&table).is_empty());
    }

    #[test]
    fn every_page_keeps_what_was_said_of_it() {
        let mut table = AttributeTable::default();
        let mut plain = vec![Attributes::default(); 40];
        let mut random = 7u64;
        for _ in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, len) = (random >> 33 & 31, 1 + (random >> 40 & 7));
            let attribute = match random >> 50 & 3 {
                0 => Attribute::ReadMostly(random >> 60 & 1 == 0),
                1 => Attribute::Preferred((random >> 60 & 1 == 0).then_some(NodeId(2))),
                _ => Attribute::AccessedBy(NodeId(3), random >> 60 & 1 == 0),
            };
            table.change(range(start, len), |a| attribute.apply(a));
            plain[start as usize..(start + len) as usize]
                .iter_mut()
                .for_each(|a| attribute.apply(a));
            for (page, want) in plain.iter().enumerate() {
                assert_eq!(table.get(PageNr(page as u64)), *want);
            }
            let alike = |a: &(u64, u64), b: &(u64, u64)| {
                a.0 + a.1 == b.0 && table.get(PageNr(a.0)) == table.get(PageNr(b.0))
            };
            assert!(lengths(&table).windows(2).all(|w| !alike(&w[0], &w[1])), "{table:?}");
        }
    }
}
