//! Dynamic insertion: a policy that notices sweeps, from faults alone.
//!
//! A program that reads more pages than fit, in the same order again and again, finds none of
//! them under [`Lru`](super::Lru): each leaves just before it is used again. Better is to keep as
//! many as fit and to stream the rest through a few frames. What to keep can't be seen, since a
//! page that is mapped makes no fault; it is found out by evicting a few.
//!
//! - Frames are in one list: first the *protected* ones, then a small *window*, both the oldest
//!   first. A new page goes to the window, whose oldest leaves. A window that holds more than
//!   reclaim takes at a time passes its oldest on to the protected: so memory fills.
//! - *Bimodal insertion* (BIP in Qureshi and others, "Adaptive insertion policies", ISCA 2007):
//!   one page in 16 is protected at once, and a protected page, taken at random, leaves for it.
//! - *The duel.* The one that left gets a rival: the next page to enter the window. In a sweep the
//!   evicted page is always back first, since the rival was used only just now. If the rival is
//!   back first, the page that was protected is dead, or colder than what streams by. Enough of
//!   those, and all that is protected is replaced, the oldest first: a *refresh*, which for that
//!   long is LRU. (DIP duels with two sets of pages; here one set would miss all the time, which
//!   at 1.05 times the memory is more than all other misses.)
//! - *Refault distance.* How many arrivals lie between a page's leaving the window and its coming
//!   back: less than 3/4 of the usual, and it is protected at once. If it is hardly anything, the
//!   page left while it was in use: the window grows.

use super::ghosts::Ghosts;
use super::{Arrival, Departure, Policy};
use crate::list::FrameList;
use crate::{FrameNr, PageNr};

/// Marks a frame in the window, in [`Dip::state`].
const WINDOW: u32 = 1 << 31;

/// The page of a frame in [`Dip::state`]: its number modulo 2^31. Two pages that look alike would
/// cost a wrong guess.
fn tag(page: PageNr) -> u32 {
    page.0 as u32 & !WINDOW
}

/// No page.
const NONE: u32 = u32::MAX;

/// One page in so many is protected without a reason; and while some that were protected have
/// been found dead, so that it is soon known whether many are.
const BIMODAL: u32 = 16;
const BIMODAL_IN_DOUBT: u32 = 8;

/// What a dead page adds to the score; one that is alive takes 1. So the protected are refreshed
/// if more than a few in a hundred are dead.
const DEAD: u32 = 16;

/// The score at which they are: two dead pages, with up to eight between them that are alive.
const REFRESH: u32 = DEAD + DEAD / 2;

/// The most duels at a time: each arrival looks at all of them.
const MAX_DUELS: u32 = 256;

/// A protected page that was evicted, and the page that it is measured by.
#[derive(Clone, Copy)]
struct Duel {
    page: u32,
    rival: u32,
    /// When the rival came.
    since: u32,
    /// After how long it was back; 0 if it is not.
    cycle: u32,
    /// The page has been counted as dead.
    counted: bool,
}

const OVER: Duel = Duel { page: NONE, rival: NONE, since: 0, cycle: 0, counted: false };

/// The default policy of an XPU's node: see the module's head. At most 25 bytes a frame.
pub struct Dip {
    /// The protected frames, then the window, both the oldest first.
    list: FrameList,
    /// Of each frame: its page, and whether it is in the window.
    state: Vec<u32>,
    /// The oldest in the window.
    first_in_window: Option<FrameNr>,
    nr_window: u32,
    /// How many the window keeps, and how many more it holds before it passes pages on.
    window: u32,
    slack: u32,
    /// How many protected pages are to leave for others that were protected in their place.
    owed: u32,
    /// How many frames may be free: while there are some, nobody need leave for another.
    room: u32,
    /// Counts arrivals.
    clock: u32,
    /// Pages that left the window, and when.
    ghosts: Ghosts,
    /// The usual refault distance, times 16.
    usual_x16: u32,
    duels: Vec<Duel>,
    next_duel: usize,
    /// Each so many-th evicted protected page fights a duel.
    sample: u32,
    unsampled: u32,
    score: u32,
    /// After how many quarters of the rival's cycle a page that is not back counts as dead: 4, and
    /// up to 8 if pages came back after that.
    patience_x4: u32,
    /// How many arrivals are protected whatever they are.
    refresh: u32,
    random: u32,
}

