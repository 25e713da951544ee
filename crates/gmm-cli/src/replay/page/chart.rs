//! Memory over time as SVG: what lived, and what each allocator reserved for it.

use std::fmt::Write as _;

use gmm::display_bytes;

use crate::page::escape;
use crate::replay::timeline::Timeline;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// A capacity is drawn if it is not so far above everything else that it would press that flat.
const CAPACITY_IN_SIGHT: f64 = 1.6;

/// One line.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// Its class in the style sheet.
    pub(super) class: String,
    pub(super) timeline: &'a Timeline,
}

/// Live memory as an area (of the line that goes on longest: a replay that ran out has ended), reserved memory of all as lines. `marked` is the number
/// of an operation that is worth a mark.
pub(super) fn chart(lines: &[Line<'_>], capacity_bytes: Option<u64>, marked: usize) -> String {
    let longest = lines.iter().rev().max_by_key(|line| line.timeline.stretches().len());
    let Some(longest) = longest else { return String::new() };
    let stretches = lines.iter().flat_map(|line| line.timeline.stretches());
    let most = stretches.map(|s| s.reserved_bytes.max(s.live_bytes)).max().unwrap_or(0).max(1);
    let capacity = capacity_bytes.filter(|&bytes| bytes as f64 <= most as f64 * CAPACITY_IN_SIGHT);
    let top = most.max(capacity.unwrap_or(0)) as f64 * 1.04;
    let y = |bytes: u64| HEIGHT - BOTTOM - bytes as f64 / top * (HEIGHT - BOTTOM - TOP);
    let nr = longest.timeline.nr_operations().max(1) as f64;
    let x = |operation: usize| LEFT + operation as f64 / nr * (WIDTH - LEFT - RIGHT);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"live and reserved memory \
         over {} operations\">\n",
        longest.timeline.nr_operations()
    );
    for tick in ticks(top) {
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
             <text class=\"label\" x=\"{2}\" y=\"{3:.1}\">{4}</text>",
            WIDTH - RIGHT,
            y(tick),
            LEFT - 8.0,
            y(tick) + 4.0,
            display_bytes(tick)
        );
    }
    let mut area = format!("M{LEFT} {:.1}", y(0));
    steps(&mut area, longest.timeline, x, y, |stretch| stretch.0);
    let _ = writeln!(svg, "<path class=\"live\" d=\"{area}V{:.1}Z\"/>", y(0));
    for line in lines {
        let mut path = format!("M{LEFT} {:.1}", y(0));
        steps(&mut path, line.timeline, x, y, |stretch| stretch.1);
        let name = escape(line.name);
        let _ = writeln!(
            svg,
            "<path class=\"line {}\" d=\"{path}\"><title>reserved: {name}</title></path>",
            line.class
        );
    }
    if let Some(capacity) = capacity {
        let _ = writeln!(
            svg,
            "<line class=\"one\" x1=\"{LEFT}\" x2=\"{0}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
             <text class=\"note\" x=\"{2}\" y=\"{3:.1}\">capacity {4}</text>",
            WIDTH - RIGHT,
            y(capacity),
            LEFT + 6.0,
            y(capacity) - 5.0,
            display_bytes(capacity)
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"mark\" d=\"M{:.1} {:.1}V{TOP}\"/>\
         <text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">operations: allocations and frees, in order \
         (dotted: the moment shown below, {marked})</text>\n\
         <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{nr}</text>\n</svg>",
        x(marked),
        y(0),
        LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
        HEIGHT - 8.0,
        WIDTH - RIGHT,
        HEIGHT - BOTTOM + 16.0,
    );
    svg
}

/// A step for each stretch, as high as its most.
fn steps(
    path: &mut String,
    timeline: &Timeline,
    x: impl Fn(usize) -> f64,
    y: impl Fn(u64) -> f64,
    of: impl Fn((u64, u64)) -> u64,
) {
    for (nr, stretch) in timeline.stretches().iter().enumerate() {
        let height = y(of((stretch.live_bytes, stretch.reserved_bytes)));
        let _ = write!(path, "V{height:.1}H{:.1}", x(timeline.last_operation(nr)));
    }
}

/// Round numbers of bytes from 0 to `top`: four to eight.
fn ticks(top: f64) -> Vec<u64> {
    let step = 2f64.powf((top / 8.0).log2().ceil()).max(1.0) as u64;
    (0..=8).map(|nr| nr * step).take_while(|&tick| tick as f64 <= top).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        for top in [1e3, 3e9, 17.3e9, 5e10, 1.1e11] {
            let ticks = ticks(top);
            assert!((4..=9).contains(&ticks.len()), "{top}: {ticks:?}");
            assert!(ticks[1].is_power_of_two());
        }
    }

    #[test]
    fn lines_are_as_high_as_what_they_show() {
        let mut timeline = Timeline::new(2);
        timeline.add(50, 100);
        timeline.add(100, 100);
        let class = "a".to_owned();
        let svg = chart(&[Line { name: "a<b", class, timeline: &timeline }], Some(100), 1);
        assert!(svg.contains("a&lt;b") && svg.contains("capacity 100 B"));
        // From the bottom, 280, to the top, 14: 104 bytes.
        assert!(
            svg.contains("class=\"live\" d=\"M78 280.0V152.1H513.0V24.2H948.0V280.0Z\""),
            "{svg}"
        );
        assert!(svg.contains("class=\"line a\" d=\"M78 280.0V24.2H513.0V24.2H948.0\""), "{svg}");
        let far =
            chart(&[Line { name: "", class: String::new(), timeline: &timeline }], Some(900), 1);
        assert!(!far.contains("capacity"), "what is far above everything is left out");
    }
}
