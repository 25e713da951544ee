//! What a program allocated, as an event list: `a ID SIZE STREAM` and `f ID`, the format that
//! `gmm replay` reads and other allocators' recordings come in.
//!
//! A region is an allocation on stream 0; each [`DeviceMemory`](crate::alloc::DeviceMemory) is one on
//! the stream that it was allocated on (its number and 1). (The windows of addresses that device allocators work in
//! hold nothing of their own, and are left out.) Where a part of a region is unmapped, it is freed,
//! and what is left of it is allocated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gmm_core::{RegionInfo, VirtAddr};

use crate::{Error, Result};

/// What device allocators call the regions that are their windows.
pub(crate) const WINDOW_NAME: &str = "device memory";

/// Where a process's recording goes, if there is one.
#[derive(Default)]
pub(crate) struct Recordings {
    running: AtomicBool,
    list: Mutex<Option<List>>,
}

/// A list that is being written.
struct List {
    out: BufWriter<File>,
    /// What is live, by its first byte.
    live: BTreeMap<u64, Block>,
    next_id: u64,
    failed: Option<io::Error>,
}

#[derive(Clone, Copy)]
struct Block {
    id: u64,
    len_bytes: u64,
    stream: u64,
}

/// A recording that is being written: it ends when this is dropped.
pub struct RecordingGuard {
    /// None once it has ended: the next one is not this one's to end.
    recordings: Option<Arc<Recordings>>,
    path: PathBuf,
}

impl Recordings {
    /// Begins a list; `regions` are there already.
    pub(crate) fn begin(
        self: &Arc<Self>,
        path: &Path,
        regions: impl FnOnce() -> Vec<RegionInfo>,
    ) -> Result<RecordingGuard> {
        let mut list = self.lock();
        if list.is_some() {
            return Err(Error::RecordingRunning);
        }
        let unwritable = |cause| Error::Recording { path: path.to_owned(), cause };
        let out = BufWriter::new(File::create(path).map_err(unwritable)?);
        let mut begun = List { out, live: BTreeMap::new(), next_id: 0, failed: None };
        // What begins or ends from here on waits for the lock.
        self.running.store(true, Ordering::SeqCst);
        let regions = regions();
        for region in regions.iter().filter(|region| region.name != WINDOW_NAME) {
            begun.allocated(region.range.start.start(), region.range.len_bytes(), 0);
        }
        *list = Some(begun);
        Ok(RecordingGuard { recordings: Some(Arc::clone(self)), path: path.to_owned() })
    }

    /// Does something that allocates or frees, and notes it: as one step, since another thread may
    /// be given the same addresses right after. Costs a look at a flag where nothing is recorded.
    fn noting<T>(
        &self,
        act: impl FnOnce() -> Result<T>,
        note: impl FnOnce(&mut List, &T),
    ) -> Result<T> {
        if !self.running.load(Ordering::SeqCst) {
            return act();
        }
        let mut list = self.lock();
        let done = act()?;
        if let Some(list) = &mut *list {
            note(list, &done);
        }
        Ok(done)
    }

    /// Allocates; `at` says where.
    pub(crate) fn allocating<T>(
        &self,
        len_bytes: u64,
        stream: u64,
        act: impl FnOnce() -> Result<T>,
        at: impl FnOnce(&T) -> VirtAddr,
    ) -> Result<T> {
        self.noting(act, |list, done| list.allocated(at(done), len_bytes, stream))
    }

    /// Frees what lies in a range.
    pub(crate) fn freeing<T>(
        &self,
        addr: VirtAddr,
        len_bytes: u64,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.noting(act, |list, _| list.freed(addr, len_bytes))
    }

