//! Plots as SVG: bars, with the spread of the repeats as whiskers. Colours and fonts are the page's.

use std::fmt::Write as _;

use gmm::display_bytes;

use crate::bench::record::significant;
use crate::page::escape;

/// One bar.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    /// The least and the greatest repeat, where they are known.
    pub(super) spread: Option<(f64, f64)>,
    pub(super) kind: Kind,
}

/// What a bar stands for: its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Subject,
    Baseline,
}

/// What the bars measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Axis {
    /// Times the baseline's speed; there is a line at 1.
    Ratio,
    BytesPerSecond,
    Milliseconds,
}

impl Axis {
    fn title(self) -> &'static str {
        match self {
            Self::Ratio => "times the baseline's speed (higher is better)",
            Self::BytesPerSecond => "speed (higher is better)",
            Self::Milliseconds => "milliseconds (lower is better)",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Ratio | Self::Milliseconds => significant(value),
            Self::BytesPerSecond => format!("{}/s", display_bytes(value as u64)),
        }
    }

    /// Tick marks are at multiples of a step of 1, 2 or 5 times this to the power of something.
    fn base(self) -> (f64, f64) {
        match self {
            Self::Ratio | Self::Milliseconds => (1.0, 10.0),
            Self::BytesPerSecond => ((1u64 << 30) as f64, 2.0),
        }
    }
}

const WIDTH: f64 = 680.0;
const LABELS: f64 = 250.0;
const VALUES: f64 = 80.0;
const ROW: f64 = 26.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 42.0;

/// The bars, one below the other, from 0 on; of ratios there is a line at 1.
pub(super) fn bars(rows: &[Bar], axis: Axis) -> String {
    bars_with_line(rows, axis, (axis == Axis::Ratio).then_some(1.0))
}

/// As [`bars`], with a line at a value that they are to be compared with.
pub(super) fn bars_with_line(rows: &[Bar], axis: Axis, line: Option<f64>) -> String {
    let most = rows.iter().map(|bar| bar.spread.map_or(bar.value, |(_, high)| high.max(bar.value)));
    let typical = rows.iter().map(|bar| bar.value).fold(0.0, f64::max);
    // One disturbed repeat must not squeeze everything: whiskers may leave the plot.
    let most = most.fold(0.0, f64::max).min(1.6 * typical);
    let most = most.max(line.unwrap_or(0.0) * 1.05);
    let most = if most > 0.0 { most * 1.03 } else { 1.0 };
    let scale = (WIDTH - LABELS - VALUES) / most;
    let x = |value: f64| LABELS + value.min(most) * scale;
    let bottom = TOP + rows.len() as f64 * ROW;
    let height = bottom + BOTTOM;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} bars, {}\">\n",
        rows.len(),
        axis.title()
    );
    for tick in ticks(most, axis) {
        let at = x(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 16.0,
            escape(&axis.show(tick))
        );
    }
    for (nth, bar) in rows.iter().enumerate() {
        let y = TOP + nth as f64 * ROW;
        let (class, middle) =
            (if bar.kind == Kind::Subject { "subject" } else { "baseline" }, y + ROW / 2.0);
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <rect class=\"{class}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"/>",
            LABELS - 8.0,
            middle + 4.0,
            escape(&bar.label),
            y + 5.0,
            (x(bar.value) - LABELS).max(0.5),
            ROW - 10.0,
        );
        if let Some((low, high)) = bar.spread {
            let (left, right, top) = (x(low), x(high), middle - 4.0);
            // What leaves the plot has no end in it.
            let end = |value: f64, at: f64| {
                if value <= most { format!("M{at:.1} {top:.1}v8") } else { String::new() }
            };
            let _ = writeln!(
                svg,
                "<path class=\"whisker\" d=\"M{left:.1} {middle:.1}H{right:.1}{}{}\"/>",
                end(low, left),
                end(high, right),
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - 2.0,
            middle + 4.0,
            escape(&axis.show(bar.value))
        );
    }
    if let Some(line) = line {
        let at = x(line);
        let _ = writeln!(
            svg,
            "<line class=\"one\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n</svg>",
        LABELS + (WIDTH - LABELS - VALUES) / 2.0,
        bottom + 35.0,
        axis.title()
    );
    svg
}

/// Values by something that varies: what one line of a plot connects.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
}

const LINES_HEIGHT: f64 = 300.0;
const LEFT: f64 = 84.0;

/// How many colours there are for lines; then they come again, dashed.
const COLOURS: usize = 4;

