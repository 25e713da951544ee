//! Plots in text, of block characters.

use super::timeline::Timeline;

/// Parts of a character's height.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Memory that is reserved and not live.
const SHADE: char = '░';

/// A column of a plot; none where a replay had ended before.
type Column = Option<(u64, u64)>;

/// Live memory, filled, and what is reserved above it, shaded: lines from the top down, each as
/// long as there are columns. The top of the plot stands for `most_bytes`.
pub(super) fn area(
    timeline: &Timeline,
    width: usize,
    height: usize,
    most_bytes: u64,
) -> Vec<String> {
    let columns = columns(timeline, width);
    let eighths = |bytes: u64| {
        let parts = bytes as f64 / most_bytes.max(1) as f64 * (height * 8) as f64;
        parts.round() as usize
    };
    let line = |row: usize| {
        let below = (height - 1 - row) * 8;
        let character = |column: &Column| {
            let Some((live, reserved)) = column else { return ' ' };
            match eighths(*live).saturating_sub(below).min(8) {
                0 if eighths(*reserved) > below => SHADE,
                part => EIGHTHS[part],
            }
        };
        columns.iter().map(character).collect()
    };
    (0..height).map(line).collect()
}

/// Shares from 0 to 1, one line high.
pub(super) fn spark(shares: &[f64], width: usize) -> String {
    let character = |column: usize| {
        let range = stretches_of(column, width, shares.len());
        let most = shares.get(range).into_iter().flatten().copied().fold(0.0, f64::max);
        EIGHTHS[((most * 8.0).round() as usize).clamp(1, 8)]
    };
    if shares.is_empty() { String::new() } else { (0..width).map(character).collect() }
}

fn columns(timeline: &Timeline, width: usize) -> Vec<Column> {
    let stretches = timeline.stretches();
    let nr_stretches = timeline.nr_stretches();
    let column = |column: usize| {
        let part = stretches.get(stretches_of(column, width, nr_stretches))?;
        let live = part.iter().map(|stretch| stretch.live_bytes).max()?;
        Some((live, part.iter().map(|stretch| stretch.reserved_bytes).max()?))
    };
    (0..width).map(column).collect()
}

/// Which of `nr` stretches a column of `width` shows: at least one.
fn stretches_of(column: usize, width: usize, nr: usize) -> std::ops::Range<usize> {
    let start = column * nr / width.max(1);
    start..((column + 1) * nr / width.max(1)).max(start + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_is_filled_and_reserved_shaded() {
        let mut timeline = Timeline::new(4);
        for (live, reserved) in [(0, 0), (4, 8), (8, 16), (16, 16)] {
            timeline.add(live, reserved);
        }
        assert_eq!(area(&timeline, 4, 2, 16), ["  ░█", " ▄██"]);
        // More columns than stretches, and fewer.
        assert_eq!(area(&timeline, 8, 1, 16), ["  ▂▂▄▄██"]);
        assert_eq!(area(&timeline, 2, 1, 16), ["▂█"]);
    }

    #[test]
    fn a_replay_that_ran_out_leaves_the_rest_blank() {
        let mut timeline = Timeline::new(4);
        timeline.add(8, 8);
        timeline.add(4, 8);
        assert_eq!(area(&timeline, 4, 1, 8), ["█▄  "]);
    }

    #[test]
    fn shares_in_one_line() {
        assert_eq!(spark(&[0.0, 0.5, 1.0], 3), "▁▄█");
        assert_eq!(spark(&[0.0, 0.5, 1.0, 0.0], 2), "▄█");
        assert_eq!(spark(&[], 3), "");
    }
}
