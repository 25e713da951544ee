//! What an allocator counts.

/// Counts of an allocator since it was made. Sizes are in bytes, frames are 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Allocations that are live.
    pub live_blocks: u64,
    /// The sum of the sizes they were requested with.
    pub live_bytes: u64,
    /// The most that [`Stats::live_bytes`] has been.
    pub peak_live_bytes: u64,
    /// Device memory held: mapped, or ready to be.
    pub reserved_bytes: u64,
    /// The most that [`Stats::reserved_bytes`] has been.
    pub peak_reserved_bytes: u64,
    /// Ranges of addresses held that memory was mapped in: what a caching allocator calls
    /// segments.
    pub segments: u64,
    /// Allocations made.
    pub allocations: u64,
    /// Allocations freed.
    pub frees: u64,
    /// Frames that were mapped, each time counted.
    pub frames_mapped: u64,
    /// Frames that were unmapped, each time counted.
    pub frames_unmapped: u64,
    /// Calls that mapped a run of pages.
    pub map_runs: u64,
    /// Calls that unmapped a run of pages.
    pub unmap_runs: u64,
    /// How often one stream was made to wait for another, so that memory could change hands.
    pub stream_orders: u64,
    /// How often the caller had to wait for the device.
    pub host_waits: u64,
}

impl Stats {
    /// Peak live bytes by peak reserved bytes: 1 is perfect. 1 too where nothing was allocated.
    pub fn utilisation(&self) -> f64 {
        match self.peak_reserved_bytes {
            0 => 1.0,
            reserved => self.peak_live_bytes as f64 / reserved as f64,
        }
    }

    pub(crate) fn allocated(&mut self, requested_bytes: u64) {
        self.allocations += 1;
        self.live_blocks += 1;
        self.live_bytes += requested_bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
    }

    pub(crate) fn freed(&mut self, requested_bytes: u64) {
        self.frees += 1;
        self.live_blocks -= 1;
        self.live_bytes -= requested_bytes;
    }
}
