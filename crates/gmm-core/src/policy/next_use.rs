//! The page whose next use is farthest away leaves first: Belady's optimum, for who knows the
//! future.
//!
//! The future is a *record*: the order in which pages were used before, and are expected to be
//! again, from the start when it ends. Where in the record the program is can be seen at each
//! fault: it has gone past pages that are here, and has come to the one that faults. Where that
//! does not fit, the program has left the record, or is at another place of it: the policy goes
//! to the next place that has the page, and is [`Lru`] until several faults in a row fit again.

use super::{Arrival, Departure, Lru, Policy};
use crate::{FrameNr, PageNr};

/// No frame; no place.
const NONE: u32 = u32::MAX;

/// The trust in the record at which it is followed. A fault that fits adds 1, one that fits badly
/// takes 1, another 2.
const FOLLOW: u8 = 4;

/// The most there is.
const MAX_TRUST: u8 = 8;

/// By how many uses cores that work together may change their order.
const REORDERED: u32 = 16;

/// Of pages that are not in the record, how many of the youngest are kept: they may be in use.
const KEPT_UNRECORDED: usize = 4;

/// A page of the record.
struct Recorded {
    page: PageNr,
    /// The frame it is in, or [`NONE`].
    frame: u32,
    /// The place of its next use while it is in a frame.
    next: u32,
}

/// Farthest next use first, by a record of one node's accesses.
pub struct NextUse {
    /// By page.
    pages: Vec<Recorded>,
    /// The record: indices of `pages`.
    order: Vec<u32>,
    /// For each place of the record, the next place of the same page; its first after its last.
    again: Vec<u32>,
    /// The first place of each page.
    first: Vec<u32>,
    /// A bit for each place of the record: the next use of a page that is here.
    upcoming: Vec<u64>,
    /// For each frame, its page's index, or [`NONE`] if that is not in the record.
    page_in: Vec<u32>,
    /// The place expected to be used next.
    at: u32,
    trust: u8,
    /// All frames, for when the record is not followed.
    recency: Lru,
}

impl NextUse {
    /// A policy for a node of `capacity_frames`, which its processors use in the order of
    /// `record`, again and again. An empty record makes it [`Lru`]; at most 2^32 - 1 uses.
    pub fn new(capacity_frames: u32, record: &[PageNr]) -> Self {
        let record = &record[..record.len().min(NONE as usize)];
        let mut names = record.to_vec();
        names.sort_unstable();
        names.dedup();
        let index = |page| names.binary_search(page).expect("a page of the record") as u32;
        let order: Vec<u32> = record.iter().map(index).collect();
        // From the end, twice, so that the last use of a page finds its first.
        let mut again = vec![NONE; order.len()];
        let mut first = vec![NONE; names.len()];
        for _ in 0..2 {
            for (place, &page) in order.iter().enumerate().rev() {
                again[place] = core::mem::replace(&mut first[page as usize], place as u32);
            }
        }
        let recorded = |page| Recorded { page, frame: NONE, next: NONE };
        Self {
            pages: names.into_iter().map(recorded).collect(),
            upcoming: vec![0; order.len().div_ceil(64)],
            order,
            again,
            first,
            page_in: vec![NONE; capacity_frames as usize],
            at: 0,
            trust: FOLLOW,
            recency: Lru::new(capacity_frames),
        }
    }

    fn index_of(&self, page: PageNr) -> Option<u32> {
        self.pages.binary_search_by_key(&page, |recorded| recorded.page).ok().map(|i| i as u32)
    }

    fn nr_places(&self) -> u32 {
        self.order.len() as u32
    }

    fn follows(&self) -> bool {
        self.trust >= FOLLOW && !self.order.is_empty()
    }

    fn mark(&mut self, place: u32, is_upcoming: bool) {
        let bit = 1 << (place % 64);
        let word = &mut self.upcoming[place as usize / 64];
        *word = *word & !bit | if is_upcoming { bit } else { 0 };
    }

    /// The place where `page` is used next, from `at` on.
    fn next_place(&self, page: u32) -> u32 {
        let first = self.first[page as usize];
        let mut place = first;
        while place < self.at {
            place = self.again[place as usize];
            if place == first {
                break;
            }
        }
        place
    }

