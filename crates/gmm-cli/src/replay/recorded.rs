//! What the allocator of the recording had, as far as the recording says: what it reserved, and how
//! it stood when a request failed.

use std::collections::BTreeMap;
use std::ops::Range;

use gmm_alloc::Cause;
use gmm_trace::{Event, OutOfMemory, Recording};

use super::ranges::Ranges;
use super::timeline::Timeline;

/// To what PyTorch rounds requests.
const GRANULARITY_BYTES: u64 = 512;

/// What was reserved and live over the operations of a replay without retries. None if the recording
/// has no segments.
pub(super) fn timeline(recording: &Recording, nr_operations: usize) -> Option<Timeline> {
    let mut reserved = i128::from(recording.reserved_at_start_bytes()?);
    if recording.segments().is_empty() && reserved == 0 {
        return None;
    }
    let at_start = recording.blocks_at_start();
    let mut live: u64 = at_start.iter().map(|block| block.size_bytes).sum();
    let mut timeline = Timeline::new(nr_operations);
    let bytes = |reserved: i128| u64::try_from(reserved).unwrap_or(0);
    at_start.iter().for_each(|_| timeline.add(live, bytes(reserved)));
    for &event in recording.events() {
        reserved += recording.reserved_change_bytes(event);
        match event {
            Event::Allocate(block) => live += recording.block(block).size_bytes,
            Event::FreeCompleted(block) => live -= recording.block(block).size_bytes,
            Event::Use(_) => {}
            _ => continue,
        }
        timeline.add(live, bytes(reserved));
    }
    Some(timeline)
}

/// A request that failed, and how memory stood then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) request: OutOfMemory,
    /// Which event it is, counted from 1.
    pub(super) event: usize,
    pub(super) cause: Cause,
    /// What was alive, as it was asked for.
    pub(super) live_bytes: u64,
    pub(super) reserved_bytes: u64,
    /// Free in what was reserved; holes are a little smaller where a block has more than it asked
    /// for.
    pub(super) free_bytes: u64,
    pub(super) largest_hole_bytes: u64,
    /// The blocks that were alive.
    pub(super) alive: Vec<u32>,
}

impl Failure {
    /// All that the allocator could have had: what it had, and what its device said was free. None if
    /// the recording does not say.
    pub(super) fn card_bytes(&self) -> Option<u64> {
        let free = self.request.device_free_bytes.filter(|_| self.knows_segments());
        free.map(|free| self.reserved_bytes.saturating_add(free))
    }

    /// Whether the recording says what was reserved: what lives lies in it.
    pub(super) fn knows_segments(&self) -> bool {
        self.reserved_bytes > 0 && self.reserved_bytes >= self.live_bytes
    }

    /// What an allocator that wastes nothing needs for the request beside what was live.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.request.size_bytes)
    }
}

/// The requests that failed. Empty if the recording has no addresses.
pub(super) fn failures(recording: &Recording) -> Vec<Failure> {
    if !recording.has_addresses() {
        return Vec::new();
    }
    let mut found = Vec::new();
    // From the end, whose segments are known, back.
    let mut device = Device::at_end(recording);
    for (at, event) in recording.events().iter().enumerate().rev() {
        match *event {
            Event::OutOfMemory(nr) => {
                let request = recording.out_of_memory()[nr as usize];
                found.push(device.failure(recording, request, at));
            }
            event => device.undo(recording, event),
        }
    }
    found.reverse();
    found
}

/// What is reserved at a point of a recording, and what is alive.
struct Device {
    /// Segments that do not grow, by their start: neighbours are not one.
    whole: BTreeMap<u64, u64>,
    /// What is mapped of those that grow.
    grown: Ranges,
    alive: Vec<bool>,
}

impl Device {
    fn at_end(recording: &Recording) -> Self {
        let mut alive = vec![true; recording.blocks().len()];
        for event in recording.events() {
            if let Event::FreeCompleted(block) = event {
                alive[block.index()] = false;
            }
        }
        let mut device = Self { whole: BTreeMap::new(), grown: Ranges::default(), alive };
        for segment in recording.segments() {
            let range = range(segment.address, segment.size_bytes);
            if segment.is_expandable {
                device.grown.insert(range);
            } else {
                device.whole.insert(range.start, range.end);
            }
        }
        device
    }

    fn undo(&mut self, recording: &Recording, event: Event) {
        let change = |nr: u32| {
            let change = recording.segment_changes()[nr as usize];
            range(change.address, change.size_bytes)
        };
        match event {
            Event::Allocate(block) => self.alive[block.index()] = false,
            Event::FreeCompleted(block) => self.alive[block.index()] = true,
            Event::SegmentAlloc(nr) => {
                self.whole.remove(&change(nr).start);
            }
            Event::SegmentFree(nr) => {
                let Range { start, end } = change(nr);
                self.whole.insert(start, end);
            }
            Event::SegmentMap(nr) => self.grown.remove(change(nr)),
            Event::SegmentUnmap(nr) => self.grown.insert(change(nr)),
            _ => {}
        }
    }

    fn failure(&self, recording: &Recording, request: OutOfMemory, at: usize) -> Failure {
        let alive: Vec<u32> =
            (0..).zip(&self.alive).filter_map(|(block, alive)| alive.then_some(block)).collect();
        let whole = self.whole.iter().map(|(&start, &end)| start..end);
        let segments: Vec<Range<u64>> = whole.chain(self.grown.iter()).collect();
        let mut free = Ranges::default();
        segments.iter().for_each(|segment| free.insert(segment.clone()));
        let mut live_bytes = 0;
        for &block in &alive {
            let block = recording.blocks()[block as usize];
            live_bytes += block.size_bytes;
            let len = block.size_bytes.max(1).next_multiple_of(GRANULARITY_BYTES);
            free.remove(range(block.address, len));
        }
        let holes = segments.iter().flat_map(|segment| free.within(segment.clone()));
        let (mut free_bytes, mut largest_hole_bytes) = (0, 0);
        for hole in holes {
            let len = hole.end - hole.start;
            free_bytes += len;
            largest_hole_bytes = largest_hole_bytes.max(len);
        }
        let available = free_bytes + request.device_free_bytes.unwrap_or(0);
        Failure {
            request,
            event: at + 1,
            cause: if available < request.size_bytes {
                Cause::Exhausted
            } else {
                Cause::Fragmented
            },
            live_bytes,
            reserved_bytes: segments
                .iter()
                .fold(0, |sum: u64, segment| sum.saturating_add(segment.end - segment.start)),
            free_bytes,
            largest_hole_bytes,
            alive,
        }
    }
}

fn range(address: u64, size_bytes: u64) -> Range<u64> {
    address..address.saturating_add(size_bytes)
}
