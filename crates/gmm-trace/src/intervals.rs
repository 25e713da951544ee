//! Interval tables, as papers on static allocation publish them: a row a block, alive from `lower`
//! up to but not including `upper`, in any unit of time.
//!
//! ```text
//! id,lower,upper,size
//! 0,0,5,1024
//! ```
//!
//! Columns may stand in any order, others are ignored. At each time, frees come before
//! allocations, and these in the order of the rows.

use crate::Error;
use crate::builder::{MAX_BLOCKS, MAX_SIZE_BYTES, RecordingBuilder, Stamp};
use crate::csv;
use crate::event_list::too_many;
use crate::lines::Lines;
use crate::read::{Format, Trace};
use crate::sites::Sites;
use crate::source::Source;

const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];

pub(crate) fn is_header(line: &str) -> bool {
    csv::columns(line, COLUMNS).is_some()
}

struct Interval {
    lower: i64,
    upper: i64,
    size_bytes: u64,
}

pub(crate) fn read(source: &mut Source<'_>) -> Result<Trace, Error> {
    let mut lines = Lines::new(source);
    lines.advance()?;
    let places = csv::columns(lines.text()?, COLUMNS).ok_or_else(|| lines.error("no header"))?;
    let mut intervals = Vec::new();
    while lines.advance()? {
        let row = csv::values(lines.text()?, places).ok_or_else(|| lines.error("too short"))?;
        // A row makes three events.
        if intervals.len() >= (MAX_BLOCKS / 2) as usize {
            return Err(too_many(lines.offset()));
        }
        intervals.push(interval(row, &lines)?);
    }
    let mut builder = RecordingBuilder::new(0, false);
    let mut begins: Vec<u32> = (0..intervals.len() as u32).collect();
    let mut ends = begins.clone();
    begins.sort_unstable_by_key(|&at| (intervals[at as usize].lower, at));
    ends.sort_unstable_by_key(|&at| (intervals[at as usize].upper, at));
    let mut ends = ends.into_iter().peekable();
    for at in begins {
        let Interval { lower, size_bytes, .. } = intervals[at as usize];
        while let Some(end) = ends.next_if(|&end| intervals[end as usize].upper <= lower) {
            builder.free(end.into(), 0, 0, Stamp::default());
        }
        builder.allocate(at.into(), size_bytes, 0, Stamp::default());
    }
    ends.for_each(|end| builder.free(end.into(), 0, 0, Stamp::default()));
    Ok(Trace {
        format: Format::Intervals,
        recordings: vec![builder.finish(Vec::new())],
        sites: Sites::default(),
        settings: None,
    })
}

fn interval([_, lower, upper, size]: [&str; 4], lines: &Lines<'_, '_>) -> Result<Interval, Error> {
    let lower = lower.parse().map_err(|_| lines.error("`lower` is not an integer"))?;
    let upper = upper.parse().map_err(|_| lines.error("`upper` is not an integer"))?;
    let size_bytes = size.parse().ok().filter(|&size| size <= MAX_SIZE_BYTES);
    let size_bytes =
        size_bytes.ok_or_else(|| lines.error("`size` is not a size of up to 2^48 bytes"))?;
    if lower >= upper {
        return Err(lines.error("`lower` is not below `upper`"));
    }
    Ok(Interval { lower, upper, size_bytes })
}
