//! Serving the faults of a context: threads that take what cores post, ask the manager, and let
//! the cores go on.
//!
//! Who serves which fault is decided here, in the host's own memory: the ring only says what the
//! cores claim. Nothing here allocates, and no lock is held while the manager is at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gmm_core::{Error, PageNr, Resolved, VirtAddr};
use gmm_os::Waits;

use crate::config::MAX_CORES;
use crate::manager::Manager;
use crate::ring::{Posted, Violation, check_access, check_fault, pack_coming};
use crate::shared::Shared;
use crate::{Death, wait};

/// For how long a page is spared after a fault on it was served, should the core not go on.
const GRACE: Duration = Duration::from_millis(100);

/// Which faults were taken.
pub(crate) struct Faults {
    cores: [Core; MAX_CORES as usize],
    /// Whether a thread looks at the bell; the others sleep.
    polled: AtomicBool,
    /// From one fault served to the next.
    waits: Waits,
    start: Instant,
}

struct Core {
    /// The number of the last fault that a thread took.
    taken: AtomicU32,
    /// Its page.
    page: AtomicU64,
    /// Whether the fault before it was on that page, too.
    repeated: AtomicBool,
    /// When it was served, in nanoseconds since `start`; 0 while it is not.
    served_ns: AtomicU64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            cores: core::array::from_fn(|_| Core {
                taken: AtomicU32::new(0),
                page: AtomicU64::new(u64::MAX),
                repeated: AtomicBool::new(false),
                served_ns: AtomicU64::new(0),
            }),
            polled: AtomicBool::new(false),
            waits: Waits::default(),
            start: Instant::now(),
        }
    }
}

/// A fault that this thread has taken.
#[derive(Clone, Copy)]
struct Taken {
    core: usize,
    seq: u32,
    posted: Posted,
    addr: VirtAddr,
    launch: u32,
}

impl Shared {
    /// Serves faults until the context is dead: the body of a fault-handling thread.
    pub(crate) fn serve_faults(self: &Arc<Self>, manager: &dyn Manager) {
        let mut is_counted = false;
        loop {
            let heard = self.ring.fault_bell.load(Ordering::SeqCst);
            if self.is_dead() {
                return;
            }
            // Who posts from here on wakes a thread; what was posted before, this one sees.
            if core::mem::take(&mut is_counted) {
                self.ring.fault_pollers.fetch_sub(1, Ordering::SeqCst);
            }
            match self.take_fault() {
                Ok(Some(taken)) => is_counted = self.serve(taken, manager),
                Ok(None) if self.look_ahead(manager) => {}
                Ok(None) => self.await_fault(heard),
                Err(violation) => {
                    self.doom_for(violation);
                    self.await_fault(heard);
                }
            }
        }
    }

    /// Brings pages that a core is about to fault on, if some are known. A core that does so meanwhile
    /// need wake no thread: this one looks for faults when it is done.
    fn look_ahead(&self, manager: &dyn Manager) -> bool {
        let coming = &self.ring.coming;
        let announce = |range| coming.store(pack_coming(range), Ordering::SeqCst);
        let brought = manager.look_ahead(&announce);
        if brought {
            coming.store(0, Ordering::SeqCst);
        }
        brought
    }

    /// Takes a fault that no other thread has taken.
    fn take_fault(&self) -> Result<Option<Taken>, Violation> {
        if self.is_doomed() {
            return Ok(None);
        }
        let mut mine = None;
        for core in 0..self.device.config.cores as usize {
            let Some(last) = self.find_untaken(core)? else { continue };
            if mine.is_some() {
                // Another thread may be asleep while this one is busy.
                wait::wake(&self.ring.fault_bell, 1);
                break;
            }
            mine = self.take(core, last)?;
        }
        Ok(mine)
    }

    /// Whether `core` has posted a fault that is not taken; says which was the last that was.
    fn find_untaken(&self, core: usize) -> Result<Option<u32>, Violation> {
        let taken = &self.faults.cores[core].taken;
        loop {
            let last = taken.load(Ordering::SeqCst);
            let requested = self.ring.faults[core].requested.load(Ordering::SeqCst);
            // Unless another thread took one between the two loads, they belong together.
            if taken.load(Ordering::SeqCst) == last {
                return Ok(check_fault(core, requested, last)?.then_some(last));
            }
        }
    }

    fn take(&self, core: usize, last: u32) -> Result<Option<Taken>, Violation> {
        let (state, slot) = (&self.faults.cores[core], &self.ring.faults[core]);
        let seq = last.wrapping_add(1);
        let claim = state.taken.compare_exchange(last, seq, Ordering::SeqCst, Ordering::SeqCst);
        if claim.is_err() {
            return Ok(None);
        }
        let addr = VirtAddr(slot.address.load(Ordering::Relaxed));
        let launch = slot.launch.load(Ordering::Relaxed);
        let posted = check_access(core, slot.access.load(Ordering::Relaxed))?;
        state.served_ns.store(0, Ordering::SeqCst);
        let before = state.page.swap(addr.page().0, Ordering::SeqCst);
        state.repeated.store(before == addr.page().0, Ordering::SeqCst);
        Ok(Some(Taken { core, seq, posted, addr, launch }))
    }

