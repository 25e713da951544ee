//! The event trace: what the manager does, as a file that Perfetto opens.
//!
//! Each thread that enters the manager has a ring of its own ([`ring`]), which it takes from a pool
//! when it first has something to record; from then on recording is a few stores, and never waits,
//! allocates or calls the system. A thread that lives while a trace is written takes the records
//! out and writes them ([`chrome`]). What does not fit into a ring is dropped and counted.

mod chrome;
mod record;
mod ring;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gmm_core::{NodeId, Observer, Space, TraceEvent};
use gmm_cpu::BlockedSignals;

use crate::{Error, Result};
use chrome::Chrome;
use record::{Record, Span};

type Ring = ring::Ring<8>;

/// How many threads can be traced at a time.
const NR_RINGS: usize = 64;
/// With these a thread can have recorded 2,000 faults since the last look: 8 MiB for all.
const RING_RECORDS: usize = 2048;
/// How often the rings are emptied.
const DRAIN_EVERY: Duration = Duration::from_millis(10);
/// Every so many times it is seen to that rings of threads that have ended are free again.
const TIDY_EVERY: u64 = 10;

/// The rings, and who has which.
pub(crate) struct Recorder {
    /// Tells recorders apart: a thread remembers one ring.
    id: u64,
    rings: Box<[Ring]>,
    /// The thread that has the ring, 0 for none.
    owners: Box<[AtomicU32]>,
    /// Records of threads that found no ring.
    homeless: AtomicU64,
    /// Whether a trace is being written.
    running: AtomicBool,
}

