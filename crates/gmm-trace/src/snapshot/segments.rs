//! The entry `segments`.

use super::fields::Place;
use super::{Reader, Segments};
use crate::Error;
use crate::builder::MAX_DEVICES;
use crate::error::Expected;
use crate::pickle::Value;
use crate::recording::{BlockState, Segment, SegmentBlock, SegmentKind};

const SEGMENT: [&str; 9] = [
    "address",
    "total_size",
    "stream",
    "device",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
];

const BLOCK: [&str; 6] = ["address", "size", "requested_size", "state", "frames", "history"];

impl Reader {
    pub(super) fn segments(
        &mut self,
        place: Place,
        segments: Option<Value>,
    ) -> Result<Segments, Error> {
        let (place, mut items) = self.list(place, "segments", segments, "list of segments")?;
        let mut found = Segments::new();
        while let Some(segment) = items.next(&self.values) {
            let (device, segment) = self.segment(place, segment)?;
            found.entry(device).or_default().push(segment);
        }
        Ok(found)
    }

    fn segment(&mut self, parent: Place, segment: Value) -> Result<(u32, Segment), Error> {
        let (place, items) = self.dict(parent, "segment", Some(segment), "segment")?;
        let [address, size, stream, device, kind, pool, is_expandable, frames, blocks] =
            self.fields(items, SEGMENT);
        let device = match device {
            Some(device) => self.integer(place, "device", Some(device))?,
            None => 0,
        };
        let device = u32::try_from(device).ok().filter(|&device| device < MAX_DEVICES);
        let device = device.ok_or_else(|| place.wrong("device", Expected::Device))?;
        let kind = match kind {
            None => SegmentKind::Large,
            kind => match self.text(place, "segment_type", kind)? {
                b"small" => SegmentKind::Small,
                _ => SegmentKind::Large,
            },
        };
        let address = self.integer(place, "address", address)?;
        let segment = Segment {
            address,
            size_bytes: self.size(place, "total_size", size)?,
            stream: self.integer(place, "stream", stream)?,
            kind,
            pool: self.pool(place, pool)?,
            is_expandable: self.truth(place, "is_expandable", is_expandable)?.unwrap_or(false),
            site: self.site(place, frames)?,
            blocks: self.blocks(place, address, blocks)?,
        };
        Ok((device, segment))
    }

    /// A pair of numbers, which segments may share.
    fn pool(&self, place: Place, pool: Option<Value>) -> Result<(u64, u64), Error> {
        let Some(pool) = pool else { return Ok((0, 0)) };
        let pool = self.sequence(pool);
        let pool = pool.ok_or_else(|| place.wrong("segment_pool_id", Expected::List))?;
        let mut items = self.values.items(pool);
        let mut number = || self.integer(place, "segment_pool_id", items.next(&self.values));
        Ok((number()?, number()?))
    }

    fn blocks(
        &mut self,
        parent: Place,
        mut address: u64,
        blocks: Option<Value>,
    ) -> Result<Vec<SegmentBlock>, Error> {
        let (place, mut items) = self.list(parent, "blocks", blocks, "list of blocks")?;
        let mut found = Vec::new();
        while let Some(block) = items.next(&self.values) {
            let block = self.block(place, address, block)?;
            address = block.address.wrapping_add(block.size_bytes);
            found.push(block);
        }
        found.shrink_to_fit();
        Ok(found)
    }

    /// A block, which lies at `address` if it doesn't say where: older versions don't. They have
    /// the size that was asked for, and the frames, in a list `history` with the latest first.
    fn block(&mut self, parent: Place, address: u64, block: Value) -> Result<SegmentBlock, Error> {
        let (place, items) = self.dict(parent, "block", Some(block), "block")?;
        let [own_address, size, mut requested, state, mut frames, history] =
            self.fields(items, BLOCK);
        if let Some(history) = history {
            let (place, mut items) = self.list(place, "history", Some(history), "history")?;
            if let Some(latest) = items.next(&self.values) {
                let (_, items) = self.dict(place, "entry", Some(latest), "history entry")?;
                let [real_size, its_frames] = self.fields(items, ["real_size", "frames"]);
                requested = requested.or(real_size);
                frames = frames.or(its_frames);
            }
        }
        let address = match own_address {
            Some(own) => self.integer(place, "address", Some(own))?,
            None => address,
        };
        let size_bytes = self.size(place, "size", size)?;
        let state = match self.text(place, "state", state)? {
            b"active_allocated" => BlockState::Active,
            b"active_awaiting_free" | b"active_pending_free" => BlockState::AwaitingFree,
            b"inactive" => BlockState::Inactive,
            _ => return Err(place.wrong("state", Expected::State)),
        };
        Ok(SegmentBlock {
            address,
            size_bytes,
            requested_bytes: match requested {
                Some(requested) => self.size(place, "requested_size", Some(requested))?,
                None => size_bytes,
            },
            state,
            site: self.site(place, frames)?,
        })
    }
}
