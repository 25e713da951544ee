//! The trace's ring under every interleaving of its two threads: each of its loads and stores is a
//! step, and every order of the steps is tried. (What this does not try is reordering by the
//! processor, for which the ring's head comment argues.)

mod atomic {
    use std::sync::atomic;
    pub(crate) use std::sync::atomic::Ordering;

    /// An atomic each of whose accesses waits for its turn.
    #[derive(Debug)]
    pub(crate) struct AtomicU64(atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(atomic::AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            crate::schedule::step();
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            crate::schedule::step();
            self.0.store(value, order);
        }
    }
}

#[path = "../src/trace/ring.rs"]
mod ring;

/// Two threads, of which one runs at a time, from step to step, in an order that is given.
mod schedule {
    use std::cell::Cell;
    use std::sync::{Condvar, Mutex, MutexGuard};

    #[derive(Default)]
    struct State {
        /// Who is next at each step at which both could be.
        order: Vec<usize>,
        /// How many of these have been.
        done: usize,
        /// Threads that wait for a step, or have ended.
        waits: [bool; 2],
        ended: [bool; 2],
        chosen: Option<usize>,
    }

    static STATE: Mutex<State> = Mutex::new(State {
        order: Vec::new(),
        done: 0,
        waits: [false; 2],
        ended: [false; 2],
        chosen: None,
    });
    static CHANGED: Condvar = Condvar::new();

    thread_local! {
        static ME: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Once both wait, or one has ended, chooses who goes on.
    fn choose(state: &mut MutexGuard<'_, State>) {
        let ready = [0, 1].map(|i| state.waits[i] || state.ended[i]);
        if ready != [true; 2] || state.chosen.is_some() {
            return;
        }
        state.chosen = match state.ended {
            [true, true] => None,
            [true, false] => Some(1),
            [false, true] => Some(0),
            [false, false] => {
                let at = state.done;
                if at == state.order.len() {
                    state.order.push(0);
                }
                state.done += 1;
                Some(state.order[at])
            }
        };
        CHANGED.notify_all();
    }

    /// Waits until it is the calling thread's turn, if it takes turns.
    pub(crate) fn step() {
        let Some(me) = ME.get() else { return };
        let mut state = STATE.lock().unwrap();
        state.waits[me] = true;
        choose(&mut state);
        while state.chosen != Some(me) {
            state = CHANGED.wait(state).unwrap();
        }
        state.chosen = None;
        state.waits[me] = false;
    }

    /// Takes turns as thread `me` (0 or 1) while `body` runs.
    pub(crate) fn as_thread(me: usize, body: impl FnOnce()) {
        ME.set(Some(me));
        body();
        ME.set(None);
        let mut state = STATE.lock().unwrap();
        state.ended[me] = true;
        choose(&mut state);
    }

    /// Has `run` run two threads in every order there is; says in how many.
    pub(crate) fn in_every_order(run: impl Fn()) -> u64 {
        let mut order = Vec::new();
        for nr in 1.. {
            *STATE.lock().unwrap() = State { order, ..State::default() };
            run();
            order = std::mem::take(&mut STATE.lock().unwrap().order);
            // The next order: the last choice that can still be the other one.
            while order.last() == Some(&1) {
                order.pop();
            }
            match order.last_mut() {
                Some(last) => *last = 1,
                None => return nr,
            }
        }
        unreachable!()
    }
}

use ring::Ring;
use schedule::{as_thread, in_every_order};

/// One more than the ring holds.
const NR_RECORDS: u64 = 2;

#[test]
fn records_come_out_whole_in_order_or_are_counted_as_dropped() {
    let nr_orders = in_every_order(|| {
        let ring = Ring::<1>::new(1);
        let mut seen = Vec::new();
        std::thread::scope(|s| {
            let (ring, seen) = (&ring, &mut seen);
            let produce = || (1..=NR_RECORDS).for_each(|n| ring.push(&[n]));
            let producer = s.spawn(move || as_thread(0, produce));
            as_thread(1, || seen.extend((0..2).filter_map(|_| ring.pop())));
            producer.join().unwrap();
        });
        seen.extend(std::iter::from_fn(|| ring.pop()));
        assert!(seen.iter().all(|[n]| (1..=NR_RECORDS).contains(n)), "torn: {seen:?}");
        assert!(seen.is_sorted_by(|a, b| a < b) && !seen.is_empty(), "{seen:?}");
        assert_eq!(seen.len() as u64 + ring.dropped(), NR_RECORDS, "{seen:?}");
    });
    assert!(nr_orders > 500, "{nr_orders} orders are not all");
}
