//! Event lists.

use std::io::{BufWriter, Write};

use crate::Error;
use crate::recording::{Event, Recording};

/// Writes a recording as an event list: `a ID SIZE STREAM`, `f ID`, `u ID STREAM`. Blocks that were
/// alive at the beginning come first. A block is freed when its free completes; segments,
/// failures, times and sites are left out.
///
/// # Errors
///
/// If `out` can't be written.
pub fn write_event_list(recording: &Recording, out: impl Write) -> Result<(), Error> {
    let mut out = BufWriter::new(out);
    let allocate = |out: &mut BufWriter<_>, index: usize| {
        let block = recording.blocks()[index];
        writeln!(out, "a {index} {} {}", block.size_bytes, block.stream)
    };
    for index in 0..recording.blocks_at_start().len() {
        allocate(&mut out, index)?;
    }
    for event in recording.events() {
        match *event {
            Event::Allocate(block) => allocate(&mut out, block.index())?,
            Event::FreeCompleted(block) => writeln!(out, "f {}", block.index())?,
            Event::Use(at) => {
                let used = recording.uses()[at as usize];
                writeln!(out, "u {} {}", used.block.index(), used.stream)?;
            }
            _ => {}
        }
    }
    Ok(out.flush()?)
}
