//! The threads that help with prefetches and copies: at most four, made when they are first needed,
//! asleep while there is nothing to do.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gmm_core::{Memcpy, Prefetch, Space};

/// The most threads that work on one prefetch or copy (as the paper).
const MAX_WORKERS: usize = 4;

/// What several threads can do together, each a part of it.
pub(crate) trait Work: Send + Sync {
    /// Does parts until there is none left to begin.
    fn work(&self, space: &Space);

    /// Has everyone stop soon.
    fn cancel(&self);
}

impl Work for Prefetch {
    fn work(&self, space: &Space) {
        space.work_on(self);
    }

    fn cancel(&self) {
        Self::cancel(self);
    }
}

impl Work for Memcpy {
    fn work(&self, space: &Space) {
        space.copy_on(self);
    }

    /// Who asked for it waits for it.
    fn cancel(&self) {}
}

/// Work that was given to the workers.
struct Job {
    nr: u64,
    work: Arc<dyn Work>,
    /// How many threads are at it.
    running: usize,
}

struct Queue {
    /// Until all parts have been begun and ended.
    jobs: VecDeque<Job>,
    nr_jobs: u64,
    nr_threads: usize,
    idle_threads: usize,
    stop: bool,
}

struct Shared {
    space: Arc<Space>,
    queue: Mutex<Queue>,
    /// There is a job, or `stop`.
    work: Condvar,
    /// A job has ended.
    ended: Condvar,
}

/// The threads. Dropping it ends them.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How many threads work on one job at most.
    limit: usize,
    cpus: usize,
    owner: u32,
}

/// A job, by number.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

impl Workers {
    pub(crate) fn new(space: &Arc<Space>) -> Self {
        let queue = Queue {
            jobs: VecDeque::new(),
            nr_jobs: 0,
            nr_threads: 0,
            idle_threads: 0,
            stop: false,
        };
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            shared: Arc::new(Shared {
                space: Arc::clone(space),
                queue: Mutex::new(queue),
                work: Condvar::new(),
                ended: Condvar::new(),
            }),
            threads: Mutex::default(),
            limit: cpus.min(MAX_WORKERS),
            cpus,
            owner: std::process::id(),
        }
    }

    /// Does the work on this thread and others, and returns when all of it is done. The caller has
    /// its signals blocked, and new threads inherit that.
    pub(crate) fn run(&self, work: Arc<dyn Work>) {
        let ticket = self.give(work, self.limit - 1);
        self.shared.work_on(ticket);
        self.wait(ticket);
    }

    /// Has the work done by other threads; by this one if none can be had. They leave the caller a
    /// processor, if there are several. The caller has its signals blocked, and new threads inherit
    /// that.
    pub(crate) fn start(&self, work: Arc<dyn Work>) -> Ticket {
        let ticket = self.give(work, self.limit.min(self.cpus - 1).max(1));
        if self.shared.lock().nr_threads == 0 {
            self.shared.work_on(ticket);
        }
        ticket
    }

    fn give(&self, work: Arc<dyn Work>, nr_helpers: usize) -> Ticket {
        let mut queue = self.shared.lock();
        let nr = queue.nr_jobs;
        queue.nr_jobs += 1;
        queue.jobs.push_back(Job { nr, work, running: 0 });
        let nr_new = nr_helpers.saturating_sub(queue.idle_threads);
        let nr_new = nr_new.min(self.limit - queue.nr_threads);
        queue.nr_threads += nr_new;
        drop(queue);
        self.shared.work.notify_all();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..nr_new {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("gmm-worker".to_owned());
            match thread.spawn(move || shared.run()) {
                Ok(thread) => threads.push(thread),
                Err(_) => self.shared.lock().nr_threads -= 1,
            }
        }
        Ticket(nr)
    }

    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        self.shared.lock().find(ticket).is_none()
    }

    pub(crate) fn wait(&self, ticket: Ticket) {
        let mut queue = self.shared.lock();
        while queue.find(ticket).is_some() {
            queue = self.shared.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    fn find(&mut self, ticket: Ticket) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.nr == ticket.0)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // A panic would leave pages locked for ever, or half moved.
        struct Abort;
        impl Drop for Abort {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        let abort = Abort;
        let mut tried = None;
        let mut queue = self.lock();
        while !queue.stop {
            // The oldest job that this thread has not seen the end of.
            let next = queue.jobs.iter().find(|job| Some(job.nr) > tried).map(|job| Ticket(job.nr));
            if let Some(ticket) = next {
                tried = Some(ticket.0);
                drop(queue);
                self.work_on(ticket);
                queue = self.lock();
            } else {
                queue.idle_threads += 1;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle_threads -= 1;
            }
        }
        core::mem::forget(abort);
    }

    /// Does parts of a job until there is none left to begin. The last one to leave ends it.
    fn work_on(&self, ticket: Ticket) {
        let mut queue = self.lock();
        let Some(job) = queue.find(ticket) else { return };
        job.running += 1;
        let work = Arc::clone(&job.work);
        drop(queue);
        work.work(&self.space);
        let mut queue = self.lock();
        let job = queue.find(ticket).expect("a job stays while someone is at it");
        job.running -= 1;
        if job.running == 0 {
            queue.jobs.retain(|job| job.nr != ticket.0);
            drop(queue);
            self.ended.notify_all();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A forked child has no such threads.
        if self.owner != std::process::id() {
            threads.drain(..).for_each(core::mem::forget);
            return;
        }
        let mut queue = self.shared.lock();
        queue.stop = true;
        queue.jobs.iter().for_each(|job| job.work.cancel());
        drop(queue);
        self.shared.work.notify_all();
        for thread in threads.drain(..) {
            // A panic of one has aborted the process.
            let _ = thread.join();
        }
    }
}
