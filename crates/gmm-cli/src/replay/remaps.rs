//! What scarce memory costs the stitching allocator: frames that are mapped and unmapped on devices
//! hardly larger than what lives, and how long a card would take for that.

use anyhow::Result;
use gmm_alloc::Stats;
use gmm_core::PAGE_SIZE;
use serde::Serialize;

use super::allocators::Recipe;
use super::measure::runs;
use super::program::Program;

/// Capacities by peak live memory.
const TIMES: [f64; 4] = [1.005, 1.02, 1.05, 1.10];

/// What an A100 takes, in microseconds: to make a handle for a frame of 2 MiB (`cuMemCreate`), to
/// map it (`cuMemMap`), to set access (`cuMemSetAccess`), to unmap it (`cuMemUnmap`). Measured by
/// others, one frame a call.
const HANDLE_US: f64 = 193.0;
const MAP_US: f64 = 1.5;
const ACCESS_US: f64 = 36.0;
const UNMAP_US: f64 = 26.0;

/// The price at one capacity.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Remaps {
    /// The capacity by peak live memory.
    pub(super) times_peak_live: f64,
    pub(super) capacity_bytes: u64,
    /// The counts; none if it does not run there.
    #[serde(flatten)]
    pub(super) price: Option<Price>,
}

/// What was mapped, and what a card would take.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Price {
    pub(super) frames_mapped: u64,
    pub(super) frames_unmapped: u64,
    pub(super) map_runs: u64,
    pub(super) unmap_runs: u64,
    /// Handles, made once: every allocator's, that maps memory itself, in milliseconds.
    pub(super) a100_handles_ms: f64,
    /// Mapping and unmapping, if a call that takes a range costs as much as one for a frame, in
    /// milliseconds: the least.
    pub(super) a100_remaps_least_ms: f64,
    /// The same if each frame costs a call of its own: the most.
    pub(super) a100_remaps_most_ms: f64,
}

impl Price {
    fn of(stats: &Stats) -> Self {
        let sum = |mapped: u64, access: u64, unmapped: u64| {
            let us = mapped as f64 * MAP_US + access as f64 * ACCESS_US;
            (us + unmapped as f64 * UNMAP_US) / 1e3
        };
        let Stats { frames_mapped, frames_unmapped, map_runs, unmap_runs, .. } = *stats;
        Self {
            frames_mapped,
            frames_unmapped,
            map_runs,
            unmap_runs,
            a100_handles_ms: (stats.peak_reserved_bytes / PAGE_SIZE) as f64 * HANDLE_US / 1e3,
            // A handle is mapped by a call of its own; the others take ranges.
            a100_remaps_least_ms: sum(frames_mapped, map_runs, unmap_runs),
            a100_remaps_most_ms: sum(frames_mapped, frames_mapped, frames_unmapped),
        }
    }
}

/// The price of each capacity.
pub(super) fn remaps(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    peak_live_bytes: u64,
) -> Result<Vec<Remaps>> {
    let at = |times_peak_live: f64| {
        let capacity = (peak_live_bytes as f64 * times_peak_live) as u64;
        let capacity_bytes = (capacity / PAGE_SIZE).max(1) * PAGE_SIZE;
        let stats = runs(program, recipe, capacity_bytes)?;
        Ok(Remaps { times_peak_live, capacity_bytes, price: stats.as_ref().map(Price::of) })
    };
    TIMES.into_iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_takes_so_long() {
        let stats = Stats {
            frames_mapped: 10,
            frames_unmapped: 4,
            map_runs: 2,
            unmap_runs: 1,
            peak_reserved_bytes: 6 * PAGE_SIZE,
            ..Stats::default()
        };
        let price = Price::of(&stats);
        assert!((price.a100_handles_ms - 6.0 * 0.193).abs() < 1e-9);
        assert!((price.a100_remaps_least_ms - (0.015 + 0.072 + 0.026)).abs() < 1e-9);
        assert!((price.a100_remaps_most_ms - (0.015 + 0.36 + 0.104)).abs() < 1e-9);
    }
}