thread_local! {
    /// This thread's ring: of which recorder, and its number. (No destructor: registering one may
    /// allocate.)
    static MINE: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

impl Recorder {
    /// Makes the rings. Allocates.
    pub(crate) fn new() -> Self {
        Self::with_rings(NR_RINGS, RING_RECORDS)
    }

    fn with_rings(nr_rings: usize, nr_records: usize) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            rings: (0..nr_rings).map(|_| Ring::new(nr_records)).collect(),
            owners: (0..nr_rings).map(|_| AtomicU32::new(0)).collect(),
            homeless: AtomicU64::new(0),
            running: AtomicBool::new(false),
        }
    }

    /// The calling thread's ring.
    fn ring(&self) -> Option<&Ring> {
        let (id, nr) = MINE.get();
        if id == self.id {
            return Some(&self.rings[nr]);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mine = self.owners.iter().position(|owner| owner.load(Ordering::Acquire) == thread);
        let claim = |owner: &AtomicU32| {
            owner.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let nr = mine.or_else(|| self.owners.iter().position(claim))?;
        MINE.set((self.id, nr));
        Some(&self.rings[nr])
    }

    /// Records dropped so far.
    fn dropped(&self) -> u64 {
        let full: u64 = self.rings.iter().map(Ring::dropped).sum();
        full + self.homeless.load(Ordering::Relaxed)
    }
}

impl Observer for Recorder {
    fn record(&self, begun: Duration, ended: Duration, event: TraceEvent) {
        match self.ring() {
            Some(ring) => ring.push(&Span { begun, ended, event }.to_words()),
            None => {
                self.homeless.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A trace that is being written. Dropped, it ends, and the file is complete.
#[must_use = "the trace ends when this is dropped"]
pub struct TraceGuard {
    space: Arc<Space>,
    recorder: Arc<Recorder>,
    path: PathBuf,
    stop: Arc<AtomicBool>,
    drainer: Option<JoinHandle<io::Result<TraceSummary>>>,
    owner: u32,
}

/// What a trace has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Events written.
    pub records: u64,
    /// Events for which there was no room in a thread's ring: none, unless tens of threads fault
    /// at once or the disk is slow.
    pub dropped: u64,
}

impl TraceGuard {
    /// Begins a trace.
    pub(crate) fn begin(space: &Arc<Space>, recorder: &Arc<Recorder>, path: &Path) -> Result<Self> {
        if recorder.running.swap(true, Ordering::AcqRel) {
            return Err(Error::TraceRunning);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let drainer = Self::start(space, recorder, path, &stop).map_err(|cause| {
            recorder.running.store(false, Ordering::Release);
            Error::Trace { path: path.to_owned(), cause }
        })?;
        space.set_observed(true);
        Ok(Self {
            space: Arc::clone(space),
            recorder: Arc::clone(recorder),
            path: path.to_owned(),
            stop,
            drainer: Some(drainer),
            owner: std::process::id(),
        })
    }

    fn start(
        space: &Arc<Space>,
        recorder: &Arc<Recorder>,
        path: &Path,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<JoinHandle<io::Result<TraceSummary>>> {
        let nodes: Vec<(NodeId, String)> =
            space.snapshot().nodes.into_iter().map(|n| (n.node, n.device)).collect();
        let out = BufWriter::new(File::create(path)?);
        let mut drainer = Drainer {
            out: Chrome::begin(out, std::process::id(), &nodes)?,
            recorder: Arc::clone(recorder),
            named: Vec::new(),
            last: Duration::ZERO,
            summary: TraceSummary::default(),
        };
        let before = recorder.dropped();
        // What was under way when the last trace ended.
        recorder.rings.iter().for_each(|ring| while ring.pop().is_some() {});
        let stop = Arc::clone(stop);
        // The thread inherits the mask: an application's signal handler has no business there.
        let _blocked = BlockedSignals::new();
        std::thread::Builder::new()
            .name("gmm-trace".to_owned())
            .spawn(move || drainer.run(&stop).and_then(|()| drainer.end(before)))
    }

    /// Ends the trace; says what it has come to.
    ///
    /// # Errors
    /// [`Error::Trace`] if the file could not be written.
    pub fn finish(mut self) -> Result<TraceSummary> {
        let path = core::mem::take(&mut self.path);
        self.end().map_err(|cause| Error::Trace { path, cause })
    }

    fn end(&mut self) -> io::Result<TraceSummary> {
        // A forked child has no such thread, and the file is its parent's.
        if self.owner != std::process::id() {
            core::mem::forget(self.drainer.take());
            return Ok(TraceSummary::default());
        }
        let Some(drainer) = self.drainer.take() else { return Ok(TraceSummary::default()) };
        self.space.set_observed(false);
        self.stop.store(true, Ordering::Release);
        drainer.thread().unpark();
        let result = drainer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.recorder.running.store(false, Ordering::Release);
        result
    }
}

impl Drop for TraceGuard {
    fn drop(&mut self) {
        // Who wants to know whether it was written asks `finish`.
        let _ = self.end();
    }
}

impl core::fmt::Debug for TraceGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "TraceGuard({:?})", self.path)
    }
}

/// The thread that empties the rings.
struct Drainer {
    recorder: Arc<Recorder>,
    out: Chrome<BufWriter<File>>,
    /// Threads whose names are written.
    named: Vec<u32>,
    /// When the last event ended.
    last: Duration,
    summary: TraceSummary,
}

impl Drainer {
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        for round in 0_u64.. {
            let last_round = stop.load(Ordering::Acquire);
            self.drain(round.is_multiple_of(TIDY_EVERY))?;
            if last_round {
                break;
            }
            std::thread::park_timeout(DRAIN_EVERY);
        }
        Ok(())
    }

    fn drain(&mut self, tidy: bool) -> io::Result<()> {
        let recorder = Arc::clone(&self.recorder);
        for (ring, owner) in recorder.rings.iter().zip(&recorder.owners) {
            let thread = owner.load(Ordering::Acquire);
            if thread == 0 {
                continue;
            }
            // Looked for first: what it recorded before it ended is then taken out below.
            let ended = tidy && !task(thread).exists();
            while let Some(words) = ring.pop() {
                self.write(thread, &words)?;
            }
            if ended {
                self.named.retain(|&named| named != thread);
                owner.store(0, Ordering::Release);
            }
        }
        // What a process that crashes leaves behind.
        if tidy { self.out.flush() } else { Ok(()) }
    }

    fn write(&mut self, thread: u32, words: &Record) -> io::Result<()> {
        let Some(span) = Span::from_words(words) else { return Ok(()) };
        if !self.named.contains(&thread) {
            self.named.push(thread);
            let name = std::fs::read_to_string(task(thread).join("comm")).unwrap_or_default();
            self.out.thread(thread, name.trim_end())?;
        }
        self.last = self.last.max(span.ended);
        self.summary.records += 1;
        self.out.span(thread, &span)
    }

    fn end(mut self, dropped_before: u64) -> io::Result<TraceSummary> {
        self.summary.dropped = self.recorder.dropped() - dropped_before;
        self.out.end(self.summary.dropped, self.last)?;
        Ok(self.summary)
    }
}

/// Where the system describes a thread of this process, while it lives.
fn task(thread: u32) -> PathBuf {
    Path::new("/proc/self/task").join(thread.to_string())
}

/// Where to write the trace that `GMM_TRACE` asks for, if it does: the second one of a process,
/// and later ones, have their number after the name.
pub(crate) fn path_from_environment() -> Option<PathBuf> {
    static NR_TRACES: AtomicU32 = AtomicU32::new(0);
    let mut path = std::env::var_os("GMM_TRACE").filter(|path| !path.is_empty())?;
    match NR_TRACES.fetch_add(1, Ordering::Relaxed) {
        0 => {}
        before => path.push(format!(".{}", before + 1)),
    }
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmm_core::PageNr;

    fn event(n: u64) -> TraceEvent {
        TraceEvent::Unmap { page: PageNr(n), nr_pages: 1 }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let recorder = Recorder::with_rings(1, 4);
        let at = Duration::from_nanos(1);
        (0..10).for_each(|n| recorder.record(at, at, event(n)));
        assert_eq!(recorder.dropped(), 6);
        let popped = core::iter::from_fn(|| recorder.rings[0].pop());
        let events: Vec<_> = popped.filter_map(|words| Span::from_words(&words)).collect();
        let wanted = (0..4).map(|n| Span { begun: at, ended: at, event: event(n) });
        assert_eq!(events, wanted.collect::<Vec<_>>(), "the oldest are kept, whole");
        // Another thread finds no ring, and this one its own again, after another recorder, too.
        std::thread::scope(|s| s.spawn(|| recorder.record(at, at, event(0))).join().unwrap());
        assert_eq!((recorder.dropped(), recorder.homeless.load(Ordering::Relaxed)), (7, 1));
        Recorder::with_rings(1, 4).record(at, at, event(0));
        recorder.record(at, at, event(11));
        assert_eq!((recorder.dropped(), recorder.rings[0].pop().is_some()), (7, true));
    }
}
