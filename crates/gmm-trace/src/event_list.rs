//! Event lists: a line an event.
//!
//! ```text
//! a ID SIZE STREAM    allocate SIZE bytes on STREAM
//! f ID                free
//! u ID STREAM         a stream other than its own uses it
//! # a comment
//! ```
//!
//! ID and STREAM are numbers below 2^64. An ID may be used again once it is freed. By the first
//! line that is no comment a file is known to be one.

use crate::Error;
use crate::builder::{MAX_BLOCKS, MAX_SIZE_BYTES, RecordingBuilder, Stamp};
use crate::lines::Lines;
use crate::read::{Format, Trace};
use crate::recording::BlockId;
use crate::sites::Sites;
use crate::source::Source;

/// Could this be the first line, or was it meant to be?
pub(crate) fn is_event(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let is_name = matches!(words.next(), Some("a" | "f" | "u"));
    is_name && words.next().is_some_and(|id| id.parse::<i128>().is_ok())
}

pub(crate) fn read(source: &mut Source<'_>) -> Result<Trace, Error> {
    let mut lines = Lines::new(source);
    let mut builder = RecordingBuilder::new(0, false);
    while lines.advance()? {
        event(&mut builder, &lines)?;
    }
    Ok(Trace {
        format: Format::EventList,
        recordings: vec![builder.finish(Vec::new())],
        sites: Sites::default(),
        settings: None,
    })
}

fn event(builder: &mut RecordingBuilder, lines: &Lines<'_, '_>) -> Result<(), Error> {
    check_room(builder, lines)?;
    let mut words = lines.text()?.split_ascii_whitespace();
    let name = words.next();
    let mut number = || -> Result<u64, Error> {
        let word = words.next().ok_or_else(|| lines.error("too few numbers"))?;
        word.parse().map_err(|_| lines.error("not a number from 0 to 2^64 - 1"))
    };
    match name {
        Some("a") => {
            let (id, size, stream) = (number()?, number()?, number()?);
            if size > MAX_SIZE_BYTES {
                return Err(lines.error("a size of more than 2^48 bytes"));
            }
            if builder.live(id).is_some() {
                return Err(lines.error("allocates an ID that is alive"));
            }
            builder.allocate(id, size, stream, Stamp::default());
        }
        Some("f") => {
            let id = number()?;
            live(builder, id, lines)?;
            builder.free(id, 0, 0, Stamp::default());
        }
        Some("u") => {
            let (id, stream) = (number()?, number()?);
            let block = live(builder, id, lines)?;
            builder.use_on_stream(block, stream, Stamp::default());
        }
        _ => return Err(lines.error("neither `a ID SIZE STREAM` nor `f ID` nor `u ID STREAM`")),
    }
    match words.next() {
        Some(_) => Err(lines.error("too many numbers")),
        None => Ok(()),
    }
}

fn live(builder: &RecordingBuilder, id: u64, lines: &Lines<'_, '_>) -> Result<BlockId, Error> {
    builder.live(id).ok_or_else(|| lines.error("the ID is not alive"))
}

/// Fails if there is no number for another event or block.
pub(crate) fn check_room(builder: &RecordingBuilder, lines: &Lines<'_, '_>) -> Result<(), Error> {
    match builder.is_full() {
        true => Err(too_many(lines.offset())),
        false => Ok(()),
    }
}

pub(crate) fn too_many(offset: u64) -> Error {
    Error::TooMany {
        offset,
        what: "blocks, or twice as many events,",
        limit: u64::from(MAX_BLOCKS),
    }
}
