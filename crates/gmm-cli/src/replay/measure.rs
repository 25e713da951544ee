//! What one allocator makes of one program.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gmm_alloc::{Stats, smallest_capacity};
use gmm_core::PAGE_SIZE;

use super::allocators::{MAX_CAPACITY_BYTES, Recipe};
use super::player::{Ending, Player};
use super::program::Program;
use super::timeline::Timeline;

/// What replays have if no capacity is given: that of an H200...
const CARD_BYTES: u64 = 141 << 30;
/// ...or so many times the peak of live memory, if that is more.
const CARD_TIMES_PEAK: u64 = 4;

/// Timing is repeated until it has taken so long, and so often at most: the quickest run counts.
const TIMING: (Duration, u32) = (Duration::from_millis(200), 5);

/// The capacity of replays for which none is given.
pub(super) fn ample_capacity(peak_live_bytes: u64) -> u64 {
    peak_live_bytes.saturating_mul(CARD_TIMES_PEAK).clamp(CARD_BYTES, MAX_CAPACITY_BYTES)
}

/// A replay, watched.
pub(super) struct Replayed {
    pub(super) ending: Ending,
    pub(super) stats: Stats,
    pub(super) timeline: Timeline,
    /// The most segments that were held at once.
    pub(super) peak_segments: u64,
    /// After how many operations reserved memory first was at its peak.
    pub(super) peak_reserved_at: usize,
}

/// Replays a program on a device with this capacity.
pub(super) fn replay(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    capacity_bytes: u64,
) -> Result<Replayed> {
    let mut player = Player::new(program, recipe.make(capacity_bytes, None));
    let mut timeline = Timeline::new(program.len());
    let (mut peak_segments, mut peak_reserved, mut peak_reserved_at) = (0, 0, 0);
    let ending = player.run(|player| {
        let stats = player.stats();
        timeline.add_stats(&stats);
        peak_segments = peak_segments.max(stats.segments);
        if stats.reserved_bytes > peak_reserved {
            (peak_reserved, peak_reserved_at) = (stats.reserved_bytes, player.nr_played());
        }
    });
    let ending = ending.context("the replay failed")?;
    let stats = player.stats();
    Ok(Replayed { ending, stats, timeline, peak_segments, peak_reserved_at })
}

/// Whether a program runs on a device with this capacity.
pub(super) fn runs(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    capacity_bytes: u64,
) -> Result<Option<Stats>> {
    let mut player = Player::new(program, recipe.make(capacity_bytes, None));
    let ending = player.run(|_| ()).context("the replay failed")?;
    Ok((ending == Ending::Complete).then(|| player.stats()))
}

/// The smallest device that a program runs on, to the frame. None if it does not run on the largest
/// that replays can have.
pub(super) fn find_capacity(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    peak_live_bytes: u64,
) -> Result<Option<u64>> {
    let mut failure = None;
    let least = smallest_capacity(peak_live_bytes.max(PAGE_SIZE), MAX_CAPACITY_BYTES, |capacity| {
        match runs(program, recipe, capacity) {
            Ok(stats) => stats.is_some(),
            Err(error) => {
                failure = Some(error);
                // Whatever it answers is thrown away.
                true
            }
        }
    });
    failure.map_or(Ok(least), Err)
}

/// Nanoseconds that an operation takes, nothing being mapped but counted.
pub(super) fn time_per_operation(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    capacity_bytes: u64,
) -> Result<f64> {
    let (enough, most_runs) = TIMING;
    let mut best = f64::INFINITY;
    let mut spent = Duration::ZERO;
    for _ in 0..most_runs {
        let mut player = Player::new(program, recipe.make(capacity_bytes, None));
        let begun = Instant::now();
        player.run(|_| ()).context("the replay failed")?;
        let took = begun.elapsed();
        spent += took;
        best = best.min(took.as_nanos() as f64 / player.nr_played().max(1) as f64);
        if spent > enough {
            break;
        }
    }
    Ok(best)
}
