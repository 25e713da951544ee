//! Launches: what the host knows of those that the worker has, and the handle to wait for one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::hold::Held;
use crate::ring::{NR_ARGS, NR_LAUNCHES, Ring, Violation, check_completion};
use crate::shared::Shared;
use crate::{Error, wait};

/// The longest that a thread sleeps without a look around.
const LONG: Duration = Duration::from_secs(60);

/// A launch in the worker's hands, or done with.
pub(crate) struct Record {
    kernel: Arc<str>,
    slot: usize,
    seq: u32,
    /// `PENDING` until the launch has ended *and* holds nothing any more.
    outcome: AtomicU32,
    /// How many threads sleep, or are about to, until it has ended: on `outcome`, or on
    /// `completed` in the ring.
    sleepers: AtomicU32,
}

const PENDING: u32 = 0;
const COMPLETED: u32 = 1;
const FAILED: u32 = 2;

/// What a launch shall do.
pub(crate) struct Order {
    pub(crate) kernel: u32,
    pub(crate) name: Arc<str>,
    pub(crate) grid: u64,
    pub(crate) args: [u64; NR_ARGS],
    pub(crate) held: Option<Held>,
}

/// The launch slots, as the host sees them. Fault-handling threads take the lock: who holds it
/// allocates nothing.
pub(crate) struct Launches {
    slots: Mutex<[Slot; NR_LAUNCHES]>,
}

#[derive(Default)]
struct Slot {
    /// The number of the last launch submitted here.
    seq: u32,
    running: Option<Running>,
}

struct Running {
    record: Arc<Record>,
    /// Kept until the launch has ended.
    held: Option<Held>,
}

impl Running {
    /// The launch has ended, and is in no slot any more. What it held is let go before anyone is
    /// told: who has waited for it may unmap that. Called without the lock.
    fn end(self, outcome: u32, ring: &Ring) {
        let Self { record, held } = self;
        drop(held);
        record.outcome.store(outcome, Ordering::SeqCst);
        if record.sleepers.load(Ordering::SeqCst) > 0 {
            wait::wake(&record.outcome, i32::MAX as u32);
            // The worker, which does that too, may have died before.
            wait::wake(&ring.launches[record.slot].completed, i32::MAX as u32);
        }
    }
}

impl Default for Launches {
    fn default() -> Self {
        Self { slots: Mutex::new(core::array::from_fn(|_| Slot::default())) }
    }
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, [Slot; NR_LAUNCHES]> {
        self.slots.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The name of the kernel that runs in a slot.
    pub(crate) fn kernel(&self, slot: u32) -> Option<Arc<str>> {
        let slots = self.lock();
        Some(slots.get(slot as usize)?.running.as_ref()?.record.kernel.clone())
    }

    fn is_full(&self) -> bool {
        self.lock().iter().all(|slot| slot.running.is_some())
    }

    /// Frees the slots of completed launches, and what they held. A violation in one slot keeps
    /// none of the others.
    pub(crate) fn reap(&self, ring: &Ring) -> Result<(), Violation> {
        let mut ended: [Option<Running>; NR_LAUNCHES] = [const { None }; NR_LAUNCHES];
        let mut result = Ok(());
        let mut slots = self.lock();
        for (nr, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.running.is_some()) {
            let completed = ring.launches[nr].completed.load(Ordering::SeqCst);
            match check_completion(nr, slot.seq, completed) {
                Ok(true) => ended[nr] = slot.running.take(),
                Ok(false) => {}
                Err(violation) => result = Err(violation),
            }
        }
        drop(slots);
        ended.into_iter().flatten().for_each(|running| running.end(COMPLETED, ring));
        result
    }

    /// The context is dead: what has not completed has failed. Wakes all who wait.
    pub(crate) fn fail_all(&self, ring: &Ring) {
        let mut ended: [Option<(Running, u32)>; NR_LAUNCHES] = [const { None }; NR_LAUNCHES];
        let mut slots = self.lock();
        for (nr, slot) in slots.iter_mut().enumerate() {
            let Some(running) = slot.running.take() else { continue };
            let completed = ring.launches[nr].completed.load(Ordering::SeqCst);
            let outcome = match check_completion(nr, slot.seq, completed) {
                Ok(true) => COMPLETED,
                _ => FAILED,
            };
            ended[nr] = Some((running, outcome));
        }
        drop(slots);
        for (running, outcome) in ended.into_iter().flatten() {
            let slot = running.record.slot;
            running.end(outcome, ring);
            // For those who are about to sleep on it.
            wait::bump(&ring.launches[slot].completed);
        }
    }
}

impl Shared {
    /// Gives a launch to the worker, to be started after the launch `after`. Waits for a free
    /// slot if all are in use.
    pub(crate) fn submit(
        &self,
        order: Order,
        after: Option<&Record>,
        notify: bool,
    ) -> Result<Arc<Record>, Error> {
        let mut order = Some(order);
        loop {
            if let Some(record) = self.try_submit(&mut order, after, notify)? {
                return Ok(record);
            }
            self.await_free_slot();
        }
    }