impl Dip {
    /// A policy for a node of `capacity_frames`.
    pub fn new(capacity_frames: u32) -> Self {
        let nr_duels = (capacity_frames / 4).clamp(8, MAX_DUELS);
        Self {
            list: FrameList::with_capacity(capacity_frames),
            state: vec![0; capacity_frames as usize],
            first_in_window: None,
            nr_window: 0,
            window: smallest_window(capacity_frames),
            slack: 1,
            owed: 0,
            room: capacity_frames,
            clock: 0,
            ghosts: Ghosts::with_capacity(capacity_frames),
            usual_x16: 0,
            duels: vec![OVER; nr_duels as usize],
            next_duel: 0,
            sample: (capacity_frames / 4).div_ceil(nr_duels).max(1),
            unsampled: 0,
            score: 0,
            patience_x4: 4,
            refresh: 0,
            random: 0x9E37_79B9,
        }
    }

    fn capacity(&self) -> u32 {
        self.state.len() as u32
    }

    fn is_in_window(&self, frame: FrameNr) -> bool {
        self.list.contains(frame) && self.state[frame.0 as usize] & WINDOW != 0
    }

    fn nr_protected(&self) -> u32 {
        self.list.len() - self.nr_window
    }

    fn random(&mut self) -> u32 {
        // xorshift32: the choice need not be good, only unrelated to the order of accesses.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    /// Puts a frame that is in neither part at the young end of the protected.
    fn protect(&mut self, frame: FrameNr) {
        self.state[frame.0 as usize] &= !WINDOW;
        self.list.insert_before(self.first_in_window, frame);
    }

    /// Puts a frame that is in neither part at the young end of the window.
    fn stream(&mut self, frame: FrameNr) {
        self.state[frame.0 as usize] |= WINDOW;
        self.list.push_back(frame);
        self.first_in_window = self.first_in_window.or(Some(frame));
        self.nr_window += 1;
        if self.nr_window > self.window + self.slack {
            self.pass_on();
        }
    }

    /// The oldest of the window becomes the youngest protected.
    fn pass_on(&mut self) {
        let Some(oldest) = self.first_in_window else { return };
        self.first_in_window = self.list.next(oldest);
        self.nr_window -= 1;
        let state = &mut self.state[oldest.0 as usize];
        *state &= !WINDOW;
        let page = *state;
        // A rival that stays here will not be back.
        let is_rival = |duel: &&mut Duel| duel.rival == page && duel.cycle == 0;
        self.duels.iter_mut().filter(is_rival).for_each(|duel| *duel = OVER);
    }

    fn take_out(&mut self, frame: FrameNr) {
        if self.is_in_window(frame) {
            self.nr_window -= 1;
            if self.first_in_window == Some(frame) {
                self.first_in_window = self.list.next(frame);
            }
        }
        self.list.remove(frame);
    }

    /// A page came that was not here; whether it is to be protected at once.
    fn deserves_protection(&mut self, page: u32) -> bool {
        let distance = self.ghosts.take(page).map(|left| self.clock.wrapping_sub(left));
        let is_soon = distance.is_some_and(|d| u64::from(d) * 64 < u64::from(self.usual_x16) * 3);
        if let Some(d) = distance {
            // It left while it was in use, as others are whose cores take turns with its core.
            if is_soon && d <= self.nr_window.max(self.capacity() / 32) {
                self.window = (self.window + 1).min((self.capacity() / 8).max(1));
            }
            let d = d.min(1 << 24);
            self.usual_x16 = match self.usual_x16 {
                0 => d * 16,
                // When many come sooner the usual is out of date: a few are enough to see it.
                usual if is_soon => usual - usual / 2 + d * 8,
                usual => usual - usual / 8 + d * 2,
            };
        }
        self.duel(page, is_soon);
        if self.refresh > 0 {
            self.refresh -= 1;
            return true;
        }
        let one_in = if self.score > 0 { BIMODAL_IN_DOUBT } else { BIMODAL };
        is_soon || self.random() < u32::MAX / one_in
    }

    /// Decides the duels in which `page`, which has just come, is one of the two.
    fn duel(&mut self, page: u32, is_soon: bool) {
        for duel in self.duels.iter_mut().filter(|duel| duel.page != NONE) {
            let age = self.clock.wrapping_sub(duel.since);
            if duel.page == page {
                if duel.counted {
                    self.patience_x4 = (self.patience_x4 + 1).min(8);
                } else {
                    self.score = self.score.saturating_sub(1);
                }
                *duel = OVER;
                continue;
            }
            if duel.rival == page && duel.cycle == 0 {
                // One that comes sooner than others do is no measure for them.
                match is_soon {
                    true => *duel = OVER,
                    false => duel.cycle = age.max(1),
                }
            }
            let age_in_cycles_x4 = u64::from(age) * 4 / u64::from(duel.cycle.max(1));
            if duel.cycle == 0 || duel.page == NONE {
                continue;
            }
            if !duel.counted && age_in_cycles_x4 >= u64::from(self.patience_x4) {
                duel.counted = true;
                self.score += DEAD;
            }
            if duel.counted && age_in_cycles_x4 >= 8 {
                self.patience_x4 = (self.patience_x4 - 1).max(4);
                *duel = OVER;
            }
        }
        if self.score >= REFRESH && self.refresh == 0 {
            self.score = 0;
            self.refresh = self.nr_protected();
            let undecided = |duel: &&mut Duel| !duel.counted;
            self.duels.iter_mut().filter(undecided).for_each(|duel| *duel = OVER);
        }
    }

    /// A protected page was evicted: sees whether it comes back.
    fn challenge(&mut self, page: u32) {
        self.unsampled += 1;
        if self.unsampled < self.sample {
            return;
        }
        self.unsampled = 0;
        // The oldest is given up: neither of its pages is likely to come.
        let duel = &mut self.duels[self.next_duel];
        *duel = Duel { page, since: self.clock, ..OVER };
        self.next_duel = (self.next_duel + 1) % self.duels.len();
    }

    /// A page enters the window: it is the rival of one that has none. (Not of one that has just
    /// left: cores that sweep together do so in slightly changing order.)
    fn rival(&mut self, page: u32) {
        let (clock, gap) = (self.clock, (self.window + self.slack).min(16));
        let waits = |duel: &&mut Duel| {
            duel.page != NONE && duel.rival == NONE && clock.wrapping_sub(duel.since) >= gap
        };
        if let Some(duel) = self.duels.iter_mut().find(waits) {
            duel.rival = page;
            duel.since = clock;
        }
    }

    /// Has a protected page, taken at random so that each is tried some time, leave next.
    fn draw_lots(&mut self) {
        for _ in 0..8 {
            let frame = FrameNr(self.random() % self.capacity());
            if self.list.contains(frame) && !self.is_in_window(frame) {
                self.take_out(frame);
                self.list.push_front(frame);
                return;
            }
        }
    }
}

/// The fewest frames that the window keeps. Cores that fault at the same time need one each, and
/// it grows if they do.
fn smallest_window(capacity_frames: u32) -> u32 {
    (capacity_frames / 256).clamp(1, 2)
}

impl Policy for Dip {
    fn mapped(&mut self, frame: FrameNr, page: PageNr, why: Arrival) {
        let was_here = self.list.contains(frame);
        let was_in_window = self.is_in_window(frame);
        self.take_out(frame);
        let before = core::mem::replace(&mut self.state[frame.0 as usize], tag(page));
        match why {
            // A launch that holds what it uses sets all of it aside: to stream by as before.
            Arrival::Returned if before == tag(page) | WINDOW => return self.stream(frame),
            Arrival::Returned | Arrival::Evicted => return self.protect(frame),
            Arrival::Prefetch | Arrival::Hint => {
                // Somebody says that it will be used: not a page to stream by.
                let is_one_more = !was_here || was_in_window;
                self.owed += u32::from(is_one_more && self.room == 0);
                self.room = self.room.saturating_sub(u32::from(!was_here));
                return self.protect(frame);
            }
            Arrival::Fault | Arrival::LookAhead => {}
        }
        if was_here {
            return if was_in_window { self.stream(frame) } else { self.protect(frame) };
        }
        self.clock = self.clock.wrapping_add(1);
        if self.clock.is_multiple_of(self.capacity()) {
            // What the window grew by may not be needed any more.
            self.slack = (self.slack - 1).max(1);
            self.window = (self.window - 1).max(smallest_window(self.capacity()));
        }
        let is_refresh = self.refresh > 0;
        if self.deserves_protection(tag(page)) && self.nr_window >= self.window {
            if !is_refresh {
                self.draw_lots();
            }
            self.owed += u32::from(self.room == 0);
            self.protect(frame);
        } else {
            self.rival(tag(page));
            self.stream(frame);
        }
        self.room = self.room.saturating_sub(1);
    }

