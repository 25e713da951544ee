//! The copy engines: batches of copies, of frames and parts of frames, that complete later.
//!
//! A fixed number of copies runs at once (the number of engines). Each engine is a thread, but a
//! thread that waits for its own batch takes an engine's place if one is idle, so that the copy
//! of a single page needs no other thread to wake up. Nothing is allocated after the start. If
//! no batch slot is free, `submit` does the batch itself before it returns.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gmm_core::driver::{DriverError, Fence};
use gmm_os::copy;

use crate::link::{Direction, Link};
use crate::{Error, HostXpuConfig, thread, wait};

/// How many operations a batch can hold; what is more is done by `submit`.
const BATCH: usize = 16;

/// How many batches can be in flight.
const SLOTS: usize = 128;

/// A checked operation on bytes.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    /// None: zero, a frame and no less.
    pub(crate) from: Option<*const u8>,
    pub(crate) to: *mut u8,
    pub(crate) len: usize,
    pub(crate) direction: Direction,
}

// SAFETY: the pointers are valid until the transfer is done (the maker's promise), in any thread.
unsafe impl Send for Transfer {}

#[derive(Clone, Copy)]
struct Slot {
    /// Counts the batches that used this slot; part of the fence.
    generation: u32,
    /// Up to here taken, from here to `len` waiting, `running` of the taken not finished.
    transfers: [Option<Transfer>; BATCH],
    taken: usize,
    len: usize,
    running: usize,
    state: SlotState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    /// Someone will wait for it.
    Awaited,
    /// Who waited gave up; free when done.
    Abandoned,
}

impl Slot {
    fn is_complete(&self) -> bool {
        self.taken == self.len && self.running == 0
    }

    /// Who waits gives up.
    fn abandon(&mut self) -> DriverError {
        self.transfers[self.taken..self.len].fill(None);
        self.len = self.taken;
        if self.running == 0 {
            self.state = SlotState::Free;
            return DriverError::Broken("no copy engine was free in time");
        }
        self.state = SlotState::Abandoned;
        DriverError::Timeout
    }
}

struct Queue {
    slots: [Slot; SLOTS],
    /// Engines at work, be it as a thread of their own or in the place of one.
    busy: u32,
    /// Engine threads asleep.
    idle_threads: u32,
    stop: bool,
}

/// The engines of one device.
pub(crate) struct Engines {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to take, or `stop`.
    work: Condvar,
    /// Something was finished.
    finished: Condvar,
    nr_engines: u32,
    link: Link,
}

