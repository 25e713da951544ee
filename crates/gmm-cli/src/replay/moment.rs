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

impl Picture {
    /// The length of each hole: mapped, and between blocks or at the end of what is mapped. In bytes.
    pub(super) fn holes(&self) -> Vec<u64> {
        let mut holes = Vec::new();
        let mut blocks = self.blocks.iter().map(|(range, _)| range).peekable();
        for part in self.segments.iter().flat_map(|segment| &segment.mapped) {
            let mut at = part.start;
            while let Some(block) = blocks.next_if(|block| block.start < part.end) {
                holes.push(block.start.saturating_sub(at));
                at = at.max(block.end);
            }
            holes.push(part.end.saturating_sub(at));
        }
        holes.retain(|&hole| hole > 0);
        holes
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_what_no_block_has() {
        let segment = |mapped: &[(u64, u64)]| {
            let mapped = mapped.iter().map(|&(start, end)| start..end).collect();
            Mapped { mapped, is_whole: false }
        };
        let picture = Picture {
            segments: vec![segment(&[(10, 20), (30, 50)]), segment(&[(50, 60)])],
            blocks: vec![(12..20, 0), (30..35, 1), (40..45, 2), (50..60, 3)],
            reserved_bytes: 40,
            live_bytes: 28,
        };
        // A segment's end is a hole's end.
        assert_eq!(picture.holes(), [2, 5, 5]);
    }
}
