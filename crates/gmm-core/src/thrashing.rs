//! The ping-pong guard: pages that two nodes take from each other again and again.
//!
//! A small table of the pages that moved lately, touched only when a fault takes a page from
//! another node's processors. With no room for a page the one that has been quiet for longest is
//! forgotten. Thresholds are those of NVIDIA's UVM driver (`uvm_perf_thrashing.c`): a page that
//! moves three times in a row within 500 µs of the time before is *thrashing*. If it is wanted
//! within 500 µs again, a processor that can maps it remotely, and others of its kind do so for 150 ms;
//! else it stays on a node for 500 µs at least, and the fault that would take it away waits. (Not if
//! those that it is taken from can map it where it goes.) A page that is taken later than that is
//! one like any other again: a program that launches, reads the result, and then does something
//! else has it moved each time.
//!
//! The table's lock is of the last rank: taken for a moment, with at most an entry's lock held.

use core::time::Duration;

use crate::entry::Mapping;
use crate::fault::{Cause, Want};
use crate::placement::{Plan, Way};
use crate::space::Space;
use crate::stats::Event;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Rank};
use crate::{NodeId, PageNr};

/// Two moves closer than this are one event; a page that is thrashing stays for as long.
const LAPSE: Duration = Duration::from_micros(500);

/// So many events make a page one that is thrashing.
const THRESHOLD: u32 = 3;

/// For how long a page that was thrashing is mapped remotely, if it can be, however seldom it is
/// wanted.
const PIN: Duration = Duration::from_millis(150);

/// A page that has not moved for as long is forgotten.
const RESET: Duration = Duration::from_secs(1);

/// A page has its place in one of so many sets
const NR_SETS: usize = 256;

/// of so many places.
const NR_WAYS: usize = 4;

/// A page that is moving back and forth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ThrashingPage {
    /// The page.
    pub page: PageNr,
    /// The node that it moved to last.
    pub node: NodeId,
    /// How often it has moved since it was first seen.
    pub moves: u64,
    /// How many of the last moves came within 500 µs of the time before, without one that did not.
    pub events: u32,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    what: ThrashingPage,
    last_moved: Duration,
    /// Until then it is mapped remotely.
    stays_until: Duration,
}

/// The pages that moved lately.
#[derive(Debug)]
pub(crate) struct Thrashing {
    sets: Box<[Mutex<[Option<Seen>; NR_WAYS], { Rank::Frames as u8 }>]>,
    /// Whether a page was ever thrashing: faults that move nothing look at this only.
    any: AtomicBool,
}

impl Seen {
    fn is_thrashing(&self, now: Duration) -> bool {
        self.what.events >= THRESHOLD && self.is_recent(now)
    }

    fn is_to_stay(&self, now: Duration) -> bool {
        let is_soon = now.saturating_sub(self.last_moved) <= LAPSE;
        now < self.stays_until || is_soon && self.is_thrashing(now)
    }

    fn is_recent(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_moved) <= RESET
    }
}

impl Thrashing {
    pub(crate) fn new() -> Self {
        let sets = (0..NR_SETS).map(|_| Mutex::default()).collect();
        Self { sets, any: AtomicBool::new(false) }
    }

    fn set(&self, page: PageNr) -> &Mutex<[Option<Seen>; NR_WAYS], { Rank::Frames as u8 }> {
        &self.sets[page.0 as usize % NR_SETS]
    }

    /// The page came to `node`, perhaps `taken` from another node's processors; says whether that
    /// makes it one that is thrashing.
    fn moved(&self, page: PageNr, node: NodeId, taken: bool, now: Duration) -> bool {
        let mut set = self.set(page).lock();
        let known = set.iter_mut().flatten().find(|seen| seen.what.page == page);
        if let Some(seen) = known.filter(|seen| seen.is_recent(now)) {
            let before = seen.is_thrashing(now);
            match now.saturating_sub(seen.last_moved) <= LAPSE {
                true => seen.what.events += u32::from(taken),
                false if taken && now >= seen.stays_until => seen.what.events = 0,
                false => {}
            }
            seen.what.moves += 1;
            seen.what.node = node;
            seen.last_moved = now;
            let begins = !before && seen.is_thrashing(now);
            if begins {
                self.any.store(true, Ordering::Relaxed);
            }
            return begins;
        }
        let is_of = |seen: &Option<Seen>| seen.is_none_or(|seen| seen.what.page == page);
        let place = set.iter().position(is_of).unwrap_or_else(|| quietest(&set));
        let what = ThrashingPage { page, node, moves: 1, events: 0 };
        set[place] = Some(Seen { what, last_moved: now, stays_until: Duration::ZERO });
        false
    }

