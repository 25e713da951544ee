//! What is known of one allocator on one device of a file: the object that `--json` prints.

use gmm_alloc::{Cause, OutOfMemory};
use serde::Serialize;

use super::advice::Advice;
use super::measure::Replayed;
use super::player::Ending;
use super::remaps::Remaps;
use super::timeline::Timeline;

/// A line of `--json`. Sizes are in bytes; frames have 2 MiB.
#[derive(Serialize)]
pub(super) struct Record {
    pub(super) file: String,
    pub(super) device: u32,
    pub(super) allocator: &'static str,
    /// How many allocations, frees and uses by other streams were replayed, or would have been.
    pub(super) operations: usize,
    /// Of the device that it was replayed on.
    pub(super) capacity_bytes: u64,
    /// Events and blocks of the recording that don't fit together with the rest.
    pub(super) gaps: u64,
    /// The largest sum of the sizes that are asked for at once; with `--capacity`, with the requests
    /// that failed when it was recorded.
    pub(super) peak_live_bytes: u64,
    pub(super) peak_reserved_bytes: u64,
    /// Peak live by peak reserved memory, as far as the replay came.
    pub(super) utilisation: f64,
    /// The mean over all operations of the share of reserved memory that was not live.
    pub(super) mean_fragmentation: f64,
    /// The most at once.
    pub(super) segments: u64,
    pub(super) min_capacity_bytes: Option<u64>,
    pub(super) capacity_utilisation: Option<f64>,
    pub(super) frames_mapped: u64,
    pub(super) frames_unmapped: u64,
    pub(super) map_runs: u64,
    pub(super) unmap_runs: u64,
    pub(super) ns_per_op: f64,
    /// The operation that got no memory, counted from 1.
    pub(super) out_of_memory_at: Option<usize>,
    pub(super) out_of_memory: Option<Failure>,
    pub(super) remaps: Option<Vec<Remaps>>,
    /// With the record of the allocator that the program had (else of `pytorch`, or the first), where
    /// memory ran out or nearly did.
    pub(super) advice: Option<Advice>,
    /// `[operation, live bytes, reserved bytes]`: the most up to this operation since the one
    /// before.
    timeline: Vec<[u64; 3]>,
    /// After how many operations reserved memory first was at its peak.
    #[serde(skip)]
    pub(super) peak_reserved_at: usize,
    #[serde(skip)]
    pub(super) shown: Timeline,
}

/// A request that got no memory, in JSON.
#[derive(Clone, Serialize)]
pub(super) struct Failure {
    pub(super) requested_bytes: u64,
    pub(super) stream: u64,
    pub(super) cause: &'static str,
    pub(super) live_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) largest_hole_bytes: u64,
}

impl From<OutOfMemory> for Failure {
    fn from(why: OutOfMemory) -> Self {
        Self {
            requested_bytes: why.requested_bytes,
            stream: why.stream.0,
            cause: match why.cause {
                Cause::Exhausted => "exhausted",
                Cause::Fragmented => "fragmented",
            },
            live_bytes: why.live_bytes,
            reserved_bytes: why.reserved_bytes,
            free_bytes: why.free_bytes,
            largest_hole_bytes: why.largest_hole_bytes,
        }
    }
}

/// Which replay a record is of.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) file: &'a str,
    pub(super) device: u32,
    pub(super) gaps: u64,
    pub(super) peak_live_bytes: u64,
    pub(super) capacity_bytes: u64,
}

impl Record {
    /// Of a replay; what was not measured is left empty.
    pub(super) fn new(
        subject: Subject<'_>,
        allocator: &'static str,
        replayed: Replayed,
        ns_per_op: f64,
    ) -> Self {
        let Replayed { ending, stats, timeline, peak_segments, peak_reserved_at } = replayed;
        let points = timeline.stretches().iter().enumerate().map(|(nr, stretch)| {
            [timeline.last_operation(nr) as u64, stretch.live_bytes, stretch.reserved_bytes]
        });
        Self {
            file: subject.file.to_owned(),
            device: subject.device,
            allocator,
            operations: timeline.nr_operations(),
            capacity_bytes: subject.capacity_bytes,
            gaps: subject.gaps,
            peak_live_bytes: subject.peak_live_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            utilisation: stats.utilisation(),
            mean_fragmentation: timeline.mean_fragmentation(),
            segments: peak_segments,
            min_capacity_bytes: None,
            capacity_utilisation: None,
            frames_mapped: stats.frames_mapped,
            frames_unmapped: stats.frames_unmapped,
            map_runs: stats.map_runs,
            unmap_runs: stats.unmap_runs,
            ns_per_op,
            out_of_memory_at: ending.out_of_memory_at(),
            out_of_memory: match ending {
                Ending::Complete => None,
                Ending::OutOfMemory { why, .. } => Some(why.into()),
            },
            remaps: None,
            advice: None,
            timeline: points.collect(),
            peak_reserved_at,
            shown: timeline,
        }
    }

    /// Sets the smallest device that it runs on.
    pub(super) fn set_min_capacity(&mut self, bytes: Option<u64>) {
        self.min_capacity_bytes = bytes;
        self.capacity_utilisation = bytes.map(|bytes| self.peak_live_bytes as f64 / bytes as f64);
    }
}
