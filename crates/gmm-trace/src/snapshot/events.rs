//! The entry `device_traces`: the events of each device.

use super::Reader;
use super::fields::Place;
use crate::Error;
use crate::builder::{RecordingBuilder, Stamp};
use crate::event_list::too_many;
use crate::pickle::{Container, Value};
use crate::recording::{Event, OutOfMemory, SegmentChange};

const EVENT: [&str; 7] = ["action", "addr", "size", "stream", "time_us", "frames", "device_free"];

impl Reader {
    pub(super) fn trace(
        &mut self,
        trace: Container,
        builder: &mut RecordingBuilder,
    ) -> Result<(), Error> {
        let (place, mut items) = self.enter(trace, "trace")?;
        while let Some(event) = items.next(&self.values) {
            self.event(place, event, builder)?;
        }
        Ok(())
    }

    fn event(
        &mut self,
        parent: Place,
        event: Value,
        builder: &mut RecordingBuilder,
    ) -> Result<(), Error> {
        let (place, items) = self.dict(parent, "event", Some(event), "event")?;
        let [action, addr, size, stream, time, frames, device_free] = self.fields(items, EVENT);
        if builder.is_full() {
            return Err(too_many(place.offset));
        }
        // That a snapshot was taken changes nothing.
        if self.text(place, "action", action)? == b"snapshot" {
            return Ok(());
        }
        let stamp = Stamp {
            time_us: match time {
                Some(time) => Some(self.integer(place, "time_us", Some(time))?),
                None => None,
            },
            site: self.site(place, frames)?,
        };
        let stream = |reader: &Self| reader.integer(place, "stream", stream);
        let address = |reader: &Self| reader.integer(place, "addr", addr);
        let change: fn(u32) -> Event = match self.text(place, "action", action)? {
            b"alloc" => {
                let size = self.size(place, "size", size)?;
                builder.allocate(address(self)?, size, stream(self)?, stamp);
                return Ok(());
            }
            b"free_requested" => {
                let size = self.size(place, "size", size)?;
                builder.request_free(address(self)?, size, stream(self)?, stamp);
                return Ok(());
            }
            b"free_completed" => {
                let size = self.size(place, "size", size)?;
                builder.complete_free(address(self)?, size, stream(self)?, stamp);
                return Ok(());
            }
            b"oom" => {
                let device_free_bytes = match device_free {
                    Some(free) => Some(self.integer(place, "device_free", Some(free))?),
                    None => None,
                };
                let size_bytes = self.integer(place, "size", size)?;
                let stream = stream(self)?;
                builder.run_out(OutOfMemory { size_bytes, device_free_bytes, stream }, stamp);
                return Ok(());
            }
            b"segment_alloc" => Event::SegmentAlloc,
            b"segment_free" => Event::SegmentFree,
            b"segment_map" => Event::SegmentMap,
            b"segment_unmap" => Event::SegmentUnmap,
            _ => {
                builder.unknown_event();
                return Ok(());
            }
        };
        let size_bytes = self.size(place, "size", size)?;
        let change_of =
            SegmentChange { address: address(self)?, size_bytes, stream: stream(self)? };
        builder.change_segment(change, change_of, stamp);
        Ok(())
    }
}
