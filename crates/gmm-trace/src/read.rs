//! Reads a recording of any format.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::Error;
use crate::recording::Recording;
use crate::settings::AllocatorSettings;
use crate::sites::Sites;
use crate::source::Source;
use crate::{event_list, intervals, rmm, snapshot};

/// The most memory that reading takes, in bytes for each byte of the file as it is uncompressed;
/// what is read included. Tests hold it with an allocator that counts, on hostile files; snapshots
/// of real runs take 2 to 5.
pub const MEMORY_PER_BYTE: u64 = 32;

/// What reading may take however small the file is, in bytes: its buffers.
pub const MEMORY_AT_LEAST: u64 = 1 << 20;

/// What a file records.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Which kind of file it was.
    pub format: Format,
    /// Of each device that anything was recorded of, in ascending order.
    pub recordings: Vec<Recording>,
    /// The stacks of frames that the recordings speak of.
    pub sites: Sites,
    /// How the allocator was set up, if that was recorded.
    pub settings: Option<AllocatorSettings>,
}

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A pickle of `torch.cuda.memory._snapshot()`, or of the list of segments that
    /// `torch.cuda.memory_snapshot()` returns.
    Snapshot,
    /// The log of RMM's `logging_resource_adaptor`.
    Rmm,
    /// A line an event.
    EventList,
    /// A row a block, with the times between which it is alive.
    Intervals,
}

/// Reads the file at `path`. See [`read`].
///
/// # Errors
///
/// As [`read`], and if the file can't be opened.
pub fn read_file(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Trace, Error> {
    match File::open(path) {
        Ok(file) => read(file, progress),
        Err(source) => Err(Error::Open { path: path.to_owned(), source }),
    }
}

/// Reads a recording. Its format is told from its contents. `progress` is told, now and then and
/// at the end, how many bytes of `input` were read.
///
/// # Errors
///
/// If the input can't be read, or its contents are not whole and of a known format; the error names
/// the byte.
pub fn read(input: impl Read, progress: &mut dyn FnMut(u64)) -> Result<Trace, Error> {
    let mut source = Source::new(input, progress)?;
    let beginning = source.peek()?;
    if beginning.trim_ascii().is_empty() {
        return Err(Error::Empty);
    }
    let format = format_of(beginning).ok_or_else(|| Error::UnknownFormat {
        beginning: String::from_utf8_lossy(&beginning[..beginning.len().min(32)]).into_owned(),
    })?;
    let trace = match format {
        Format::Snapshot => snapshot::read(&mut source)?,
        Format::Rmm => rmm::read(&mut source)?,
        Format::EventList => event_list::read(&mut source)?,
        Format::Intervals => intervals::read(&mut source)?,
    };
    source.finish();
    Ok(trace)
}

/// A pickle's first opcode names its protocol; a text's first line that is no comment tells.
fn format_of(beginning: &[u8]) -> Option<Format> {
    if let [0x80, 2..=5, ..] = beginning {
        return Some(Format::Snapshot);
    }
    let mut lines = beginning.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let line = lines.find(|line| !matches!(line, [] | [b'#', ..]))?;
    let line = std::str::from_utf8(line).ok()?;
    if rmm::is_header(line) {
        Some(Format::Rmm)
    } else if intervals::is_header(line) {
        Some(Format::Intervals)
    } else if event_list::is_event(line) {
        Some(Format::EventList)
    } else {
        None
    }
}