impl Engines {
    pub(crate) fn start(config: &HostXpuConfig) -> Result<Self, Error> {
        let slot = Slot {
            generation: 0,
            transfers: [None; BATCH],
            taken: 0,
            len: 0,
            running: 0,
            state: SlotState::Free,
        };
        let queue = Queue { slots: [slot; SLOTS], busy: 0, idle_threads: 0, stop: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            finished: Condvar::new(),
            nr_engines: config.copy_engines,
            link: Link::new(config),
        });
        let mut engines = Self { shared, threads: Vec::new() };
        for nr in 0..config.copy_engines {
            let shared = engines.shared.clone();
            let body = move || shared.run_engine();
            engines.threads.push(thread::spawn(&format!("gmm-dma-{nr}"), body)?);
        }
        Ok(engines)
    }

    /// Starts the transfers.
    ///
    /// # Safety
    /// Every transfer's pointers must be valid for its length, and the ranges not overlap, until
    /// the fence is complete; what is zeroed must be a frame.
    pub(crate) unsafe fn submit(
        &self,
        transfers: impl ExactSizeIterator<Item = Transfer>,
    ) -> Fence {
        let mut transfers = transfers;
        let mut queue = self.shared.lock();
        let mut fence = Fence(0);
        if let Some(nr) = queue.slots.iter().position(|s| s.state == SlotState::Free) {
            let slot = &mut queue.slots[nr];
            slot.generation = slot.generation.wrapping_add(1).max(1);
            slot.state = SlotState::Awaited;
            (slot.taken, slot.len) = (0, transfers.len().min(BATCH));
            for place in &mut slot.transfers[..slot.len] {
                *place = transfers.next();
            }
            fence = Fence(u64::from(slot.generation) << 32 | nr as u64);
            let wanted = self.shared.wanted_threads(&queue, nr);
            drop(queue);
            (0..wanted).for_each(|_| self.shared.work.notify_one());
        } else {
            drop(queue);
        }
        transfers.for_each(|transfer| self.shared.perform(&transfer));
        fence
    }

    /// Waits until a batch is done, doing what of it no engine has begun. What nobody has begun
    /// by the end of the timeout is never begun; if that is all that was left, the failure is not
    /// a timeout, as nothing happens to the frames any more.
    pub(crate) fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), DriverError> {
        if fence == Fence(0) {
            return Ok(());
        }
        let end = wait::deadline(timeout);
        let mut queue = self.shared.lock();
        let nr = find(&queue, fence).ok_or(DriverError::Broken("no such fence"))?;
        loop {
            if queue.slots[nr].is_complete() {
                queue.slots[nr].state = SlotState::Free;
                return Ok(());
            }
            if let Some(transfer) = self.shared.take(&mut queue, nr) {
                drop(queue);
                self.shared.perform(&transfer);
                queue = self.shared.finish(nr);
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(queue.slots[nr].abandon());
            }
            let waited = self.shared.finished.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Whether a batch is done. One that nobody has begun is given to the engines.
    pub(crate) fn poll(&self, fence: Fence) -> bool {
        let queue = self.shared.lock();
        let Some(nr) = find(&queue, fence) else { return true };
        let slot = &queue.slots[nr];
        if slot.taken < slot.len {
            self.shared.work.notify_one();
        }
        slot.is_complete()
    }
}

fn find(queue: &Queue, fence: Fence) -> Option<usize> {
    let (nr, generation) = ((fence.0 & 0xffff_ffff) as usize, (fence.0 >> 32) as u32);
    let slot = queue.slots.get(nr)?;
    (slot.state == SlotState::Awaited && slot.generation == generation).then_some(nr)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// How many engine threads are to be woken for the batch just put into slot `nr`. Who submits one
    /// while there is no other most likely waits for it at once, in the place of an engine: only
    /// the other engines are of use. Who submits one more is ahead of what it waits for.
    fn wanted_threads(&self, queue: &Queue, nr: usize) -> usize {
        let is_waiting = |other: &Slot| other.state != SlotState::Free && !other.is_complete();
        let mut others = queue.slots.iter().enumerate().filter(|&(other, _)| other != nr);
        let len = queue.slots[nr].len;
        let wanted = match others.any(|(_, other)| is_waiting(other)) {
            true => len,
            false => len.saturating_sub(1).min(self.nr_engines as usize - 1),
        };
        wanted.min(queue.idle_threads as usize)
    }

    /// Takes a transfer of slot `nr`, if there is one and an engine is free.
    fn take(&self, queue: &mut Queue, nr: usize) -> Option<Transfer> {
        let slot = &mut queue.slots[nr];
        if queue.busy == self.nr_engines || slot.taken == slot.len {
            return None;
        }
        slot.taken += 1;
        slot.running += 1;
        queue.busy += 1;
        slot.transfers[slot.taken - 1].take()
    }

    /// Notes that a transfer of slot `nr` is done.
    fn finish(&self, nr: usize) -> MutexGuard<'_, Queue> {
        let mut queue = self.lock();
        queue.busy -= 1;
        let slot = &mut queue.slots[nr];
        slot.running -= 1;
        if slot.is_complete() {
            if slot.state == SlotState::Abandoned {
                slot.state = SlotState::Free;
            }
            // Some wait for this batch, some for an engine to be free; until then whoever has finished
            // a transfer takes the next.
            self.finished.notify_all();
        }
        queue
    }

    fn run_engine(&self) {
        let mut queue = self.lock();
        while !queue.stop {
            let next = (0..SLOTS).find_map(|nr| Some((nr, self.take(&mut queue, nr)?)));
            if let Some((nr, transfer)) = next {
                drop(queue);
                self.perform(&transfer);
                queue = self.finish(nr);
            } else {
                queue.idle_threads += 1;
                queue = self.work.wait(queue).unwrap_or_else(|e| e.into_inner());
                queue.idle_threads -= 1;
            }
        }
    }

    fn perform(&self, transfer: &Transfer) {
        let len = transfer.len;
        let not_before = transfer.from.and_then(|_| self.link.send(transfer.direction, len));
        match transfer.from {
            // SAFETY: what `submit` was promised.
            Some(from) => unsafe { copy::stream_copy(transfer.to, from, len) },
            // SAFETY: as above.
            None => unsafe { copy::stream_zero(transfer.to, len) },
        }
        if let Some(end) = not_before {
            wait::delay_until(end);
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // It aborts the process if it panics.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use gmm_core::PAGE_SIZE;

    use super::*;

    const LEN: usize = PAGE_SIZE as usize;

    /// A frame's worth of ones.
    struct Bytes(Vec<u8>, usize);

    impl Bytes {
        fn new() -> Self {
            let bytes = vec![1; 2 * LEN];
            let at = bytes.as_ptr().align_offset(LEN);
            Self(bytes, at)
        }
        fn zero(&mut self) -> Transfer {
            let to = self.0[self.1..].as_mut_ptr();
            Transfer { from: None, to, len: LEN, direction: Direction::In }
        }
        fn is_zero(&self) -> bool {
            self.0[self.1..self.1 + LEN].iter().all(|&byte| byte == 0)
        }
    }

    fn one_engine() -> Engines {
        Engines::start(&HostXpuConfig::new(4 * PAGE_SIZE).copy_engines(1)).unwrap()
    }

    fn submit(engines: &Engines, transfers: Vec<Transfer>) -> Fence {
        // SAFETY: frames of the test, which live longer than the engines and are not looked at
        // before the transfer has ended.
        unsafe { engines.submit(transfers.into_iter()) }
    }

    #[test]
    fn what_was_not_begun_in_time_never_happens() {
        let (mut never, mut later) = (Bytes::new(), Bytes::new());
        let engines = one_engine();
        // The engine is busy.
        engines.shared.lock().busy = 1;
        let fence = submit(&engines, vec![never.zero()]);
        assert!(matches!(engines.wait(fence, Duration::ZERO), Err(DriverError::Broken(_))));
        engines.shared.lock().busy = 0;
        let fence = submit(&engines, vec![later.zero()]);
        engines.wait(fence, Duration::MAX).unwrap();
        assert!(engines.shared.lock().slots.iter().all(|slot| slot.state == SlotState::Free));
        drop(engines);
        assert!(later.is_zero() && !never.is_zero());
    }

    #[test]
    fn what_was_begun_is_a_timeout_until_it_ends() {
        let mut frames = [Bytes::new(), Bytes::new()];
        let engines = one_engine();
        engines.shared.lock().busy = 1;
        let fence = submit(&engines, frames.iter_mut().map(Bytes::zero).collect());
        // As if another thread had taken the first.
        let nr = find(&engines.shared.lock(), fence).unwrap();
        engines.shared.lock().busy = 0;
        let begun = engines.shared.take(&mut engines.shared.lock(), nr).unwrap();
        assert_eq!(engines.wait(fence, Duration::ZERO), Err(DriverError::Timeout));
        assert!(engines.shared.lock().slots[nr].state == SlotState::Abandoned);
        engines.shared.perform(&begun);
        let queue = engines.shared.finish(nr);
        assert!(queue.slots[nr].state == SlotState::Free);
        drop(queue);
        drop(engines);
        assert!(frames[0].is_zero() && !frames[1].is_zero());
    }
}