    /// A page faulted: where in the record are we?
    fn locate(&mut self, page: u32) {
        let followed = self.follows();
        let fits = self.is_late(page);
        if !fits && let Some((distance, missing)) = self.distance_to(page) {
            (0..=distance).for_each(|_| self.step());
            self.trust = if missing > 1 { self.trust.saturating_sub(1) } else { self.trust + 1 };
        } else if fits {
            self.trust += 1;
        } else {
            self.at = (self.next_place(page) + 1) % self.nr_places();
            // What is upcoming is wrong until the record is followed again.
            self.trust = self.trust.saturating_sub(2).min(FOLLOW - 1);
        }
        self.trust = self.trust.min(MAX_TRUST);
        if self.follows() && !followed {
            self.look_ahead();
        }
    }

    /// The page was expected a moment ago.
    fn is_late(&self, page: u32) -> bool {
        let nr_places = self.nr_places();
        let reordered = REORDERED.min(nr_places / 2);
        let before = (1..=reordered).map(|back| (self.at + nr_places - back) % nr_places);
        self.follows() && before.into_iter().any(|place| self.order[place as usize] == page)
    }

    /// How many uses lie before the next of `page`, and how many of these pages are not here; not
    /// if that are more than a few, since they would have been seen.
    fn distance_to(&self, page: u32) -> Option<(u32, u32)> {
        let mut missing = 0;
        for distance in 0..self.nr_places() {
            let used = self.order[((self.at + distance) % self.nr_places()) as usize];
            if used == page {
                return Some((distance, missing));
            }
            missing += u32::from(self.pages[used as usize].frame == NONE);
            if missing > REORDERED.min(self.page_in.len() as u32 / 8) {
                return None;
            }
        }
        None
    }

    /// The page at the place we are at is used.
    fn step(&mut self) {
        let place = self.at;
        let page = self.order[place as usize];
        self.at = (self.at + 1) % self.nr_places();
        let again = self.again[place as usize];
        let recorded = &mut self.pages[page as usize];
        if recorded.frame != NONE && recorded.next == place {
            recorded.next = again;
            self.mark(place, false);
            self.mark(again, true);
        }
    }

    /// The frame holds no page of the record any more.
    fn forget(&mut self, frame: FrameNr) {
        let Some(index) = self.page_in.get_mut(frame.0 as usize) else { return };
        let index = core::mem::replace(index, NONE);
        let Some(recorded) = self.pages.get_mut(index as usize) else { return };
        recorded.frame = NONE;
        let next = recorded.next;
        self.mark(next, false);
    }

    /// Finds the next use of every page that is here, after it was unknown.
    fn look_ahead(&mut self) {
        self.upcoming.fill(0);
        for page in 0..self.pages.len() as u32 {
            if self.pages[page as usize].frame != NONE {
                let next = self.next_place(page);
                self.pages[page as usize].next = next;
                self.mark(next, true);
            }
        }
    }

    /// The places of upcoming uses, the farthest first.
    fn farthest_first(&self) -> impl Iterator<Item = u32> {
        let at = self.at;
        let behind = BitsDown { words: &self.upcoming, below: at };
        let ahead = BitsDown { words: &self.upcoming, below: self.nr_places() };
        behind.chain(ahead.take_while(move |&place| place >= at))
    }
}

/// The set bits below a number, the highest first.
struct BitsDown<'a> {
    words: &'a [u64],
    below: u32,
}

impl Iterator for BitsDown<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.below > 0 {
            let last = self.below - 1;
            let word = self.words[last as usize / 64] & (u64::MAX >> (63 - last % 64));
            self.below = last & !63;
            if word != 0 {
                let bit = self.below + 63 - word.leading_zeros();
                self.below = bit;
                return Some(bit);
            }
        }
        None
    }
}

impl Policy for NextUse {
    fn mapped(&mut self, frame: FrameNr, page: PageNr, why: Arrival) {
        self.recency.mapped(frame, page, why);
        self.forget(frame);
        let Some(index) = self.index_of(page) else { return };
        if why == Arrival::Fault {
            self.locate(index);
        }
        // A page is in one frame. (It may be this one, and its next use is found anew.)
        self.forget(FrameNr(self.pages[index as usize].frame));
        self.page_in[frame.0 as usize] = index;
        let next = self.next_place(index);
        let recorded = &mut self.pages[index as usize];
        (recorded.frame, recorded.next) = (frame.0, next);
        self.mark(next, true);
    }

