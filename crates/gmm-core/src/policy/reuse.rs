//! How soon pages come back: the *distance* of a return is the number of pages that arrived since
//! the page left.
//!
//! In a sweep all distances are alike. What is much less than the usual tells of a page that is
//! used more often than others; a long row of those, of a program that has turned to something
//! shorter. What is longer than the longest seen lately tells of a page that is not used any more.

/// How many distances make the average. One that is much shorter weighs an eighth of the others,
/// so that pages that are used often don't change what is usual.
const AVERAGED: u64 = 32;
const SOON_WEIGHS_ONE_IN: u64 = 8;

/// How pages come back.
pub(super) struct Reuse {
    capacity: u32,
    /// The average distance, times [`UNIT`].
    usual: u64,
    /// How many distances are in it, up to one more than [`AVERAGED`].
    nr_known: u64,
    /// The longest seen lately, and when one like it was.
    longest: u32,
    longest_at: u32,
    /// How many in a row came back soon, and since when.
    nr_soon: u32,
    soon_since: u32,
    /// Who left before this left in other circumstances.
    changed_at: u32,
}

/// The average is kept in fractions.
const UNIT: u64 = 256;

/// What a return tells of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Return {
    /// It is used as often as others.
    Usual,
    /// It is used more often.
    Soon,
    /// It left while it was in use.
    InUse,
}

