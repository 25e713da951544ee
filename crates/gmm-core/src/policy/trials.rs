//! Protected pages that were evicted to see whether they come back.

use std::collections::VecDeque;

/// What a page that does not come back adds to the score; one that does takes 1. So it rises if
/// more than one in 16 do not.
const DEAD: u32 = 16;

/// The score that is too much: two dead pages, with up to eight between them that are alive.
const TOO_MUCH: u32 = DEAD + DEAD / 2;

/// The most at a time: enough to see whether one in 16 is dead. Each arrival looks at all of them.
const MAX_TRIALS: usize = 64;

/// Stands for a page that is back.
const BACK: u32 = u32::MAX;

/// The pages that are away, and what was seen of those before.
pub(super) struct Trials {
    /// The page and when it left, the earliest first.
    away: VecDeque<(u32, u32)>,
    score: u32,
}

impl Trials {
    pub(super) fn new() -> Self {
        Self { away: VecDeque::with_capacity(MAX_TRIALS), score: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.away.len() < MAX_TRIALS
    }

    /// The page was evicted. Without room, nobody looks out for it.
    pub(super) fn begin(&mut self, page: u32, now: u32) {
        if self.has_room() {
            self.away.push_back((page, now));
        }
    }

    /// A page came.
    pub(super) fn arrived(&mut self, page: u32) {
        if let Some(trial) = self.away.iter_mut().find(|trial| trial.0 == page) {
            trial.0 = BACK;
            self.score = self.score.saturating_sub(1);
        }
    }

    /// Takes those for dead that have been away for `patience` arrivals; whether that are too many.
    pub(super) fn are_too_many_dead(&mut self, now: u32, patience: u32) -> bool {
        while let Some(&(page, left)) = self.away.front() {
            if page != BACK {
                if now.wrapping_sub(left) < patience {
                    break;
                }
                self.score += DEAD;
            }
            self.away.pop_front();
        }
        self.score >= TOO_MUCH
    }

    /// Starts anew.
    pub(super) fn clear(&mut self) {
        self.away.clear();
        self.score = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of pages that leave one after the other, each `one_in`-th is dead; the others are back soon.
    fn fails(one_in: u32) -> bool {
        let mut trials = Trials::new();
        (1..1000).any(|page| {
            trials.begin(page, page * 10);
            if page % one_in != 0 {
                trials.arrived(page);
            }
            trials.are_too_many_dead(page * 10, 100)
        })
    }

    #[test]
    fn one_dead_page_in_eight_is_too_many_and_one_in_twenty_is_not() {
        assert!(fails(8));
        assert!(!fails(20));
    }

    #[test]
    fn a_page_is_given_the_time_to_come_back() {
        let mut trials = Trials::new();
        (0..4).for_each(|page| trials.begin(page, 10));
        assert!(!trials.are_too_many_dead(109, 100));
        assert!(trials.are_too_many_dead(110, 100));
        trials.clear();
        assert!(!trials.are_too_many_dead(1000, 100));
    }

    #[test]
    fn there_is_room_again_when_the_earliest_is_decided() {
        let mut trials = Trials::new();
        (0..100).for_each(|page| trials.begin(page, page));
        assert!(!trials.has_room());
        trials.arrived(0);
        trials.are_too_many_dead(100, 1000);
        assert!(trials.has_room());
    }
}
