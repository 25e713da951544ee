//! The moment of a replay that is worth a look: where memory ran out, else where most was reserved.

use std::ops::Range;

use anyhow::{Context, Result};

use super::allocators::Recipe;
use super::player::Player;
use super::program::Program;
use super::watched::{Mapped, Watch};

/// Blocks and segments at a moment. Addresses are in bytes.
pub(super) struct Picture {
    /// What is mapped, by address.
    pub(super) segments: Vec<Mapped>,
    /// Where each block lies that is alive, and its number; by address.
    pub(super) blocks: Vec<(Range<u64>, u32)>,
    pub(super) reserved_bytes: u64,
    pub(super) live_bytes: u64,
}

/// What an allocator has after so many operations, or before the one that gets no memory if that
/// comes first.
pub(super) fn picture(
    program: &Program<'_>,
    recipe: Recipe<'_>,
    capacity_bytes: u64,
    nr_operations: usize,
) -> Result<Picture> {
    let watch = Watch::default();
    let mut player = Player::new(program, recipe.make(capacity_bytes, Some(watch.clone())));
    player.run_until(nr_operations, |_| ()).context("the replay failed")?;
    let range = |at: gmm_alloc::Allocation| at.addr.0..at.addr.0 + at.usable_bytes;
    let mut blocks: Vec<_> = player.alive().map(|(block, at)| (range(at), block)).collect();
    blocks.sort_by_key(|(range, _)| range.start);
    let stats = player.stats();
    Ok(Picture {
        segments: watch.segments(),
        blocks,
        reserved_bytes: stats.reserved_bytes,
        live_bytes: stats.live_bytes,
    })
}