    fn removed(&mut self, frame: FrameNr, why: Departure) {
        if !self.list.contains(frame) {
            return;
        }
        let was_in_window = self.is_in_window(frame);
        self.take_out(frame);
        let page = self.state[frame.0 as usize] & !WINDOW;
        if why == Departure::Evicted {
            self.room = 0;
        }
        match (why, was_in_window) {
            (Departure::Evicted, true) => self.ghosts.insert(page, self.clock),
            (Departure::Evicted, false) => {
                if self.owed > 0 {
                    self.owed -= 1;
                } else {
                    // Reclaim takes more at a time than the window could give.
                    self.slack = (self.slack + 1).min((self.capacity() / 8).clamp(1, 32));
                }
                if self.refresh == 0 {
                    self.challenge(page);
                }
            }
            (Departure::Gone, _) => self.room += 1,
            (Departure::Aside, _) => {}
        }
    }

    fn victims(&mut self, take: &mut dyn FnMut(FrameNr) -> bool) {
        let nr_protected = self.nr_protected() as usize;
        let owed = (self.owed as usize).min(nr_protected);
        let beyond_window = self.nr_window.saturating_sub(self.window) as usize;
        let window = || self.list.iter_from(self.first_in_window);
        let _ = self.list.iter().take(owed).all(&mut *take)
            && window().take(beyond_window).all(&mut *take)
            && self.list.iter().take(nr_protected).skip(owed).all(&mut *take)
            && window().skip(beyond_window).all(&mut *take);
    }