impl Reuse {
    /// For a node of `capacity` frames. Until it is known better, a page is expected back after as
    /// many arrivals as a quarter of that.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            usual: u64::from(capacity) / 4 * UNIT,
            nr_known: 0,
            longest: 0,
            longest_at: 0,
            nr_soon: 0,
            soon_since: 0,
            changed_at: 0,
        }
    }

    /// What is usual is another matter from `now` on.
    pub(super) fn restart(&mut self, now: u32) {
        (self.nr_known, self.changed_at) = (0, now);
        self.end_row(now);
    }

    /// A page that left the window `distance` arrivals ago, while that had `nr_window` frames.
    pub(super) fn streamed(&mut self, now: u32, distance: u32, nr_window: u32) -> Return {
        if !self.is_comparable(now, distance) {
            return Return::Usual;
        }
        let usual = self.usual;
        let is_soon = u64::from(distance) * UNIT * 5 < usual * 4;
        if is_soon && distance <= nr_window.max(self.capacity / 32) {
            self.average(distance, AVERAGED * SOON_WEIGHS_ONE_IN);
            return Return::InUse;
        }
        self.nr_known = (self.nr_known + 1).min(AVERAGED + 1);
        let is_known = self.nr_known > AVERAGED;
        let of = match is_known && is_soon {
            true => AVERAGED * SOON_WEIGHS_ONE_IN,
            false => self.nr_known.min(AVERAGED),
        };
        self.average(distance, of);
        match is_soon {
            true if is_known => self.nr_soon += 1,
            true => {}
            false => self.end_row(now),
        }
        if is_soon { Return::Soon } else { Return::Usual }
    }

    /// A page that was evicted from among the protected `distance` arrivals ago, at a moment that
    /// has nothing to do with its use: half of those that are used as often as others are back
    /// after half of what is usual.
    pub(super) fn tried(&mut self, now: u32, distance: u32) -> Return {
        let is_soon = u64::from(distance) * UNIT * 8 < self.usual;
        if self.is_comparable(now, distance) && is_soon { Return::Soon } else { Return::Usual }
    }

    /// Whether so many pages in a row came back soon that the program must have turned to
    /// something shorter: more than pages that are used often would be. Not before those that are
    /// used least often had the time to come back, since what is usual is not known until then.
    pub(super) fn is_shorter(&self, now: u32) -> bool {
        self.nr_soon >= 16
            && now.wrapping_sub(self.soon_since) >= self.capacity / 16
            && now.wrapping_sub(self.changed_at) >= self.longest
    }

    /// After how many arrivals a page that is not back will not be: a quarter more than the
    /// longest seen lately, or than the memory holds. `None` as long as none came back.
    pub(super) fn patience(&mut self, now: u32) -> Option<u32> {
        if now.wrapping_sub(self.longest_at) / 4 > self.longest {
            (self.longest, self.longest_at) = (self.longest / 2, now);
        }
        let longest = self.longest.max(self.capacity);
        (self.longest > 0).then_some(longest.saturating_add(longest / 4))
    }

    /// Whether a distance was measured in circumstances that still hold.
    fn is_comparable(&mut self, now: u32, distance: u32) -> bool {
        let limit = self.capacity.saturating_mul(8);
        if u64::from(distance) * 4 >= u64::from(self.longest) * 3 {
            (self.longest, self.longest_at) = (self.longest.max(distance.min(limit)), now);
        }
        let is_comparable = distance <= now.wrapping_sub(self.changed_at);
        if !is_comparable {
            self.end_row(now);
        }
        is_comparable
    }

    fn average(&mut self, distance: u32, of: u64) {
        self.usual = self.usual - self.usual / of + u64::from(distance) * UNIT / of;
    }

    fn end_row(&mut self, now: u32) {
        (self.nr_soon, self.soon_since) = (0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u32 = 1024;

    /// Pages come back after `distance`, one an arrival, until `until`.
    fn sweep(reuse: &mut Reuse, now: &mut u32, until: u32, distance: u32) -> Vec<Return> {
        let mut seen = Vec::new();
        while *now < until {
            *now += 1;
            seen.push(reuse.streamed(*now, distance, 2));
        }
        seen
    }

    #[test]
    fn a_page_that_comes_back_sooner_is_used_more_often() {
        let (mut reuse, mut now) = (Reuse::new(CAPACITY), 1000);
        sweep(&mut reuse, &mut now, 1100, 500);
        assert_eq!(reuse.streamed(1101, 410, 2), Return::Usual);
        assert_eq!(reuse.streamed(1102, 390, 2), Return::Soon);
        assert_eq!(reuse.streamed(1103, 30, 2), Return::InUse);
        assert_eq!(reuse.tried(1104, 100), Return::Usual, "it may have been used long before");
        assert_eq!(reuse.tried(1105, 60), Return::Soon);
    }

    #[test]
    fn many_sooner_ones_in_a_row_tell_of_a_shorter_sweep() {
        let (mut reuse, mut now) = (Reuse::new(CAPACITY), 1000);
        sweep(&mut reuse, &mut now, 1100, 500);
        // Fewer than a 16th of the memory may be pages that are used often.
        sweep(&mut reuse, &mut now, 1163, 250);
        assert!(!reuse.is_shorter(now));
        sweep(&mut reuse, &mut now, 1164, 250);
        assert!(reuse.is_shorter(now));
        sweep(&mut reuse, &mut now, 1165, 500);
        assert!(!reuse.is_shorter(now), "no more in a row");
    }

    #[test]
    fn a_change_is_over_when_all_had_the_time_to_come_back() {
        let (mut reuse, mut now) = (Reuse::new(CAPACITY), 1000);
        sweep(&mut reuse, &mut now, 1100, 500);
        reuse.restart(now);
        assert_eq!(reuse.streamed(1150, 60, 2), Return::Usual, "it left before the change");
        sweep(&mut reuse, &mut now, 1300, 40);
        assert!(!reuse.is_shorter(now));
        // What is usual is found out anew.
        assert_eq!(reuse.streamed(1301, 30, 2), Return::InUse);
        assert_eq!(reuse.streamed(1302, 38, 2), Return::Usual);
    }

    #[test]
    fn patience_is_as_long_as_the_longest_of_late() {
        let mut reuse = Reuse::new(CAPACITY);
        assert_eq!(reuse.patience(10), None);
        reuse.streamed(5000, 20, 2);
        assert_eq!(reuse.patience(5000), Some(1280), "no less than what fits, and a quarter");
        reuse.tried(6000, 4000);
        assert_eq!(reuse.patience(22_000), Some(5000));
        assert_eq!(reuse.patience(22_100), Some(2500), "there was none like it for long");
        reuse.tried(50_000, 40_000);
        assert_eq!(reuse.patience(50_000), Some(10 * CAPACITY), "but there is a limit");
    }
}