/// Lines over a scale of the values that occur, evenly apart, from 0 on; of ratios there is a line at
/// 1. The legend is below.
pub(super) fn lines(series: &[Series], across: &str, axis: Axis) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let mut places: Vec<f64> = points().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let most = if axis == Axis::Ratio { most.max(1.0) } else { most } * 1.05;
    let most = if most > 0.0 { most } else { 1.0 };
    let (right, bottom) = (WIDTH - 24.0, LINES_HEIGHT);
    let step = (right - LEFT - 40.0) / (places.len().max(2) - 1) as f64;
    let x = |value: f64| {
        let place = places.iter().position(|place| *place == value).unwrap_or(0);
        LEFT + 20.0 + place as f64 * step
    };
    let y = |value: f64| TOP + (bottom - TOP) * (1.0 - value / most);
    let height = bottom + 44.0 + series.len().div_ceil(2) as f64 * 20.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} lines, {} by {}\">\n",
        series.len(),
        axis.title(),
        escape(across)
    );
    for tick in ticks(most, axis) {
        let at = y(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            escape(&axis.show(tick))
        );
    }
    if axis == Axis::Ratio {
        let at = y(1.0);
        let _ = writeln!(
            svg,
            "<line class=\"one\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        );
    }
    for &place in &places {
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(place),
            bottom + 16.0,
            significant(place)
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">{}; across: {}</text>",
        (LEFT + right) / 2.0,
        bottom + 34.0,
        axis.title(),
        escape(across)
    );
    for (nth, series) in series.iter().enumerate() {
        let class =
            format!("line c{}{}", nth % COLOURS, if nth < COLOURS { "" } else { " dashed" });
        let path: Vec<String> = series
            .points
            .iter()
            .map(|point| format!("{:.1} {:.1}", x(point.0), y(point.1)))
            .collect();
        let _ = write!(svg, "<path class=\"{class}\" d=\"M{}\"/>", path.join("L"));
        for point in &series.points {
            let (x, y) = (x(point.0), y(point.1));
            let _ = write!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
        }
        let (left, top) = (
            LEFT + (nth % 2) as f64 * (right - LEFT) / 2.0,
            bottom + 54.0 + (nth / 2) as f64 * 20.0,
        );
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" d=\"M{left:.1} {top:.1}h24\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left + 32.0,
            top + 4.0,
            escape(&series.label)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Three to seven round numbers from 0 to `most`.
fn ticks(most: f64, axis: Axis) -> Vec<f64> {
    let (unit, base) = axis.base();
    let mut step = unit * base.powf((most / unit / 6.0).log(base).floor());
    let factors: &[f64] = if base == 2.0 { &[2.0] } else { &[2.0, 2.5, 2.0] };
    for factor in factors.iter().cycle() {
        if most / step <= 6.5 {
            break;
        }
        step *= factor;
    }
    (0..).map(|nth| f64::from(nth) * step).take_while(|tick| *tick <= most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(ticks(1.05, Axis::Ratio), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(23.0, Axis::Ratio), [0.0, 5.0, 10.0, 15.0, 20.0]);
        let gib = (1u64 << 30) as f64;
        assert_eq!(ticks(7.0 * gib, Axis::BytesPerSecond), [0.0, 2.0, 4.0, 6.0].map(|n| n * gib));
        for most in [0.001, 0.7, 3.0, 9.99, 1234.0] {
            for axis in [Axis::Ratio, Axis::BytesPerSecond] {
                assert!((3..=7).contains(&ticks(most, axis).len()), "{most} {axis:?}");
            }
        }
    }

    #[test]
    fn lines_go_through_their_points_and_all_are_in_the_legend() {
        let line = |label: &str, points: &[(f64, f64)]| Series {
            label: label.to_owned(),
            points: points.to_vec(),
        };
        let few = line("a<b", &[(1024.0, 0.5), (2048.0, 1.0)]);
        let svg = lines(&[few, line("c", &[(2048.0, 0.25)])], "k", Axis::Ratio);
        assert_eq!((svg.matches("<circle").count(), svg.matches("h24").count()), (3, 2));
        assert!(svg.contains("a&lt;b") && svg.contains(">1024</text>"));
        let heights: Vec<f64> = svg
            .split("cy=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        // A quarter, a half and all of the way up.
        let (quarter, half, whole) = (heights[2], heights[0], heights[1]);
        assert!(((half - whole) / (quarter - half) - 2.0).abs() < 0.01, "{heights:?}");
    }

    #[test]
    fn a_bar_is_as_long_as_its_value_and_labels_are_escaped() {
        let bar = |label: &str, value, spread| Bar {
            label: label.to_owned(),
            value,
            spread,
            kind: Kind::Subject,
        };
        let svg = bars(&[bar("a<b", 0.5, Some((0.4, 0.6))), bar("c", 1.0, None)], Axis::Ratio);
        assert!(svg.contains("a&lt;b"));
        let widths: Vec<f64> = svg
            .split("width=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{widths:?}");
        assert_eq!(svg.matches("class=\"whisker\"").count(), 1);
    }
}
