//! Sets of addresses, as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Start and end of each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range, or what is not there of it.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((&before, &until)) = self.0.range(..start).next_back()
            && until >= start
        {
            start = before;
            end = end.max(until);
        }
        while let Some((&next, &until)) = self.0.range(start..=end).next() {
            self.0.remove(&next);
            end = end.max(until);
        }
        self.0.insert(start, end);
    }

    /// Takes a range away, or what is there of it.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((&before, &until)) = self.0.range(..range.start).next_back()
            && until > range.start
        {
            self.0.insert(before, range.start);
            self.0.insert(range.start, until);
        }
        while let Some((&next, &until)) = self.0.range(range.clone()).next() {
            self.0.remove(&next);
            if until > range.end {
                self.0.insert(range.end, until);
            }
        }
    }

    /// What of it lies in a range, in order.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.0.range(..range.start).next_back();
        let (first, last) = (range.start, range.end);
        before.into_iter().chain(self.0.range(range)).filter_map(move |(&start, &end)| {
            let part = start.max(first)..end.min(last);
            (!part.is_empty()).then_some(part)
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranges added and one taken away, all there are in six addresses, as bits of a number.
    #[test]
    fn ranges_are_sets() {
        let bits = |range: Range<u64>| range.fold(0u64, |bits, at| bits | 1 << at);
        let ends = (0..7).flat_map(|start| (0..7).map(move |end| start..end));
        let all: Vec<Range<u64>> = ends.collect();
        for (first, second) in all.iter().flat_map(|first| all.iter().map(move |it| (first, it))) {
            for gone in &all {
                let mut set = Ranges::default();
                set.insert(first.clone());
                set.insert(second.clone());
                set.remove(gone.clone());
                let expected = (bits(first.clone()) | bits(second.clone())) & !bits(gone.clone());
                assert_eq!(set.iter().fold(0, |all, range| all | bits(range)), expected);
                let within = set.within(2..5).fold(0, |all, range| all | bits(range));
                assert_eq!(within, expected & 0b1_1100);
            }
        }
    }

    #[test]
    fn what_touches_is_one() {
        let mut set = Ranges::default();
        for range in [0..2, 4..6, 2..4] {
            set.insert(range);
        }
        assert!(set.iter().eq(std::iter::once(0..6)), "{set:?}");
    }
}
