//! PyTorch's memory snapshots.

use std::io::{self, BufWriter, Write};

use super::pickler::{Pickler, Reference};
use crate::Error;
use crate::read::Trace;
use crate::recording::{BlockState, Event, Recording, Segment, SegmentBlock, SegmentKind};
use crate::settings::AllocatorSettings;
use crate::sites::{SiteId, Sites};

/// Where blocks are placed, and how segments are rounded, if the recording does not say.
const ALIGNMENT: u64 = 512;
const FIRST_ADDRESS: u64 = 1 << 21;

/// Writes a trace as the pickle of a PyTorch memory snapshot, which PyTorch's `memory_viz` and
/// Python's `pickle.load` open.
///
/// A recording that has no addresses gets some, each used once; one that has no segments gets one
/// for each block that is alive at its end. Uses by other streams are left out, since snapshots
/// have no such event.
///
/// # Errors
///
/// If `out` can't be written, or blocks without addresses don't fit in 64 bits of them.
pub fn write_snapshot(trace: &Trace, out: impl Write) -> Result<(), Error> {
    let pickler = Pickler::new(BufWriter::new(out))?;
    let nr_devices = trace.recordings.iter().map(|recording| recording.device() + 1).max();
    let mut devices = vec![None; nr_devices.unwrap_or(0) as usize];
    let mut segments = Vec::new();
    for recording in &trace.recordings {
        let addresses = addresses(recording)?;
        segments.push((recording.device(), segments_of(recording, &addresses)));
        devices[recording.device() as usize] = Some((recording, addresses));
    }
    let mut writer = Writer {
        pickler,
        sites: &trace.sites,
        site_references: vec![None; trace.sites.len()],
        frame_references: vec![None; trace.sites.nr_frames()],
        no_frames: None,
    };
    writer.snapshot(&segments, &devices, trace.settings.as_ref())?;
    Ok(writer.pickler.finish()?)
}

/// The address of each block.
fn addresses(recording: &Recording) -> Result<Vec<u64>, Error> {
    let mut next = FIRST_ADDRESS;
    let place = |(at, block): (usize, &crate::Block)| {
        if recording.has_addresses() {
            return Ok(block.address);
        }
        let size = block.size_bytes.max(1).next_multiple_of(ALIGNMENT);
        let address = next;
        next = next.checked_add(size).ok_or(Error::NoAddresses { blocks: at })?;
        Ok(address)
    };
    recording.blocks().iter().enumerate().map(place).collect()
}

/// The segments at the end: as recorded, or one around each block that is alive.
fn segments_of(recording: &Recording, addresses: &[u64]) -> Vec<Segment> {
    if !recording.segments().is_empty() {
        return recording.segments().to_vec();
    }
    let mut states = vec![BlockState::Active; recording.blocks().len()];
    for event in recording.events() {
        match event {
            Event::FreeRequested(block) => states[block.index()] = BlockState::AwaitingFree,
            Event::FreeCompleted(block) => states[block.index()] = BlockState::Inactive,
            _ => {}
        }
    }
    let blocks = recording.blocks().iter().zip(addresses).zip(states);
    let alive = blocks.filter(|(_, state)| *state != BlockState::Inactive);
    alive
        .map(|((block, &address), state)| {
            let size_bytes = block.size_bytes.max(1).next_multiple_of(ALIGNMENT);
            let (requested_bytes, site) = (block.size_bytes, block.site);
            let part = SegmentBlock { address, size_bytes, requested_bytes, state, site };
            Segment {
                address,
                size_bytes,
                stream: block.stream,
                kind: if size_bytes > 1 << 20 { SegmentKind::Large } else { SegmentKind::Small },
                pool: (0, 0),
                is_expandable: false,
                site,
                blocks: vec![part],
            }
        })
        .collect()
}

/// A recording, and where its blocks lie.
type Placed<'t> = (&'t Recording, Vec<u64>);