    /// For how long the page must stay where it is: for `least`, or for `lapse` if it is thrashing.
    fn stays_for(
        &self,
        page: PageNr,
        least: Duration,
        lapse: Duration,
        now: Duration,
    ) -> Option<Duration> {
        let set = self.set(page).lock();
        let seen = set.iter().flatten().find(|seen| seen.what.page == page)?;
        let stay = if seen.is_thrashing(now) { least.max(lapse) } else { least };
        (seen.last_moved + stay).checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Whether who can map the page remotely is to do so.
    fn is_to_stay(&self, page: PageNr, now: Duration) -> bool {
        let set = self.set(page).lock();
        let seen = set.iter().flatten().find(|seen| seen.what.page == page);
        seen.is_some_and(|seen| seen.is_to_stay(now))
    }

    /// Somebody has mapped the page remotely.
    fn stayed(&self, page: PageNr, now: Duration) {
        let mut set = self.set(page).lock();
        let seen = set.iter_mut().flatten().find(|seen| seen.what.page == page);
        if let Some(seen) = seen.filter(|seen| seen.is_to_stay(now) && now >= seen.stays_until) {
            seen.stays_until = now + PIN;
        }
    }

    fn worst(&self, now: Duration) -> Vec<ThrashingPage> {
        let mut pages = Vec::new();
        for set in &self.sets {
            let set = *set.lock();
            pages.extend(set.iter().flatten().filter(|s| s.is_thrashing(now)).map(|s| s.what));
        }
        pages.sort_by_key(|page| core::cmp::Reverse(page.moves));
        pages
    }
}

/// The place of the page that has been quiet for longest.
fn quietest(set: &[Option<Seen>; NR_WAYS]) -> usize {
    let last_moved = |&way: &usize| set[way].map(|seen| seen.last_moved);
    (0..NR_WAYS).min_by_key(last_moved).expect("a set has places")
}

impl Space {
    /// The pages that are thrashing now, the worst first.
    pub fn thrashing_pages(&self) -> Vec<ThrashingPage> {
        self.thrashing.worst(self.clock.now())
    }

    /// Whether the page goes back and forth between nodes so fast that it had better stay where
    /// it is.
    pub(crate) fn is_thrashing(&self, page: PageNr) -> bool {
        let any = self.thrashing.any.load(Ordering::Relaxed);
        any && self.thrashing.is_to_stay(page, self.clock.now())
    }

    /// Whether the page should stay where it is, for look-ahead.
    pub(crate) fn is_to_stay(&self, page: PageNr) -> bool {
        let least = self.config.minimum_residency;
        self.thrashing.stays_for(page, least, LAPSE, self.clock.now()).is_some()
    }

    /// For how long the fault has to wait, because it would take the page from processors of
    /// another node too soon after they got it.
    pub(crate) fn throttled_for(
        &self,
        m: &Mapping,
        want: &Want<'_>,
        plan: &Plan<'_>,
    ) -> Option<Duration> {
        if !self.takes_away(m, want, plan) {
            return None;
        }
        let least = self.config.minimum_residency;
        let mut mappers = m.mapped().iter().filter_map(|id| self.processor(id));
        let at = want.node.id;
        let lapse = match mappers.all(|p| p.node == at || self.maps_remotely(&p, at)) {
            true => Duration::ZERO,
            false => LAPSE,
        };
        self.thrashing.stays_for(want.page, least, lapse, self.clock.now())
    }

    /// Whether serving a fault takes the page, or the right to write it, from a processor of
    /// another node.
    pub(crate) fn takes_away(&self, m: &Mapping, want: &Want<'_>, plan: &Plan<'_>) -> bool {
        if want.cause != Cause::Fault || plan.way != Way::Local {
            return false;
        }
        let mut mappers = m.mapped().iter().filter_map(|id| self.processor(id));
        mappers.any(|p| {
            let sees = m.frame_seen_from(p.node).map(|frame| frame.node);
            let keeps_reading = !plan.exclusive
                && !m.writable().contains(p.id)
                && (m.has_replica() || !p.moves_frames());
            sees != Some(want.node.id) && !keeps_reading
        })
    }