    /// Says whether the core was let go on, and so this thread counts as a poller.
    fn serve(&self, taken: Taken, manager: &dyn Manager) -> bool {
        wait::delay(self.device.config.message_latency);
        let addr = taken.addr;
        let Some(kernel) = self.launches.kernel(taken.launch) else {
            let Taken { core, launch: slot, .. } = taken;
            self.doom_for(Violation::UnknownLaunch { core, slot });
            return false;
        };
        let access = match taken.posted {
            Posted::Signal(signal) => {
                self.doom(Death::Crash { kernel, signal, addr });
                return false;
            }
            Posted::Fault(access) => access,
        };
        #[cfg(test)]
        if manager.reports_refusals() {
            let refused =
                !self.device.config.replayable_faults || manager.fault(addr, access).is_err();
            self.ring.faults[taken.core].refused.store(refused.into(), Ordering::SeqCst);
            return self.let_go_on(taken);
        }
        if !self.device.config.replayable_faults {
            self.doom(Death::NotHeld { kernel, addr, access });
            return false;
        }
        match manager.fault(addr, access) {
            Ok(resolved) => {
                let counter = match resolved {
                    Resolved::Entered => Some(&self.counters.faults),
                    Resolved::AlreadyUsable => Some(&self.counters.coalesced),
                    // The core faults again; one that can be served is counted then.
                    Resolved::Again => None,
                };
                if let Some(counter) = counter {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                // The launch can't end, and free the name, before its core goes on.
                drop(kernel);
                return self.let_go_on(taken);
            }
            // It failed because the context is ending.
            Err(_) if self.is_doomed() => {}
            Err(cause) if is_wild(&cause) => {
                self.doom(Death::WildAccess { kernel, addr, access, cause });
            }
            Err(cause) => self.doom(Death::FaultFailed { kernel, addr, access, cause }),
        }
        false
    }

    /// The core's next fault may come before this thread looks: it need wake no other.
    fn let_go_on(&self, taken: Taken) -> bool {
        self.ring.fault_pollers.fetch_add(1, Ordering::SeqCst);
        wait::delay(self.device.config.message_latency);
        let served = self.faults.start.elapsed().as_nanos() as u64;
        self.faults.cores[taken.core].served_ns.store(served.max(1), Ordering::SeqCst);
        let done = &self.ring.faults[taken.core].done;
        done.store(taken.seq, Ordering::SeqCst);
        wait::wake(done, 1);
        true
    }

    /// Waits until the bell no longer says `heard`: one thread looks for a while, then sleeps as
    /// the others do.
    fn await_fault(&self, heard: u32) {
        let (bell, pollers) = (&self.ring.fault_bell, &self.ring.fault_pollers);
        let rung = || bell.load(Ordering::SeqCst) != heard;
        let begun = Instant::now();
        let is_poller = !self.faults.polled.swap(true, Ordering::SeqCst);
        if is_poller {
            pollers.fetch_add(1, Ordering::SeqCst);
            self.faults.waits.look(self.device.config.spin, rung);
            pollers.fetch_sub(1, Ordering::SeqCst);
            self.faults.polled.store(false, Ordering::SeqCst);
        }
        if !rung() {
            wait::rest_while(bell, heard);
        }
        if is_poller {
            self.faults.waits.note(begun.elapsed());
        }
    }

    /// Whether a core has faulted on `page` twice in a row: then it is not enough to say that the
    /// page is mapped.
    pub(crate) fn is_repeated(&self, page: PageNr) -> bool {
        let mut cores = self.faults.cores.iter().take(self.device.config.cores as usize);
        cores.any(|state| {
            state.page.load(Ordering::SeqCst) == page.0 && state.repeated.load(Ordering::SeqCst)
        })
    }

    /// Whether a core that faulted on `page` has not gone on yet.
    pub(crate) fn is_awaited(&self, page: PageNr) -> bool {
        let cores = self.faults.cores.iter().zip(&self.ring.faults);
        cores.take(self.device.config.cores as usize).any(|(state, slot)| {
            if state.page.load(Ordering::SeqCst) != page.0
                || slot.resumed.load(Ordering::SeqCst) == state.taken.load(Ordering::SeqCst)
            {
                return false;
            }
            let served = Duration::from_nanos(state.served_ns.load(Ordering::SeqCst));
            served.is_zero() || self.faults.start.elapsed().saturating_sub(served) < GRACE
        })
    }
}

/// Whether it is the kernel's fault.
fn is_wild(error: &Error) -> bool {
    matches!(
        error,
        Error::NotMapped { .. } | Error::Protection { .. } | Error::RegionRefused { .. }
    )
}
