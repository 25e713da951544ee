//! Event lists: `a ID SIZE STREAM` allocates, `f ID` frees.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gmm_alloc::{Allocator, BlockId, Error, Result, StreamId};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Allocate { id: u64, size_bytes: u64, stream: StreamId },
    Free { id: u64 },
}

pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) events: Vec<Event>,
}

impl Trace {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let event = |line: &str| {
            let mut words = line.split_whitespace();
            let kind = words.next()?;
            let mut number = || words.next()?.parse::<u64>().ok();
            let id = number()?;
            match kind {
                "a" => {
                    let (size_bytes, stream) = (number()?, StreamId(number()?));
                    Some(Event::Allocate { id, size_bytes, stream })
                }
                "f" => Some(Event::Free { id }),
                _ => None,
            }
        };
        let events = text
            .lines()
            .map(|line| event(line).unwrap_or_else(|| panic!("{path:?}: {line:?} is no event")));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, events: events.collect() }
    }

    /// The largest sum of sizes requested.
    pub(crate) fn peak_live_bytes(&self) -> u64 {
        let (mut live, mut now, mut peak) = (HashMap::new(), 0, 0);
        for event in &self.events {
            match *event {
                Event::Allocate { id, size_bytes, .. } => {
                    live.insert(id, size_bytes);
                    now += size_bytes;
                    peak = peak.max(now);
                }
                Event::Free { id } => now -= live.remove(&id).expect("freed what is live"),
            }
        }
        peak
    }

    /// Runs the trace; what is live at its end stays so.
    pub(crate) fn run(&self, allocator: &mut dyn Allocator) -> Result<()> {
        let mut live: HashMap<u64, (BlockId, StreamId)> = HashMap::new();
        for event in &self.events {
            match *event {
                Event::Allocate { id, size_bytes, stream } => {
                    let allocation = allocator.allocate(size_bytes, stream)?;
                    live.insert(id, (allocation.block, stream));
                }
                Event::Free { id } => {
                    let (block, stream) = live.remove(&id).expect("freed what is live");
                    allocator.free(block, stream)?;
                }
            }
        }
        Ok(())
    }

    /// Whether it ran, or ran out of memory.
    pub(crate) fn fits(&self, allocator: &mut dyn Allocator) -> bool {
        match self.run(allocator) {
            Ok(()) => true,
            Err(Error::OutOfMemory(_)) => false,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }
}

/// The real event lists, by name. None, said aloud, if they are not at hand.
pub(crate) fn real_traces() -> Vec<Trace> {
    real_files("events", "txt").iter().map(|path| Trace::read(path)).collect()
}

/// The files that end so in a folder of the real traces, by name: of the one that `GMM_TRACES` names, or
/// `../shared/traces` beside the checkout. None, said aloud, if they are not at hand.
pub(crate) fn real_files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("GMM_TRACES").map_or(beside, PathBuf::from).join(folder);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("SKIPPED: no traces in {}; GMM_TRACES names a folder", folder.display());
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|is| is == extension)).collect();
    paths.sort();
    paths
}
