//! Launches: what the host knows of those that the worker has, and the handle to wait for one.

use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::ring::{NR_ARGS, NR_LAUNCHES, Ring, Violation, check_completion};
use crate::shared::Shared;
use crate::{Error, wait};

/// A launch in the worker's hands, or done with.
pub(crate) struct Record {
    kernel: Arc<str>,
    slot: usize,
    seq: u32,
    outcome: AtomicU8,
}

const PENDING: u8 = 0;
const COMPLETED: u8 = 1;
const FAILED: u8 = 2;

/// What a launch shall do.
pub(crate) struct Order {
    pub(crate) kernel: u32,
    pub(crate) name: Arc<str>,
    pub(crate) grid: u64,
    pub(crate) args: [u64; NR_ARGS],
    pub(crate) hold: Option<Box<dyn Any + Send>>,
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
    _hold: Option<Box<dyn Any + Send>>,
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

    /// Frees the slots of completed launches, and what they held.
    pub(crate) fn reap(&self, ring: &Ring) -> Result<(), Violation> {
        let mut reaped: [Option<Running>; NR_LAUNCHES] = [const { None }; NR_LAUNCHES];
        let mut slots = self.lock();
        for (nr, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.running.is_some()) {
            let completed = ring.launches[nr].completed.load(Ordering::SeqCst);
            if check_completion(nr, slot.seq, completed)? {
                reaped[nr] = slot.running.take();
            }
        }
        let running = reaped.iter().flatten();
        running.for_each(|running| running.record.outcome.store(COMPLETED, Ordering::SeqCst));
        // Holds are dropped without the lock.
        drop(slots);
        Ok(())
    }

    /// The context is dead: what has not completed has failed. Wakes all who wait.
    pub(crate) fn fail_all(&self, ring: &Ring) {
        let mut ended: [Option<Running>; NR_LAUNCHES] = [const { None }; NR_LAUNCHES];
        let mut slots = self.lock();
        for (nr, slot) in slots.iter_mut().enumerate() {
            let Some(running) = slot.running.take() else { continue };
            let completed = ring.launches[nr].completed.load(Ordering::SeqCst);
            let outcome = match check_completion(nr, slot.seq, completed) {
                Ok(true) => COMPLETED,
                _ => FAILED,
            };
            running.record.outcome.store(outcome, Ordering::SeqCst);
            wait::bump(&ring.launches[nr].completed);
            ended[nr] = Some(running);
        }
        drop(slots);
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
            let oldest = match self.try_submit(&mut order, after, notify)? {
                Ok(record) => return Ok(record),
                Err(oldest) => oldest,
            };
            // All slots are in use. They are given out in turn, so that one is about to be free.
            self.await_end(&oldest, Instant::now() + Duration::from_millis(100))?;
            self.reap()?;
        }
    }

    /// The inner error is a launch to wait for.
    fn try_submit(
        &self,
        order: &mut Option<Order>,
        after: Option<&Record>,
        notify: bool,
    ) -> Result<Result<Arc<Record>, Arc<Record>>, Error> {
        // Allocated before the lock is taken; where it goes is known after.
        let name = order.as_ref().map(|order| order.name.clone()).unwrap_or_default();
        let mut record =
            Arc::new(Record { kernel: name, slot: 0, seq: 0, outcome: AtomicU8::new(PENDING) });
        let mut slots = self.launches.lock();
        // Under the lock: after `fail_all` nothing may be submitted.
        if self.is_dead() {
            drop(slots);
            return Err(Error::ContextDead(self.death()));
        }
        let Some(nr) = slots.iter().position(|slot| slot.running.is_none()) else {
            let running = slots.iter().filter_map(|slot| slot.running.as_ref()).next();
            let oldest = running.expect("no slot is free").record.clone();
            return Ok(Err(oldest));
        };
        let order = order.take().expect("an order is submitted once");
        let slot = &mut slots[nr];
        slot.seq = slot.seq.wrapping_add(1);
        if let Some(record) = Arc::get_mut(&mut record) {
            (record.slot, record.seq) = (nr, slot.seq);
        }
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
        slot.running = Some(Running { record: record.clone(), _hold: order.hold });
        drop(slots);
        self.counters.launches.fetch_add(1, Ordering::Relaxed);
        self.ring.work_bell.fetch_add(1, Ordering::SeqCst);
        wait::wake(&self.ring.work_bell, 1);
        Ok(Ok(record))
    }

    pub(crate) fn reap(&self) -> Result<(), Error> {
        self.launches.reap(&self.ring).or_else(|violation| {
            // The words of a dead context mean nothing.
            if !self.is_dead() {
                self.doom_for(violation);
            }
            Ok(())
        })
    }

    /// Waits for the end of a launch; whether it has ended.
    fn await_end(&self, record: &Record, end: Instant) -> Result<bool, Error> {
        let word = &self.ring.launches[record.slot].completed;
        let mut looked = false;
        loop {
            let completed = word.load(Ordering::SeqCst);
            match record.outcome.load(Ordering::SeqCst) {
                COMPLETED => return Ok(true),
                FAILED => {
                    return Err(Error::Launch {
                        kernel: record.kernel.clone(),
                        death: self.death(),
                    });
                }
                _ => {}
            }
            match check_completion(record.slot, record.seq, completed) {
                Ok(true) => {
                    self.reap()?;
                    return Ok(true);
                }
                Ok(false) => {}
                // The context's end wakes this thread again.
                Err(violation) => self.doom_for(violation),
            }
            if !core::mem::replace(&mut looked, true) {
                wait::spin(self.device.config.spin, || word.load(Ordering::SeqCst) != completed);
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            wait::sleep_while(word, completed, left.min(Duration::from_secs(60)));
        }
    }
}

/// A launch that was given to the XPU. It goes on if this is dropped.
pub struct Launch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) record: Arc<Record>,
}

impl Launch {
    /// Waits until it has completed. Then what it wrote is there for every processor to read.
    ///
    /// # Errors
    /// [`Error::Launch`] if the context ended before.
    pub fn wait(&self) -> Result<(), Error> {
        while !self.wait_timeout(Duration::from_secs(3600))? {}
        Ok(())
    }

    /// As [`Launch::wait`], at most `timeout`; whether it has completed.
    ///
    /// # Errors
    /// As [`Launch::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, Error> {
        self.shared.await_end(&self.record, Instant::now() + timeout)
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
