//! PyTorch's memory snapshots: what `torch.cuda.memory._snapshot()` returns, pickled.
//!
//! A dictionary: `segments`, what the allocator held when the snapshot was taken;
//! `device_traces`, for each device the list of its events, oldest first, of which old ones may
//! have been dropped; `allocator_settings`. A list is taken for `segments` alone, as
//! `torch.cuda.memory_snapshot()` returns it. Other entries are left aside.
//!
//! The objects are gone through once, in the shape that PyTorch gives them, to a depth that is
//! fixed. What PyTorch writes once is refused where it stands twice ([`Error::UsedTwice`]), or a
//! short file could repeat a long list; stacks of frames, which are shared, are turned into a
//! number at their first use.

mod events;
mod fields;
mod frames;
mod segments;
mod settings;

use std::collections::BTreeMap;

use crate::Error;
use crate::builder::{MAX_DEVICES, RecordingBuilder};
use crate::error::Expected;
use crate::pickle::{self, Container, Kind, Value, Values};
use crate::read::{Format, Trace};
use crate::recording::Segment;
use crate::sites::Sites;
use crate::source::Source;
use fields::Place;

pub(crate) fn read(source: &mut Source<'_>) -> Result<Trace, Error> {
    let (values, top) = pickle::load(source)?;
    let mut reader = Reader { values, sites: Sites::default() };
    let place = Place { offset: 0, object: "pickle" };
    let is_list = matches!(top, Value::Container(c) if reader.values.kind(c) == Kind::List);
    let [segments, traces, settings] = match is_list {
        true => [Some(top), None, None],
        false => {
            let (_, items) = reader.dict(place, "top object", Some(top), "snapshot")?;
            reader.fields(items, ["segments", "device_traces", "allocator_settings"])
        }
    };
    let settings = settings.map(|settings| reader.settings(place, settings)).transpose()?;
    let mut segments = reader.segments(place, segments)?;
    let traces = reader.traces(place, traces)?;
    let mut devices: Vec<u32> = segments.keys().chain(traces.keys()).copied().collect();
    devices.sort_unstable();
    devices.dedup();
    let mut recordings = Vec::new();
    for device in devices {
        let mut builder = RecordingBuilder::new(device, true);
        if let Some(trace) = traces.get(&device) {
            reader.trace(*trace, &mut builder)?;
        }
        let recording = builder.finish(segments.remove(&device).unwrap_or_default());
        // A trace may hold nothing but notes that snapshots were taken.
        if !recording.is_empty() {
            recordings.push(recording);
        }
    }
    Ok(Trace { format: Format::Snapshot, recordings, sites: reader.sites, settings })
}

/// The objects of a snapshot, and the stacks found so far.
struct Reader {
    values: Values,
    sites: Sites,
}

/// The segments of each device.
type Segments = BTreeMap<u32, Vec<Segment>>;

impl Reader {
    /// The list of events of each device that has any.
    fn traces(
        &mut self,
        place: Place,
        traces: Option<Value>,
    ) -> Result<BTreeMap<u32, Container>, Error> {
        let mut found = BTreeMap::new();
        let Some(traces) = traces else { return Ok(found) };
        let (place, mut items) =
            self.list(place, "device_traces", Some(traces), "list of traces")?;
        let mut device = 0;
        while let Some(trace) = items.next(&self.values) {
            if device == MAX_DEVICES {
                return Err(place.wrong("length", Expected::Device));
            }
            let trace = self.sequence(trace).ok_or(place.wrong("trace", Expected::List))?;
            if self.values.items(trace).next(&self.values).is_some() {
                found.insert(device, trace);
            }
            device += 1;
        }
        Ok(found)
    }
}
