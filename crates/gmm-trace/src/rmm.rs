//! The log of RMM's `logging_resource_adaptor`: a row for each allocation, free, and allocation
//! that failed.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 2342727,15:47:02.841961,allocate,0x10012400000,1048576,0
//! 2342727,15:47:02.841977,free,0x10012400000,1048576,0
//! 2342727,15:47:02.901123,allocate failure,(nil),99999999999,0x2
//! ```
//!
//! Pointers and streams are written in hexadecimal (with `0x`) or decimal. Times are of day, with a
//! point or, in older versions, a colon before the microseconds; or seconds since 1970. A free on
//! another stream than the block's own is a use of the block by that stream, and then a free.

use crate::Error;
use crate::builder::{MAX_SIZE_BYTES, RecordingBuilder, Stamp};
use crate::csv;
use crate::event_list::check_room;
use crate::lines::Lines;
use crate::read::{Format, Trace};
use crate::recording::OutOfMemory;
use crate::sites::Sites;
use crate::source::Source;

const COLUMNS: [&str; 5] = ["Time", "Action", "Pointer", "Size", "Stream"];

const DAY_US: u64 = 86_400_000_000;

pub(crate) fn is_header(line: &str) -> bool {
    csv::columns(line, COLUMNS).is_some()
}

pub(crate) fn read(source: &mut Source<'_>) -> Result<Trace, Error> {
    let mut lines = Lines::new(source);
    lines.advance()?;
    let places = csv::columns(lines.text()?, COLUMNS).ok_or_else(|| lines.error("no header"))?;
    let mut builder = RecordingBuilder::new(0, true);
    let mut clock = Clock::default();
    while lines.advance()? {
        let row = csv::values(lines.text()?, places).ok_or_else(|| lines.error("too short"))?;
        event(&mut builder, &mut clock, row, &lines)?;
    }
    Ok(Trace {
        format: Format::Rmm,
        recordings: vec![builder.finish(Vec::new())],
        sites: Sites::default(),
        settings: None,
    })
}

fn event(
    builder: &mut RecordingBuilder,
    clock: &mut Clock,
    [time, action, pointer, size, stream]: [&str; 5],
    lines: &Lines<'_, '_>,
) -> Result<(), Error> {
    let time = time_us(time).ok_or_else(|| lines.error("not a time"))?;
    let stamp = Stamp { time_us: Some(clock.after(time)), site: None };
    let pointer = number(pointer).ok_or_else(|| lines.error("not a pointer"))?;
    let stream = number(stream).ok_or_else(|| lines.error("not a stream"))?;
    let size = size.parse().ok().filter(|&size| size <= MAX_SIZE_BYTES);
    let size = size.ok_or_else(|| lines.error("not a size of up to 2^48 bytes"))?;
    check_room(builder, lines)?;
    match action {
        "allocate" => {
            builder.allocate(pointer, size, stream, stamp);
        }
        "free" | "deallocate" => {
            if let Some(block) = builder.live(pointer)
                && builder.stream(block) != stream
            {
                builder.use_on_stream(block, stream, stamp);
            }
            builder.free(pointer, size, stream, stamp);
        }
        "allocate failure" => {
            let request = OutOfMemory { size_bytes: size, device_free_bytes: None, stream };
            builder.run_out(request, stamp);
        }
        _ => builder.unknown_event(),
    }
    Ok(())
}

/// A number in decimal, or in hexadecimal after `0x`. C's `%p` writes none as `(nil)`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text == "(nil)" => Some(0),
        None => text.parse().ok(),
    }
}

/// Microseconds since midnight, or since 1970.
fn time_us(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (first, minutes, seconds, micros) =
        (parts.next()?, parts.next(), parts.next(), parts.next());
    let (Some(minutes), Some(seconds)) = (minutes, seconds) else {
        return if minutes.is_none() { seconds_us(first) } else { None };
    };
    let hours: u64 = first.parse().ok().filter(|&hours| hours < 24)?;
    let minutes: u64 = minutes.parse().ok().filter(|&minutes| minutes < 60)?;
    let micros = micros.map_or(Some(0), |micros| micros.parse().ok())?;
    let seconds = seconds_us(seconds)?.checked_add(micros)?;
    let time = (hours * 60 + minutes) * 60_000_000 + seconds;
    (parts.next().is_none() && time < DAY_US).then_some(time)
}

/// Seconds with up to six places, in microseconds.
fn seconds_us(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    if places.is_empty() || !places.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: u64 = format!("{places:0<6.6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
}

/// Makes times of day go on after midnight.
#[derive(Default)]
struct Clock {
    last: u64,
    days_us: u64,
}

impl Clock {
    fn after(&mut self, time: u64) -> u64 {
        // Threads write in no exact order: only a step back of half a day is another day.
        if self.last > time + DAY_US / 2 && self.last < DAY_US {
            self.days_us += DAY_US;
        }
        self.last = time;
        self.days_us.saturating_add(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_forms() {
        assert_eq!(time_us("15:47:02.841961"), Some(56_822_841_961));
        assert_eq!(time_us("15:47:02:841961"), Some(56_822_841_961));
        assert_eq!(time_us("0:00:01"), Some(1_000_000));
        assert_eq!(time_us("1634567890.1234567"), Some(1_634_567_890_123_456));
        assert_eq!(time_us("5"), Some(5_000_000));
        for wrong in ["", "x", "24:00:00", "1:60:00", "1:1", "1:1:1:1:1", "1:1:1.", "1.x", "-1"] {
            assert_eq!(time_us(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_clock_goes_on_after_midnight() {
        let mut clock = Clock::default();
        let late = DAY_US - 5;
        let times = [late, late - 3, late + 1, 2, 7].map(|time| clock.after(time));
        assert_eq!(times, [late, late - 3, late + 1, DAY_US + 2, DAY_US + 7]);
    }
}
