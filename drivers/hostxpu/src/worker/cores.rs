//! Cores: threads that run kernels. A launch is a number of indices; each core takes the next
//! one that is free, of the launch that has the fewest cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::{Worker, fault};
use crate::config::MAX_CORES;
use crate::ring::{LaunchSlot, NR_ARGS, NR_LAUNCHES};
use crate::{wait, wire};

/// Which launches run, and where they are.
pub(super) struct Scheduler {
    state: Mutex<State>,
    runs: [Run; NR_LAUNCHES],
    /// How many launches run.
    nr_active: AtomicU32,
}

/// The launch that runs in a slot. Changed under the scheduler's lock while no core uses it,
/// except for `next`.
struct Run {
    kernel: AtomicUsize,
    grid: AtomicU64,
    /// The next index that no core has taken.
    next: AtomicU64,
    args: [AtomicU64; NR_ARGS],
}

struct State {
    slots: [Slot; NR_LAUNCHES],
    /// Where the search begins, so that launches take turns.
    cursor: usize,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The number of the launch that was started last.
    started: u32,
    active: bool,
    /// Cores that run it.
    users: u32,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self {
            state: Mutex::new(State { slots: [Slot::default(); NR_LAUNCHES], cursor: 0 }),
            runs: core::array::from_fn(|_| Run {
                kernel: AtomicUsize::new(0),
                grid: AtomicU64::new(0),
                next: AtomicU64::new(0),
                args: [const { AtomicU64::new(0) }; NR_ARGS],
            }),
            nr_active: AtomicU32::new(0),
        }
    }
}

impl Scheduler {
    /// Whether kernels run.
    pub(super) fn is_busy(&self) -> bool {
        self.nr_active.load(Ordering::Relaxed) > 0
    }
}

impl Worker {
    pub(super) fn run_core(&self, core: u32) {
        fault::become_core(core);
        let bell = &self.ring.work_bell;
        loop {
            let heard = bell.load(Ordering::SeqCst);
            if let Some(nr) = self.join_launch() {
                self.run_launch(nr);
                self.leave_launch(nr);
            } else {
                self.await_work(heard);
            }
        }
    }

    /// Starts what may start, and joins the launch with the fewest cores. The host wakes one core
    /// for a launch; the one that starts it wakes as many others as it has use for.
    fn join_launch(&self) -> Option<usize> {
        let mut state = self.scheduler.state.lock().unwrap_or_else(|e| e.into_inner());
        let (mut best, mut new_indices) = (None::<usize>, 0_u64);
        state.cursor = (state.cursor + 1) % NR_LAUNCHES;
        for i in 0..NR_LAUNCHES {
            let nr = (state.cursor + i) % NR_LAUNCHES;
            if !state.slots[nr].active {
                let grid = self.start_launch(&mut state.slots[nr], nr);
                new_indices = new_indices.saturating_add(grid);
            }
            let run = &self.scheduler.runs[nr];
            let slot = &state.slots[nr];
            if slot.active
                && run.next.load(Ordering::Relaxed) < run.grid.load(Ordering::Relaxed)
                && best.is_none_or(|best| slot.users < state.slots[best].users)
            {
                best = Some(nr);
            }
        }
        if let Some(best) = best {
            state.slots[best].users += 1;
        }
        drop(state);
        if new_indices > 1 {
            self.ring.work_bell.fetch_add(1, Ordering::SeqCst);
            wait::wake(&self.ring.work_bell, (new_indices - 1).min(MAX_CORES.into()) as u32);
        }
        best
    }

    /// Starts the launch in ring slot `nr`, if there is a new one and its predecessor is done.
    /// Says how many indices it has.
    fn start_launch(&self, slot: &mut Slot, nr: usize) -> u64 {
        let posted = &self.ring.launches[nr];
        let submitted = posted.submitted.load(Ordering::Acquire);
        if submitted == slot.started || !self.predecessor_is_done(posted) {
            return 0;
        }
        let kernels = self.kernels.read().unwrap_or_else(|e| e.into_inner());
        let kernel = kernels.get(posted.kernel.load(Ordering::Relaxed) as usize);
        let Some(&kernel) = kernel else { super::exit(wire::Exit::Protocol) };
        let run = &self.scheduler.runs[nr];
        run.kernel.store(kernel as usize, Ordering::Relaxed);
        let grid = posted.grid.load(Ordering::Relaxed);
        run.grid.store(grid, Ordering::Relaxed);
        run.next.store(0, Ordering::Relaxed);
        for (arg, posted) in run.args.iter().zip(&posted.args) {
            arg.store(posted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        *slot = Slot { started: submitted, active: true, users: 0 };
        self.scheduler.nr_active.fetch_add(1, Ordering::Relaxed);
        grid
    }

    fn predecessor_is_done(&self, posted: &LaunchSlot) -> bool {
        let before = posted.after_slot.load(Ordering::Relaxed) as usize;
        let seq = posted.after_seq.load(Ordering::Relaxed);
        self.ring.launches.get(before).is_none_or(|slot| {
            let completed = slot.completed.load(Ordering::Acquire);
            // The slot may have been used again since.
            completed.wrapping_sub(seq) as i32 >= 0
        })
    }

    /// Runs indices of launch `nr` until none is left, or, if several launches run, one.
    fn run_launch(&self, nr: usize) {
        fault::set_launch(nr);
        let run = &self.scheduler.runs[nr];
        let grid = run.grid.load(Ordering::Relaxed);
        let args: [u64; NR_ARGS] = core::array::from_fn(|i| run.args[i].load(Ordering::Relaxed));
        // SAFETY: `start_launch` stored a kernel's address, and this core joined after that.
        let kernel = unsafe {
            core::mem::transmute::<usize, super::KernelFn>(run.kernel.load(Ordering::Relaxed))
        };
        loop {
            let index = run.next.fetch_add(1, Ordering::Relaxed);
            if index >= grid {
                break;
            }
            // SAFETY: whoever launched it promised that it may be called with these arguments.
            unsafe { kernel(index, grid, args.as_ptr()) };
            if self.scheduler.nr_active.load(Ordering::Relaxed) > 1 {
                break;
            }
        }
    }

    /// Leaves launch `nr`; the last core to do so when no index is left completes it. (A launch
    /// that waited for it is started by this core, which looks for work next.)
    fn leave_launch(&self, nr: usize) {
        let mut state = self.scheduler.state.lock().unwrap_or_else(|e| e.into_inner());
        let slot = &mut state.slots[nr];
        slot.users -= 1;
        let run = &self.scheduler.runs[nr];
        let is_left = run.next.load(Ordering::Relaxed) < run.grid.load(Ordering::Relaxed);
        if slot.users > 0 || is_left {
            return;
        }
        slot.active = false;
        self.scheduler.nr_active.fetch_sub(1, Ordering::Relaxed);
        let posted = &self.ring.launches[nr];
        let notify = posted.notify.load(Ordering::Relaxed) != 0;
        posted.completed.store(slot.started, Ordering::SeqCst);
        drop(state);
        wait::wake(&posted.completed, i32::MAX as u32);
        if self.ring.end_waiters.load(Ordering::SeqCst) > 0 {
            wait::bump(&self.ring.end_bell);
        }
        if notify {
            // SAFETY: the socket, open as long as the process lives.
            let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(0) };
            loop {
                match wire::send(socket, wire::COMPLETED, nr as u32, &[], &[]) {
                    Ok(()) => break,
                    Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => std::thread::yield_now(),
                    // The host would wait for it.
                    Err(_) => super::exit(wire::Exit::Disconnected),
                }
            }
        }
    }
}
