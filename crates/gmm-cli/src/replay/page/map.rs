//! The memory of an allocator at one moment as SVG: segment after segment, in rows of equal size.

use std::fmt::Write as _;
use std::ops::Range;

use crate::replay::moment::Picture;

const WIDTH: f64 = 960.0;
const ROW: f64 = 16.0;
const GAP: f64 = 3.0;

/// Blocks narrower than this are drawn as one with their neighbours; so a picture of a million of
/// them is no larger than it can be seen.
const NARROW: f64 = 2.5;
/// Gaps narrower than this can't be seen.
const UNSEEN: f64 = 0.4;

/// Draws a picture. `class` gives a block's class in the style sheet.
pub(super) fn map(picture: &Picture, row_bytes: u64, class: impl Fn(u32) -> String) -> String {
    let parts = Parts::of(picture);
    let mut canvas = Canvas { svg: String::new(), row_bytes: row_bytes.max(1) as f64 };
    for part in &parts.0 {
        canvas.bar(part.offset, part.offset + (part.bytes.end - part.bytes.start), "free");
    }
    let pixel = canvas.row_bytes / WIDTH;
    // Blocks that are to be drawn as one.
    let mut pending: Option<(Range<u64>, String)> = None;
    for (bytes, block) in &picture.blocks {
        let Some(start) = parts.offset(bytes.start) else { continue };
        let end = start + (bytes.end - bytes.start);
        let class = class(*block);
        let is_narrow = ((end - start) as f64) < NARROW * pixel;
        match &mut pending {
            Some((range, same))
                if is_narrow
                    && (*same == class || ((range.end - range.start) as f64) < NARROW * pixel)
                    && (start.saturating_sub(range.end) as f64) < UNSEEN * pixel =>
            {
                range.end = range.end.max(end);
            }
            pending => {
                if let Some((range, class)) = pending.replace((start..end, class)) {
                    canvas.bar(range.start, range.end, &class);
                }
            }
        }
    }
    if let Some((range, class)) = pending {
        canvas.bar(range.start, range.end, &class);
    }
    for segment in parts.segment_starts() {
        canvas.border(segment);
    }
    let rows = (parts.total() as f64 / canvas.row_bytes).ceil().max(1.0);
    let height = rows * (ROW + GAP);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"memory map\">\n{}</svg>",
        canvas.svg
    )
}

/// What is mapped, side by side.
struct Parts(Vec<Part>);

struct Part {
    bytes: Range<u64>,
    /// Where it is drawn, in bytes from the beginning of the picture.
    offset: u64,
    begins_segment: bool,
}

impl Parts {
    fn of(picture: &Picture) -> Self {
        let mut parts = Vec::new();
        let mut offset = 0;
        for segment in &picture.segments {
            for (nr, bytes) in segment.mapped.iter().enumerate() {
                parts.push(Part { bytes: bytes.clone(), offset, begins_segment: nr == 0 });
                offset += bytes.end - bytes.start;
            }
        }
        Self(parts)
    }

    /// Where an address is drawn.
    fn offset(&self, address: u64) -> Option<u64> {
        let after = self.0.partition_point(|part| part.bytes.start <= address);
        let part = &self.0[after.checked_sub(1)?];
        (address < part.bytes.end).then(|| part.offset + (address - part.bytes.start))
    }

    fn segment_starts(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().filter(|part| part.begins_segment).map(|part| part.offset)
    }

    fn total(&self) -> u64 {
        self.0.last().map_or(0, |part| part.offset + (part.bytes.end - part.bytes.start))
    }
}

struct Canvas {
    svg: String,
    row_bytes: f64,
}

impl Canvas {
    /// A bar from one offset to another, over as many rows as it takes.
    fn bar(&mut self, start: u64, end: u64, class: &str) {
        let (mut at, end) = (start as f64 / self.row_bytes, end as f64 / self.row_bytes);
        while at < end {
            let row = at.floor();
            let until = end.min(row + 1.0);
            let _ = writeln!(
                self.svg,
                "<rect class=\"{class}\" x=\"{:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{ROW}\"/>",
                (at - row) * WIDTH,
                row * (ROW + GAP),
                ((until - at) * WIDTH).max(0.1),
            );
            at = until;
        }
    }

    /// The beginning of a segment.
    fn border(&mut self, offset: u64) {
        let at = offset as f64 / self.row_bytes;
        let (x, y) = (at.fract() * WIDTH, at.floor() * (ROW + GAP));
        let _ =
            writeln!(self.svg, "<path class=\"border\" d=\"M{x:.2} {}v{}\"/>", y - 1.5, ROW + 3.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::watched::Mapped;

    fn segment(mapped: &[(u64, u64)]) -> Mapped {
        let mapped = mapped.iter().map(|&(start, end)| start..end).collect();
        Mapped { mapped, is_whole: false }
    }

    #[test]
    fn blocks_lie_in_their_segments() {
        let picture = Picture {
            // Two segments; the second has a hole of addresses, which is not drawn.
            segments: vec![segment(&[(1000, 1960)]), segment(&[(5000, 5480), (9000, 9480)])],
            blocks: vec![(1000..1480, 0), (9000..9240, 1), (9240..9480, 1)],
            reserved_bytes: 1920,
            live_bytes: 960,
        };
        let svg = map(&picture, 960, |block| format!("b{block}"));
        let rects = |class: &str| svg.matches(&format!("rect class=\"{class}\"")).count();
        assert_eq!((rects("free"), rects("b0"), rects("b1")), (3, 1, 2));
        let first = "class=\"b0\" x=\"0.00\" y=\"0\" width=\"480.00\"";
        let last = "class=\"b1\" x=\"720.00\" y=\"19\" width=\"240.00\"";
        assert!(svg.contains(first) && svg.contains(last), "{svg}");
        assert_eq!(svg.matches("class=\"border\"").count(), 2);
    }

    #[test]
    fn what_crosses_rows_is_cut_and_small_blocks_are_one() {
        let blocks = (0..1000).map(|nr| (nr * 10..nr * 10 + 10, 0)).collect();
        let picture = Picture {
            segments: vec![segment(&[(0, 10_000)])],
            blocks,
            reserved_bytes: 10_000,
            live_bytes: 10_000,
        };
        let svg = map(&picture, 5000, |_| "live".to_owned());
        assert_eq!(svg.matches("class=\"live\"").count(), 2, "{svg}");
    }
}