    fn batch(&self) -> u32 {
        (self.capacity() / 256).clamp(1, 4)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Frames;
    use super::*;

    fn frames(nr_frames: u32) -> Frames<Dip> {
        Frames::new(Dip::new(nr_frames), nr_frames as usize)
    }

    /// The list, the window's end of it and the counts agree, and each frame is in it once.
    fn check(frames: &Frames<Dip>) {
        let dip = &frames.policy;
        let all: Vec<_> = dip.list.iter().collect();
        let in_window = all.iter().filter(|&&frame| dip.is_in_window(frame)).count();
        let window: Vec<_> = dip.list.iter_from(dip.first_in_window).collect();
        assert_eq!(window, all[all.len() - in_window..]);
        assert_eq!((all.len(), in_window), (dip.list.len() as usize, dip.nr_window as usize));
    }

    #[test]
    fn a_sweep_keeps_what_fits() {
        for (nr_pages, optimum, limit) in [(269, 13, 17), (320, 64, 70), (512, 256, 268)] {
            let mut frames = frames(256);
            let moved: Vec<_> = (0..8).map(|_| frames.pass(0..nr_pages)).collect();
            check(&frames);
            let late = moved[3..].iter().sum::<usize>() / 5;
            assert!(late >= optimum && late <= limit, "{nr_pages} pages: {moved:?}");
        }
    }

    #[test]
    fn memory_is_filled_before_anything_leaves() {
        let mut frames = frames(256);
        assert_eq!([frames.pass(0..256), frames.pass(0..256)], [256, 0]);
        assert_eq!(frames.policy.owed, 0);
    }

    #[test]
    fn dead_pages_are_replaced_within_three_passes() {
        let mut frames = frames(512);
        let before: Vec<_> = (0..6).map(|_| frames.pass(0..640)).collect();
        let other: Vec<_> = (0..6).map(|_| frames.pass(1000..1640)).collect();
        check(&frames);
        assert!(other[3] <= before[5] * 11 / 10, "{before:?} then {other:?}");
        let fits: Vec<_> = (0..4).map(|_| frames.pass(3000..3500)).collect();
        assert_eq!(fits[3], 0, "{fits:?}");
    }

    #[test]
    fn a_page_that_comes_back_sooner_than_others_is_protected() {
        let mut frames = frames(256);
        // 8 pages are used four times in a pass of 1,000.
        let mut hot_moved = 0;
        for pass in 0..8 {
            for quarter in 0..4 {
                let hot = frames.pass(5000..5008);
                hot_moved += if pass > 2 { hot } else { 0 };
                frames.pass(quarter * 250..(quarter + 1) * 250);
            }
        }
        // Trying pages costs some of these: one in 16 that come evicts one.
        assert!(hot_moved < 80, "{hot_moved} of 160");
    }

    #[test]
    fn what_was_prefetched_is_not_the_victim_of_the_same_prefetch() {
        let mut frames = frames(256);
        for _ in 0..4 {
            frames.pass(0..400);
        }
        for page in 1000..1128 {
            frames.bring(page, Arrival::Prefetch);
        }
        check(&frames);
        assert_eq!(frames.pass(1000..1128), 0);
    }

    #[test]
    fn a_reclaimer_that_takes_many_at_a_time_does_not_eat_the_protected() {
        let mut frames = frames(256);
        frames.batch = 8;
        let moved: Vec<_> = (0..8).map(|_| frames.pass(0..320)).collect();
        check(&frames);
        assert!(moved[7] <= 64 + 16, "{moved:?}");
    }

    #[test]
    fn what_is_pinned_is_not_offered_and_comes_back() {
        let mut frames = frames(8);
        frames.pass(0..8);
        let pinned = frames.frame_of(3).expect("it is here");
        frames.remove(pinned, Departure::Aside);
        frames.remove(pinned, Departure::Aside);
        let offered = frames.offer(64);
        assert!(offered.len() == 7 && !offered.contains(&pinned), "{offered:?}");
        frames.policy.mapped(pinned, PageNr(3), Arrival::Returned);
        check(&frames);
        assert_eq!(frames.offer(64).len(), 8);
    }

    #[test]
    fn a_sweep_of_launches_that_hold_their_page_keeps_what_fits() {
        let mut frames = frames(256);
        let moved: Vec<_> = (0..8)
            .map(|_| {
                (0..320)
                    .map(|page| {
                        let moved = frames.pass(page..page + 1);
                        let held = frames.frame_of(page).expect("it is here");
                        frames.remove(held, Departure::Aside);
                        frames.policy.mapped(held, PageNr(page), Arrival::Returned);
                        moved
                    })
                    .sum::<usize>()
            })
            .collect();
        check(&frames);
        let late = moved[3..].iter().sum::<usize>() / 5;
        assert!((64..=70).contains(&late), "{moved:?}");
    }

    #[test]
    fn pages_of_which_several_are_in_use_at_a_time_get_frames() {
        let mut frames = frames(256);
        // 16 cores, each with a page of its own that it uses again and again.
        let mut last = 0;
        for pass in 0..8 {
            let moved: usize = (0..30)
                .map(|step| (0..8).map(|_| frames.pass(step * 16..step * 16 + 16)).sum::<usize>())
                .sum();
            last = moved;
            assert!(pass < 4 || moved < 280, "pass {pass}: {moved} of 480 pages");
        }
        check(&frames);
        assert!(last >= 224, "{last} is less than the optimum");
    }
}