    /// The want was served: the page has come to its node, perhaps `taken` from a processor of
    /// another, or is mapped where it is.
    pub(crate) fn note_arrival(&self, want: &Want<'_>, plan: &Plan<'_>, taken: bool) {
        if plan.way == Way::Remote && self.thrashing.any.load(Ordering::Relaxed) {
            self.thrashing.stayed(want.page, self.clock.now());
        }
        let matters = taken || !self.config.minimum_residency.is_zero();
        let (page, node) = (want.page, want.node.id);
        if matters && self.thrashing.moved(page, node, taken, self.clock.now()) {
            self.stats.count(node, Event::Thrashing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNr = PageNr(1000);

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Moves the page back and forth at these times; says at which of them it began to thrash.
    fn moves(table: &Thrashing, times: &[u64]) -> Vec<u64> {
        let times = times.iter().enumerate();
        times
            .filter(|&(i, &at)| table.moved(PAGE, NodeId(i as u8 % 2), true, us(at)))
            .map(|(_, &at)| at)
            .collect()
    }

    #[test]
    fn three_close_moves_after_the_first_are_thrashing() {
        let table = Thrashing::new();
        assert_eq!(moves(&table, &[0, 500, 1000, 1500, 2000]), [1500]);
        assert_eq!(table.worst(us(2000)).len(), 1);
        assert_eq!(table.worst(us(2000))[0].moves, 5);
        // Not while they are further apart, and not if any is.
        let table = Thrashing::new();
        assert_eq!(moves(&table, &[0, 501, 1002, 1503, 2004]), []);
        let table = Thrashing::new();
        assert_eq!(moves(&table, &[0, 300, 600, 2000, 2300, 2600, 4000, 4300]), []);
    }

    #[test]
    fn a_page_that_is_wanted_later_is_one_like_any_other() {
        let table = Thrashing::new();
        moves(&table, &[0, 1, 2, 3]);
        assert!(table.is_to_stay(PAGE, us(503)) && !table.is_to_stay(PAGE, us(504)));
        table.stayed(PAGE, us(504));
        assert!(!table.is_to_stay(PAGE, us(504)));
        moves(&table, &[600]);
        assert!(table.worst(us(600)).is_empty());
    }

    #[test]
    fn what_is_mapped_remotely_is_so_for_a_while() {
        let table = Thrashing::new();
        moves(&table, &[0, 1, 2, 3]);
        table.stayed(PAGE, us(100));
        // Not longer for being mapped again, nor shorter for having been taken.
        table.stayed(PAGE, us(100_000));
        moves(&table, &[100_000]);
        assert!(table.is_to_stay(PAGE, us(150_099)) && !table.is_to_stay(PAGE, us(150_100)));
    }

    #[test]
    fn pages_that_come_by_themselves_do_not_thrash() {
        let table = Thrashing::new();
        for at in 0..10 {
            assert!(!table.moved(PAGE, NodeId(0), false, us(at)));
        }
        assert_eq!(table.stays_for(PAGE, us(20), LAPSE, us(10)), Some(us(19)));
    }

    #[test]
    fn a_second_of_quiet_is_forgiveness() {
        let table = Thrashing::new();
        assert_eq!(moves(&table, &[0, 1, 2, 3]), [3]);
        assert!(table.worst(us(1_000_003)).len() == 1 && table.worst(us(1_000_004)).is_empty());
        assert_eq!(moves(&table, &[1_000_004, 1_000_005, 1_000_006, 1_000_007]), [1_000_007]);
    }

    #[test]
    fn it_stays_for_a_while_when_it_is_thrashing_or_so_configured() {
        let table = Thrashing::new();
        let stays_for = |page, least, now| table.stays_for(page, least, LAPSE, now);
        moves(&table, &[0]);
        assert_eq!(stays_for(PAGE, Duration::ZERO, us(0)), None);
        assert_eq!(stays_for(PAGE, us(70), us(30)), Some(us(40)));
        assert_eq!(stays_for(PageNr(1), us(70), us(30)), None);
        moves(&table, &[100, 200, 300]);
        assert_eq!(stays_for(PAGE, Duration::ZERO, us(300)), Some(LAPSE));
        assert_eq!(stays_for(PAGE, us(900), us(300)), Some(us(900)));
        assert_eq!(stays_for(PAGE, Duration::ZERO, us(800)), None);
        let not_held_up = table.stays_for(PAGE, Duration::ZERO, Duration::ZERO, us(300));
        assert_eq!(not_held_up, None);
    }

    #[test]
    fn the_quietest_makes_way() {
        let table = Thrashing::new();
        let page = |n: usize| PageNr((n * NR_SETS) as u64);
        for n in 0..NR_WAYS {
            table.moved(page(n), NodeId(0), true, us(n as u64));
        }
        table.moved(page(0), NodeId(0), true, us(10));
        table.moved(page(NR_WAYS), NodeId(0), true, us(11));
        let knows = |n| table.stays_for(page(n), RESET, LAPSE, us(11)).is_some();
        assert!(!knows(1) && [0, 2, 3, 4].into_iter().all(knows));
    }
}
