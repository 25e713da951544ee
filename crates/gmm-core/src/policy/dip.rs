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
//!   one page in 24 is protected at once, and a protected page, taken at random, leaves for it.
//! - *Trials.* The one that left is looked out for. If it is not back when every page in use would
//!   be, it is dead. If more than one in 16 are, all that is protected is replaced, the oldest
//!   first: a *refresh*, which for that long is LRU. It moves each protected page once and saves a
//!   move a sweep for each dead one, so that fewer are not worth it.
//! - *Reuse distance.* How many arrivals lie between a page's leaving and its coming back: less
//!   than 4/5 of the usual, and it is protected at once. If many in a row are so early, the program
//!   has turned to a shorter sweep, and some of what is protected is dead: a refresh as well, long
//!   before the trials would tell. If it is hardly anything, the page left while it was in use: the
//!   window grows.

use super::ghosts::{Ghost, Ghosts};
use super::reuse::{Return, Reuse};
use super::trials::Trials;
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

/// One page in so many is protected without a reason, for which another page is moved once more:
/// 4% of all moves.
const BIMODAL: u32 = 24;

/// The default policy of an XPU's node: see the module's head. About 28 bytes a frame.
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
    /// Pages that left. Twice as many as there are frames: in a sweep of four times the memory a
    /// fifth of those that stream by are still known when they are back.
    ghosts: Ghosts,
    reuse: Reuse,
    trials: Trials,
    /// How many protected pages are still to be replaced, by whatever arrives.
    refresh: u32,
    random: u32,
}

impl Dip {
    /// A policy for a node of `capacity_frames`.
    pub fn new(capacity_frames: u32) -> Self {
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
            ghosts: Ghosts::with_capacity(capacity_frames.saturating_mul(2)),
            reuse: Reuse::new(capacity_frames),
            trials: Trials::new(),
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
        self.state[oldest.0 as usize] &= !WINDOW;
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
        let now = self.clock;
        let returned = self.ghosts.take(page).map(|ghost| {
            let distance = now.wrapping_sub(ghost.left);
            match ghost.was_protected {
                true => self.reuse.tried(now, distance),
                false => self.reuse.streamed(now, distance, self.nr_window),
            }
        });
        if returned == Some(Return::InUse) {
            // As others may be whose cores take turns with its core.
            self.window = (self.window + 1).min(largest_window(self.capacity()));
        }
        if self.refresh > 0 {
            return true;
        }
        let patience = self.reuse.patience(now);
        let are_dead = patience.is_some_and(|p| self.trials.are_too_many_dead(now, p));
        if are_dead || self.reuse.is_shorter(now) {
            self.trials.clear();
            self.refresh = self.nr_protected();
        }
        matches!(returned, Some(Return::Soon | Return::InUse))
            || self.trials.has_room() && self.random() < u32::MAX / BIMODAL
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

/// The fewest frames that the window keeps. A core has several pages in use at a time, and each
/// would leave for the next; it grows if two are not enough.
fn smallest_window(capacity_frames: u32) -> u32 {
    (capacity_frames / 3).clamp(1, 2)
}

/// The most: for 16 cores, or more in a large memory, but no large part of a small one.
fn largest_window(capacity_frames: u32) -> u32 {
    (capacity_frames / 32).max(16).min(capacity_frames / 3).max(1)
}

impl Policy for Dip {
    fn mapped(&mut self, frame: FrameNr, page: PageNr, why: Arrival) {
        let was_here = self.list.contains(frame);
        let was_in_window = self.is_in_window(frame);
        self.take_out(frame);
        let before = core::mem::replace(&mut self.state[frame.0 as usize], tag(page));
        if !was_here {
            self.trials.arrived(tag(page));
        }
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
        // What the window grew by may not be needed any more. To see it costs a page that comes
        // back: 3% of all.
        if self.clock.is_multiple_of((self.capacity() / 32).max(16)) {
            self.window = (self.window - 1).max(smallest_window(self.capacity()));
        }
        if self.clock.is_multiple_of(self.capacity()) {
            self.slack = (self.slack - 1).max(1);
        }
        let is_refresh = self.refresh > 0;
        if self.deserves_protection(tag(page)) && self.nr_window >= self.window {
            if !is_refresh {
                self.draw_lots();
            }
            self.owed += u32::from(self.room == 0);
            self.protect(frame);
        } else {
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
        if why == Departure::Gone {
            self.room += 1;
        }
        if why != Departure::Evicted {
            return;
        }
        self.room = 0;
        self.ghosts.insert(page, Ghost { left: self.clock, was_protected: !was_in_window });
        if was_in_window {
            return;
        }
        if self.owed > 0 {
            self.owed -= 1;
        } else {
            // Reclaim takes more at a time than the window could give.
            self.slack = (self.slack + 1).min((self.capacity() / 8).clamp(1, 32));
        }
        if self.refresh == 0 {
            self.trials.begin(page, self.clock);
            return;
        }
        self.refresh -= 1;
        if self.refresh == 0 {
            self.reuse.restart(self.clock);
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
        // Trying pages costs some of these.
        assert!(hot_moved <= 40, "{hot_moved} of 160");
    }

    #[test]
    fn a_sweep_that_becomes_shorter_is_noticed_though_few_pages_are_dead() {
        let mut frames = frames(512);
        (0..4).for_each(|_| assert!(frames.pass(0..768) >= 256));
        let shorter: Vec<_> = (0..4).map(|_| frames.pass(0..640)).collect();
        check(&frames);
        // Trials alone would take as long as it takes 640 pages to come: more than four passes.
        assert!(shorter[0] < 180, "few are dead: {shorter:?}");
        assert!(shorter[3] <= 128 * 11 / 10, "{shorter:?}");
    }

    #[test]
    fn pages_that_are_used_seldom_are_not_taken_for_dead() {
        let mut frames = frames(256);
        // 77 pages are used nearly seven times as often as 512 others.
        let mut steps = 0..;
        let mut pass = || {
            let steps = steps.by_ref().take(512);
            frames.pass(steps.flat_map(|step: u64| [step % 77, 1000 + step % 512]))
        };
        let moved: Vec<_> = (0..10).map(|_| pass()).collect();
        let late = moved[4..].iter().sum::<usize>() / 6;
        assert!(late <= (512 - 179) * 11 / 10, "{moved:?}");
    }

    #[test]
    fn in_a_memory_of_a_dozen_frames_pages_stay_as_long_as_they_are_in_use() {
        let mut frames = frames(12);
        // Four pages are in use at a time.
        let steps = || (3..40).flat_map(|page: u64| page - 3..=page);
        let moved: Vec<_> = (0..8).map(|_| frames.pass(steps())).collect();
        check(&frames);
        let late = moved[3..].iter().sum::<usize>() / 5;
        assert!((28..=36).contains(&late), "{moved:?}: lru moves 40, the optimum is 28");
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