    fn end(&self) -> io::Result<()> {
        let mut list = self.lock();
        self.running.store(false, Ordering::SeqCst);
        match list.take() {
            Some(List { failed: Some(error), .. }) => Err(error),
            Some(mut list) => list.out.flush(),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<List>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn allocated(&mut self, addr: VirtAddr, len_bytes: u64, stream: u64) {
        let id = self.next_id;
        self.next_id += 1;
        self.live.insert(addr.0, Block { id, len_bytes, stream });
        self.write(format_args!("a {id} {len_bytes} {stream}\n"));
    }

    /// What was not seen to be allocated is not seen to be freed.
    fn freed(&mut self, addr: VirtAddr, len_bytes: u64) {
        let (start, end) = (addr.0, addr.0.saturating_add(len_bytes));
        let before = self.live.range(..start).next_back().map(|(&at, _)| at);
        let within = self.live.range(start..end).map(|(&at, _)| at);
        let touched: Vec<u64> = before.into_iter().chain(within).collect();
        for at in touched {
            let block = self.live[&at];
            let block_end = at + block.len_bytes;
            if at < start && block_end <= start {
                continue;
            }
            self.live.remove(&at);
            self.write(format_args!("f {}\n", block.id));
            if at < start {
                self.allocated(VirtAddr(at), start - at, block.stream);
            }
            if end < block_end {
                self.allocated(VirtAddr(end), block_end - end, block.stream);
            }
        }
    }

    fn write(&mut self, line: core::fmt::Arguments<'_>) {
        if self.failed.is_none() {
            self.failed = self.out.write_fmt(line).err();
        }
    }
}

impl RecordingGuard {
    /// Ends the recording, and says whether all of it was written.
    ///
    /// # Errors
    /// [`Error::Recording`].
    pub fn finish(mut self) -> Result<()> {
        let ended = self.end();
        ended.map_err(|cause| Error::Recording { path: self.path.clone(), cause })
    }

    fn end(&mut self) -> io::Result<()> {
        self.recordings.take().map_or(Ok(()), |recordings| recordings.end())
    }
}

impl Drop for RecordingGuard {
    fn drop(&mut self) {
        // Who wants to know whether it was written asks `finish`.
        let _ = self.end();
    }
}

impl core::fmt::Debug for RecordingGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RecordingGuard({:?})", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that come of what `act` does.
    fn lines(name: &str, act: impl FnOnce(&Recordings)) -> Vec<String> {
        let path = std::env::temp_dir().join(format!("gmm-{name}-{}", std::process::id()));
        let recordings = Arc::new(Recordings::default());
        let guard = recordings.begin(&path, Vec::new).unwrap();
        assert!(matches!(recordings.begin(&path, Vec::new), Err(Error::RecordingRunning)));
        act(&recordings);
        guard.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn allocate(recordings: &Recordings, addr: u64, len_bytes: u64, stream: u64) {
        let at = |_: &()| VirtAddr(addr);
        recordings.allocating(len_bytes, stream, || Ok(()), at).unwrap();
    }

    fn free(recordings: &Recordings, addr: u64, len_bytes: u64) {
        recordings.freeing(VirtAddr(addr), len_bytes, || Ok(())).unwrap();
    }

    #[test]
    fn a_part_that_goes_leaves_the_rest() {
        let lines = lines("parts", |r| {
            allocate(r, 1000, 300, 0);
            free(r, 1100, 100);
            free(r, 0, 1150);
            free(r, 1000, 1000);
        });
        assert_eq!(lines, ["a 0 300 0", "f 0", "a 1 100 0", "a 2 100 0", "f 1", "f 2"]);
    }

    #[test]
    fn what_fails_is_not_noted_and_what_is_unknown_is_not_freed() {
        let lines = lines("failures", |r| {
            allocate(r, 64, 64, 7);
            let fails = || Err::<(), _>(Error::RecordingRunning);
            assert!(r.allocating(1, 0, fails, |_| VirtAddr(0)).is_err());
            assert!(r.freeing(VirtAddr(64), 64, fails).is_err());
            free(r, 4096, 64);
            free(r, 128, 64);
            // One of no bytes is one, too.
            allocate(r, 512, 0, 7);
            free(r, 512, 512);
        });
        assert_eq!(lines, ["a 0 64 7", "a 1 0 7", "f 1"]);
    }

    #[test]
    fn after_its_end_nothing_is_written() {
        let recordings = Arc::new(Recordings::default());
        assert!(recordings.begin(Path::new("/no/such/folder/list"), Vec::new).is_err());
        allocate(&recordings, 1, 1, 0);
        assert!(recordings.lock().is_none());
    }
}