    fn removed(&mut self, frame: FrameNr, why: Departure) {
        self.recency.removed(frame, why);
        self.forget(frame);
    }

    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool) {
        if !self.follows() {
            return self.recency.victims(take);
        }
        let unrecorded = |frame: &FrameNr| self.page_in[frame.0 as usize] == NONE;
        let nr_unrecorded = self.recency.order().filter(unrecorded).count();
        let first = nr_unrecorded.saturating_sub(KEPT_UNRECORDED);
        let frame_at = |place: u32| {
            let page = self.order[place as usize];
            FrameNr(self.pages[page as usize].frame)
        };
        let _ = self.recency.order().filter(unrecorded).take(first).all(&mut *take)
            && self.farthest_first().map(frame_at).all(&mut *take)
            && self.recency.order().filter(unrecorded).skip(first).all(&mut *take);
    }

    fn batch(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Frames;
    use super::*;

    fn frames(nr_frames: u32, record: impl IntoIterator<Item = u64>) -> Frames<NextUse> {
        let record: Vec<_> = record.into_iter().map(PageNr).collect();
        Frames::new(NextUse::new(nr_frames, &record), nr_frames as usize)
    }

    /// Each page of the record that is here has its next use marked, and nothing else is.
    fn check(frames: &Frames<NextUse>) {
        let policy = &frames.policy;
        let mut here: Vec<_> = Vec::new();
        for (index, recorded) in policy.pages.iter().enumerate() {
            if recorded.frame != NONE {
                assert_eq!(policy.page_in[recorded.frame as usize], index as u32);
                assert_eq!(policy.order[recorded.next as usize], index as u32);
                here.push(recorded.next);
            }
        }
        here.sort_unstable();
        let bits = BitsDown { words: &policy.upcoming, below: policy.nr_places() };
        let mut marked: Vec<_> = bits.collect();
        marked.reverse();
        assert_eq!(marked, here);
    }

    #[test]
    fn a_sweep_costs_what_it_must() {
        let mut frames = frames(100, 0..125);
        let moved: Vec<_> = (0..8).map(|_| frames.pass(0..125)).collect();
        check(&frames);
        assert!(moved[3..].iter().all(|&moved| moved <= 26), "{moved:?}, the optimum is 25");
    }

    #[test]
    fn pages_used_more_than_once_a_pass_stay() {
        // 8 pages before each tenth of the others.
        let pass = || (0..10).flat_map(|tenth| (900..908).chain(tenth * 20..tenth * 20 + 20));
        let mut frames = frames(100, pass());
        let moved: Vec<_> = (0..8).map(|_| frames.pass(pass())).collect();
        check(&frames);
        assert!(moved[4..].iter().all(|&moved| moved <= 112), "{moved:?}, the optimum is 108");
    }

    #[test]
    fn another_order_is_served_as_lru_does_and_the_record_followed_again() {
        let mut frames = frames(100, 0..125);
        (0..4).for_each(|_| assert!(frames.pass(0..125) > 0));
        // Not the record's, and it fits.
        let other: Vec<_> =
            (0..4).map(|_| frames.pass((0..90).map(|i| 124 - i * 7 % 90))).collect();
        assert_eq!(other[3], 0, "{other:?}");
        frames.pass((0..200).map(|i| i * 37 % 125));
        let back: Vec<_> = (0..4).map(|_| frames.pass(0..125)).collect();
        check(&frames);
        assert!(back[3] <= 26, "{back:?}");
    }

    #[test]
    fn pages_outside_the_record_go_first() {
        let mut frames = frames(50, 0..40);
        frames.pass(0..40);
        let moved: usize =
            (0..4).map(|i| frames.pass((0..40).chain(500 + i * 40..540 + i * 40))).sum();
        check(&frames);
        assert_eq!(moved, 160, "each new page once, and no page of the record");
    }

    #[test]
    fn without_a_record_it_is_lru() {
        let mut frames = frames(4, []);
        frames.pass(0..6);
        assert_eq!([2, 3, 4, 5].map(|page| frames.frame_of(page).is_some()), [true; 4]);
    }
}