struct Writer<'t, W> {
    pickler: Pickler<'t, W>,
    sites: &'t Sites,
    /// What was written, to be shared.
    site_references: Vec<Option<Reference>>,
    frame_references: Vec<Option<Reference>>,
    no_frames: Option<Reference>,
}

impl<'t, W: Write> Writer<'t, W> {
    fn snapshot(
        &mut self,
        segments: &[(u32, Vec<Segment>)],
        devices: &[Option<Placed<'t>>],
        settings: Option<&'t AllocatorSettings>,
    ) -> io::Result<()> {
        self.dict(|writer| {
            writer.pickler.text("segments")?;
            let all = segments.iter().flat_map(|(device, segments)| {
                segments.iter().map(move |segment| (*device, segment))
            });
            writer.list(all, |writer, (device, segment)| writer.segment(device, segment))?;
            writer.pickler.text("device_traces")?;
            writer.list(devices, |writer, placed| match placed {
                Some(placed) => {
                    let events = placed.0.events();
                    let known = |at: &usize| !matches!(events[*at], Event::Use(_));
                    let known = (0..events.len()).filter(known);
                    writer.list(known, |writer, event| writer.event(placed, event))
                }
                None => writer.list([(); 0], |_, ()| Ok(())),
            })?;
            if let Some(settings) = settings {
                writer.settings(settings)?;
            }
            writer.pickler.text("external_annotations")?;
            writer.list([(); 0], |_, ()| Ok(()))
        })
    }

    fn dict(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.pickler.begin_dict()?;
        write(self)?;
        self.pickler.end_dict()
    }

    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.pickler.begin_list()?;
        let mut nr_items = 0;
        for item in items {
            self.pickler.before_item(nr_items)?;
            write(self, item)?;
            nr_items += 1;
        }
        self.pickler.end_list(nr_items)
    }

    fn segment(&mut self, device: u32, segment: &Segment) -> io::Result<()> {
        let sum = |count: fn(&SegmentBlock) -> Option<u64>| -> i128 {
            segment.blocks.iter().filter_map(count).map(i128::from).sum()
        };
        let allocated = sum(|b| (b.state == BlockState::Active).then_some(b.size_bytes));
        let active = sum(|b| (b.state != BlockState::Inactive).then_some(b.size_bytes));
        let requested = sum(|b| (b.state != BlockState::Inactive).then_some(b.requested_bytes));
        self.dict(|writer| {
            let pickler = &mut writer.pickler;
            pickler.int_field("device", device)?;
            pickler.int_field("address", segment.address)?;
            pickler.int_field("total_size", segment.size_bytes)?;
            pickler.int_field("allocated_size", allocated)?;
            pickler.int_field("active_size", active)?;
            pickler.int_field("requested_size", requested)?;
            pickler.int_field("stream", segment.stream)?;
            let kind = match segment.kind {
                SegmentKind::Small => "small",
                SegmentKind::Large => "large",
            };
            pickler.text_field("segment_type", kind)?;
            pickler.text("segment_pool_id")?;
            pickler.pair(segment.pool.0, segment.pool.1)?;
            pickler.text("is_expandable")?;
            pickler.truth(segment.is_expandable)?;
            writer.frames(segment.site)?;
            writer.pickler.text("blocks")?;
            writer.list(&segment.blocks, Self::block)
        })
    }

    fn block(&mut self, block: &SegmentBlock) -> io::Result<()> {
        self.dict(|writer| {
            let pickler = &mut writer.pickler;
            pickler.int_field("address", block.address)?;
            pickler.int_field("size", block.size_bytes)?;
            pickler.int_field("requested_size", block.requested_bytes)?;
            let state = match block.state {
                BlockState::Active => "active_allocated",
                BlockState::AwaitingFree => "active_awaiting_free",
                BlockState::Inactive => "inactive",
            };
            pickler.text_field("state", state)?;
            writer.frames(block.site)
        })
    }

