//! Addresses, pages and frames as types: a number of one kind is never taken for another.

use core::fmt;

use crate::Error;

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 21;

/// The one page size, in bytes: 2 MiB, the size that CPUs and XPUs share.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

/// An address in unified memory, valid on every processor of the space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtAddr(pub u64);

/// The number of a page: its address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNr(pub u64);

/// The number of a frame within its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNr(pub u32);

/// Where a host frame's bytes lie for a DMA engine: an address outside the unified window, valid
/// until the fence of the operation that names it completes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddr(pub u64);

impl VirtAddr {
    /// The page that holds this address.
    pub fn page(self) -> PageNr {
        PageNr(self.0 >> PAGE_SHIFT)
    }

    /// Whether the address is the first of a page.
    pub fn is_page_start(self) -> bool {
        self.0 & (PAGE_SIZE - 1) == 0
    }
}

impl PageNr {
    /// The first address of the page.
    pub fn start(self) -> VirtAddr {
        VirtAddr(self.0 << PAGE_SHIFT)
    }

    /// The page `n` pages further.
    #[must_use]
    pub fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtAddr({:#x})", self.0)
    }
}

impl fmt::Debug for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostAddr({:#x})", self.0)
    }
}

/// The page that holds the last of 2^64 addresses.
const LAST_PAGE: u64 = u64::MAX >> PAGE_SHIFT;

/// A run of pages, possibly empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRange {
    /// The first page.
    pub start: PageNr,
    /// How many pages.
    pub nr_pages: u64,
}

impl PageRange {
    /// The pages that hold the bytes `addr .. addr + len`.
    ///
    /// # Errors
    /// [`Error::ZeroLength`], or [`Error::AddressOverflow`] if the end is past 2^64 - 2 MiB.
    pub fn covering(addr: VirtAddr, len: u64) -> Result<Self, Error> {
        let last = Self::last_byte(addr, len)?;
        let start = addr.page();
        Ok(Self { start, nr_pages: last.page().0 - start.0 + 1 })
    }

    /// The pages that lie wholly within the bytes `addr .. addr + len`; may be empty.
    ///
    /// # Errors
    /// As [`PageRange::covering`].
    pub fn within(addr: VirtAddr, len: u64) -> Result<Self, Error> {
        Self::last_byte(addr, len)?;
        let start = PageNr(addr.0.div_ceil(PAGE_SIZE));
        let end = PageNr((addr.0 + len) >> PAGE_SHIFT);
        Ok(Self { start, nr_pages: end.0.saturating_sub(start.0) })
    }

    fn last_byte(addr: VirtAddr, len: u64) -> Result<VirtAddr, Error> {
        if len == 0 {
            return Err(Error::ZeroLength);
        }
        match addr.0.checked_add(len) {
            Some(end) if end <= u64::MAX - (PAGE_SIZE - 1) => Ok(VirtAddr(end - 1)),
            _ => Err(Error::AddressOverflow { addr, len }),
        }
    }

    /// The page after the last.
    pub fn end(self) -> PageNr {
        self.start.plus(self.nr_pages)
    }

    /// As [`PageRange::end`], for a range that anyone may have made.
    ///
    /// # Errors
    /// [`Error::AddressOverflow`] if there is no such page.
    pub fn checked_end(self) -> Result<PageNr, Error> {
        let end = self.start.0.checked_add(self.nr_pages).filter(|&end| end <= LAST_PAGE + 1);
        end.map(PageNr).ok_or_else(|| Error::AddressOverflow {
            addr: VirtAddr(self.start.0.saturating_mul(PAGE_SIZE)),
            len: self.nr_pages.saturating_mul(PAGE_SIZE),
        })
    }

    /// The range's length in bytes.
    pub fn len_bytes(self) -> u64 {
        self.nr_pages << PAGE_SHIFT
    }

    /// Whether the range has no page.
    pub fn is_empty(self) -> bool {
        self.nr_pages == 0
    }

    /// Whether `page` is in the range.
    pub fn contains(self, page: PageNr) -> bool {
        self.start <= page && page < self.end()
    }

    /// Whether every page of `other` is in the range.
    pub fn contains_range(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// What is left without the pages of `hole`: up to two ranges.
    pub fn without(self, hole: Self) -> impl Iterator<Item = Self> {
        let piece =
            |start: PageNr, end: PageNr| Self { start, nr_pages: end.0.saturating_sub(start.0) };
        let left = piece(self.start, self.end().min(hole.start));
        let right = piece(self.start.max(hole.end()), self.end());
        [left, right].into_iter().filter(|r| !r.is_empty())
    }

    /// The pages, in ascending order.
    pub fn pages(self) -> impl DoubleEndedIterator<Item = PageNr> {
        (self.start.0..self.end().0).map(PageNr)
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start.start(), self.end().start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_rounds_outward_and_within_inward() {
        let a = VirtAddr(PAGE_SIZE - 1);
        let c = PageRange::covering(a, 2).unwrap();
        assert_eq!((c.start, c.nr_pages), (PageNr(0), 2));
        assert!(PageRange::within(a, 2).unwrap().is_empty());
        let w = PageRange::within(a, PAGE_SIZE + 1).unwrap();
        assert_eq!((w.start, w.nr_pages), (PageNr(1), 1));
    }

    #[test]
    fn a_hole_leaves_both_sides_once() {
        let range = |start, nr_pages| PageRange { start: PageNr(start), nr_pages };
        let left = |hole| range(10, 10).without(hole).collect::<Vec<_>>();
        assert_eq!(left(range(12, 3)), [range(10, 2), range(15, 5)]);
        assert_eq!(left(range(0, 5)), [range(10, 10)]);
        assert_eq!(left(range(25, 5)), [range(10, 10)]);
        assert_eq!(left(range(0, 100)), []);
        assert_eq!(left(range(10, 1)), [range(11, 9)]);
        assert_eq!(left(range(19, 9)), [range(10, 9)]);
    }

    #[test]
    fn ranges_end_within_the_address_space() {
        let range = |start, nr_pages| PageRange { start: PageNr(start), nr_pages };
        assert_eq!(range(LAST_PAGE, 1).checked_end(), Ok(PageNr(LAST_PAGE + 1)));
        for (start, nr_pages) in [(LAST_PAGE, 2), (u64::MAX, 0), (u64::MAX, 2), (1, u64::MAX)] {
            let end = range(start, nr_pages).checked_end();
            assert!(
                matches!(end, Err(Error::AddressOverflow { .. })),
                "{start} {nr_pages}: {end:?}"
            );
        }
    }

    #[test]
    fn hostile_lengths_are_errors() {
        for make in [PageRange::covering, PageRange::within] {
            assert_eq!(make(VirtAddr(0), 0), Err(Error::ZeroLength));
            for (addr, len) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX), (0, u64::MAX)] {
                let addr = VirtAddr(addr);
                assert_eq!(make(addr, len), Err(Error::AddressOverflow { addr, len }));
            }
        }
    }
}