    /// All slots are in use: waits until a launch, whichever, has ended.
    fn await_free_slot(&self) {
        let ring = &*self.ring;
        // Before the look: the worker completes a launch, then sees whether someone waits.
        ring.end_waiters.fetch_add(1, Ordering::SeqCst);
        let heard = ring.end_bell.load(Ordering::SeqCst);
        self.reap();
        if self.launches.is_full() && !self.is_dead() {
            // Bounded, since the worker can unsay that someone waits.
            wait::sleep_while(&ring.end_bell, heard, Duration::from_secs(1));
        }
        ring.end_waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// `None` if no slot is free: then the order is there still.
    fn try_submit(
        &self,
        order: &mut Option<Order>,
        after: Option<&Record>,
        notify: bool,
    ) -> Result<Option<Arc<Record>>, Error> {
        // Allocated before the lock is taken; where it goes is known after.
        let mut record = Arc::new(Record {
            kernel: order.as_ref().map(|order| order.name.clone()).unwrap_or_default(),
            slot: 0,
            seq: 0,
            outcome: AtomicU32::new(PENDING),
            sleepers: AtomicU32::new(0),
        });
        let mut slots = self.launches.lock();
        // Under the lock: after `fail_all` nothing may be submitted.
        if self.is_dead() {
            drop(slots);
            return Err(Error::ContextDead(self.death()));
        }
        let Some(nr) = slots.iter().position(|slot| slot.running.is_none()) else {
            return Ok(None);
        };
        let order = order.take().expect("an order is submitted once");
        let slot = &mut slots[nr];
        slot.seq = slot.seq.wrapping_add(1);
        let place = Arc::get_mut(&mut record).expect("a record that no one else has yet");
        (place.slot, place.seq) = (nr, slot.seq);
        let posted = &self.ring.launches[nr];
        posted.kernel.store(order.kernel, Ordering::Relaxed);
        posted.grid.store(order.grid, Ordering::Relaxed);
        posted.notify.store(notify.into(), Ordering::Relaxed);
        let (after_slot, after_seq) = after.map_or((NR_LAUNCHES, 0), |a| (a.slot, a.seq));
        posted.after_slot.store(after_slot as u32, Ordering::Relaxed);
        posted.after_seq.store(after_seq, Ordering::Relaxed);
        for (place, arg) in posted.args.iter().zip(order.args) {
            place.store(arg, Ordering::Relaxed);
        }
        posted.submitted.store(slot.seq, Ordering::SeqCst);
        slot.running = Some(Running { record: record.clone(), held: order.held });
        drop(slots);
        self.counters.launches.fetch_add(1, Ordering::Relaxed);
        self.ring.work_bell.fetch_add(1, Ordering::SeqCst);
        wait::wake(&self.ring.work_bell, 1);
        Ok(Some(record))
    }

    pub(crate) fn reap(&self) {
        if let Err(violation) = self.launches.reap(&self.ring)
            // The words of a dead context mean nothing.
            && !self.is_dead()
        {
            self.doom_for(violation);
        }
    }

    /// Waits for the end of a launch; whether it has ended.
    fn await_end(&self, record: &Record, end: Instant) -> Result<bool, Error> {
        let word = &self.ring.launches[record.slot].completed;
        let running = record.seq.wrapping_sub(1);
        let mut looked: Option<Instant> = None;
        loop {
            // Read before the outcome: what changes it later changes this too.
            let completed = word.load(Ordering::SeqCst);
            match record.outcome.load(Ordering::SeqCst) {
                PENDING => {}
                COMPLETED => {
                    if let Some(begun) = looked {
                        self.launch_waits.note(begun.elapsed());
                    }
                    return Ok(true);
                }
                _ => {
                    let kernel = record.kernel.clone();
                    return Err(Error::Launch { kernel, death: self.death() });
                }
            }
            if completed != running && !self.reap_for(record) {
                continue;
            }
            if completed == running && looked.is_none() {
                looked = Some(Instant::now());
                let ended = || word.load(Ordering::SeqCst) != completed;
                self.launch_waits.look(self.device.config.spin, ended);
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            record.sleepers.fetch_add(1, Ordering::SeqCst);
            if completed == running {
                wait::sleep_while(word, completed, left.min(LONG));
            } else {
                // Another thread is at its end; or the worker broke the protocol, and is ended.
                wait::sleep_while(&record.outcome, PENDING, left.min(LONG));
            }
            record.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether the launch has not ended yet, after a reap.
    fn reap_for(&self, record: &Record) -> bool {
        self.reap();
        record.outcome.load(Ordering::SeqCst) == PENDING
    }
}

/// A launch that was given to the XPU. It goes on if this is dropped.
pub struct Launch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) record: Arc<Record>,
}

impl Launch {
    /// Waits until it has completed. Then what it wrote is there for every processor to read, and
    /// it holds nothing any more.
    ///
    /// # Errors
    /// [`Error::Launch`] if the context ended before.
    pub fn wait(&self) -> Result<(), Error> {
        while !self.wait_timeout(Duration::MAX)? {}
        Ok(())
    }

    /// As [`Launch::wait`], at most `timeout`; whether it has completed.
    ///
    /// # Errors
    /// As [`Launch::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, Error> {
        self.shared.await_end(&self.record, wait::deadline(timeout))
    }

    /// Whether both are handles to one launch.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.record, &other.record)
    }

    /// The kernel's name.
    pub fn kernel(&self) -> &str {
        &self.record.kernel
    }
}

impl core::fmt::Debug for Launch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Launch({:?})", self.record.kernel)
    }
}