    fn event(&mut self, (recording, addresses): &Placed<'t>, at: usize) -> io::Result<()> {
        let event = recording.events()[at];
        let of_block = |block: crate::BlockId| {
            let crate::Block { size_bytes, stream, .. } = *recording.block(block);
            ("addr", addresses[block.index()], size_bytes, stream)
        };
        let of_segment = |change: u32| {
            let change = recording.segment_changes()[change as usize];
            ("addr", change.address, change.size_bytes, change.stream)
        };
        let (action, (key, address, size, stream)) = match event {
            Event::Allocate(block) => ("alloc", of_block(block)),
            Event::FreeRequested(block) => ("free_requested", of_block(block)),
            Event::FreeCompleted(block) => ("free_completed", of_block(block)),
            Event::SegmentAlloc(change) => ("segment_alloc", of_segment(change)),
            Event::SegmentFree(change) => ("segment_free", of_segment(change)),
            Event::SegmentMap(change) => ("segment_map", of_segment(change)),
            Event::SegmentUnmap(change) => ("segment_unmap", of_segment(change)),
            Event::OutOfMemory(at) => {
                let request = recording.out_of_memory()[at as usize];
                let free = request.device_free_bytes.unwrap_or(0);
                ("oom", ("device_free", free, request.size_bytes, request.stream))
            }
            // Snapshots have no such event; the list leaves it out.
            Event::Use(_) => return Ok(()),
        };
        self.dict(|writer| {
            let pickler = &mut writer.pickler;
            pickler.text_field("action", action)?;
            pickler.int_field(key, address)?;
            pickler.int_field("size", size)?;
            pickler.int_field("stream", stream)?;
            if let Some(time) = recording.time_us(at) {
                pickler.int_field("time_us", time)?;
            }
            writer.frames(recording.site(at))
        })
    }

    /// The key `frames` and the stack, which all who have it share.
    fn frames(&mut self, site: Option<SiteId>) -> io::Result<()> {
        self.pickler.text("frames")?;
        let written = match site {
            Some(site) => self.site_references[site.index()],
            None => self.no_frames,
        };
        if let Some(reference) = written {
            return self.pickler.refer(reference);
        }
        let sites = self.sites;
        match site {
            Some(site) => {
                let frames = sites.numbers(site).iter().zip(sites.frames(site));
                self.list(frames, |writer, (&number, frame)| {
                    if let Some(reference) = writer.frame_references[number as usize] {
                        return writer.pickler.refer(reference);
                    }
                    writer.dict(|writer| {
                        writer.pickler.text_field("name", frame.name)?;
                        writer.pickler.text_field("filename", frame.file)?;
                        writer.pickler.int_field("line", frame.line)
                    })?;
                    let reference = writer.pickler.reference()?;
                    writer.frame_references[number as usize] = Some(reference);
                    Ok(())
                })?;
                self.site_references[site.index()] = Some(self.pickler.reference()?);
            }
            None => {
                self.list([(); 0], |_, ()| Ok(()))?;
                self.no_frames = Some(self.pickler.reference()?);
            }
        }
        Ok(())
    }

    fn settings(&mut self, settings: &'t AllocatorSettings) -> io::Result<()> {
        self.pickler.text("allocator_settings")?;
        self.dict(|writer| {
            let pickler = &mut writer.pickler;
            pickler.text_field("PYTORCH_CUDA_ALLOC_CONF", &settings.conf)?;
            let max_split = settings.max_split_size_bytes.map_or(-1, i128::from);
            pickler.int_field("max_split_size", max_split)?;
            pickler.text("garbage_collection_threshold")?;
            pickler.float(settings.garbage_collection_threshold)?;
            pickler.text("expandable_segments")?;
            pickler.truth(settings.expandable_segments)?;
            if settings.roundup_power2_divisions.is_empty() {
                return Ok(());
            }
            pickler.text("roundup_power2_divisions")?;
            writer.dict(|writer| {
                for (size, divisions) in &settings.roundup_power2_divisions {
                    writer.pickler.once(&size.to_string())?;
                    writer.pickler.int((*divisions).into())?;
                }
                Ok(())
            })
        })
    }
}
