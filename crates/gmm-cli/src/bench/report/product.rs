//! The plots of products: by the length of their rows, and by how much they exceed the memory.

use gmm::display_bytes;

use super::figures::{extremes, only, percent};
use super::plot::{self, Axis, Series};
use crate::bench::record::{Record, significant};

/// How the matrices come: what a series is of.
fn way(record: &Record) -> String {
    let cores = match record.number("cores") {
        Some(cores) if cores > 1.0 => format!("{cores} cores"),
        _ => "one core".to_owned(),
    };
    format!("{}, {cores}", if record.case == "prefetch" { "prefetched" } else { "by faults" })
}

/// A series for each name that `name` gives, with a point for each record.
fn series(
    records: &[&Record],
    name: impl Fn(&Record) -> String,
    point: impl Fn(&Record) -> Option<(f64, f64)>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for record in records {
        let Some(point) = point(record) else { continue };
        let label = name(record);
        match all.iter_mut().find(|series| series.label == label) {
            Some(series) => series.points.push(point),
            None => all.push(Series { label, points: vec![point] }),
        }
    }
    all
}

fn of_type<'a>(records: &[&'a Record], ty: &str) -> Vec<&'a Record> {
    only(records, |record| record.more.get("type").and_then(|ty| ty.as_str()) == Some(ty))
}

/// The ratio to explicit copies by k, half precision above single.
pub(super) fn by_k(records: &[&Record]) -> String {
    let mut plots = String::new();
    for (ty, title) in [("fp16", "Half precision"), ("fp32", "Single precision")] {
        let of_type = of_type(records, ty);
        if !of_type.is_empty() {
            plots += &format!("<h3>{title}</h3>\n");
            let lines = series(&of_type, way, |r| Some((r.number("k")?, r.ratio)));
            plots += &plot::lines(&lines, "k", Axis::Ratio);
        }
    }
    plots
}

fn number(record: &Record, key: &str) -> f64 {
    record.number(key).unwrap_or_default()
}

pub(super) fn by_k_sentence(records: &[&Record]) -> String {
    let by_faults = only(records, |record| record.case == "faults");
    let prefetched = only(records, |record| record.case == "prefetch");
    let mut parts = Vec::new();
    for (what, records) in [("By faults", &by_faults), ("prefetched", &prefetched)] {
        if !records.is_empty() {
            let (worst, best) = extremes(records);
            parts.push(format!(
                "{what} products reach {} to {} of the speed of explicit copies",
                percent(worst.ratio),
                percent(best.ratio)
            ));
        }
    }
    let largest = by_faults.iter().max_by_key(|record| number(record, "operand_bytes") as u64);
    if let Some(largest) = largest {
        parts.push(format!(
            "the largest took {} faults for {} of operands",
            significant(number(largest, "faults")),
            display_bytes(number(largest, "operand_bytes") as u64)
        ));
    }
    let coalesced = by_faults.iter().map(|record| number(record, "coalesced_faults"));
    let coalesced = coalesced.fold(0.0, f64::max);
    if coalesced > 0.0 {
        parts.push(format!("at most {} were coalesced with others", significant(coalesced)));
    }
    parts.join("; ") + "."
}

/// Bytes of A and B over the time from end to end.
fn speed(record: &Record) -> Option<f64> {
    Some(record.number("operand_bytes")? / record.seconds?)
}

/// The speed by how much the matrices exceed the memory, for each policy. What fits has none.
pub(super) fn by_factor(records: &[&Record]) -> String {
    let policy = |record: &Record| {
        record.more.get("policy").and_then(|policy| policy.as_str()).unwrap_or("?").to_owned()
    };
    let fits = only(records, |record| record.number("factor") == Some(1.0));
    let way = |record: &Record| if record.case == "prefetch" { "prefetched" } else { "by faults" };
    let name = |record: &Record| format!("{}, {}", way(record), policy(record));
    let point = |record: &Record| Some((record.number("factor")?, speed(record)?));
    let mut lines =
        series(&only(records, |record| record.number("factor") > Some(1.0)), name, point);
    // What fits is the same whatever the policy: the first point of each line.
    for line in &mut lines {
        let start = fits.iter().find(|record| line.label.starts_with(way(record)));
        line.points.extend(start.and_then(|record| point(record)));
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    plot::lines(&lines, "matrices, times the XPU's memory", Axis::BytesPerSecond)
}

pub(super) fn by_factor_sentence(records: &[&Record]) -> String {
    let by_faults = only(records, |record| record.case == "faults");
    let most = by_faults.iter().filter_map(|record| record.number("factor")).fold(1.0, f64::max);
    let at_most = only(&by_faults, |record| record.number("factor") == Some(most));
    let fits = by_faults.iter().find(|record| record.number("factor") == Some(1.0));
    let of = |record: &Record| {
        let policy = record.more.get("policy").and_then(|policy| policy.as_str()).unwrap_or("?");
        let share = fits.and_then(|fits| Some(speed(record)? / speed(fits)?));
        let speed = match (share, speed(record)) {
            (Some(share), _) => format!("{} of that speed", percent(share)),
            (None, Some(speed)) => format!("{}/s of operands", display_bytes(speed as u64)),
            (None, None) => "no speed".to_owned(),
        };
        format!("{speed} under {policy} (pages moved: {})", moved(record))
    };
    let parts: Vec<_> = at_most.iter().map(|record| of(record)).collect();
    format!(
        "A product by faults of matrices of {} times the memory{} has {}.",
        significant(most),
        if fits.is_some() { ", beside one that fits," } else { "" },
        parts.join(", ")
    )
}

/// Pages that came, over the fewest that any policy brings.
fn moved(record: &Record) -> String {
    let count = |key: &str| record.number(key).map_or_else(|| "?".to_owned(), significant);
    format!("{}, at least {}", count("pages_moved"), count("pages_least"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_product_that_fits_there_is_no_share_of_its_speed() {
        let product = |factor: f64, seconds| {
            let record = Record::new("product", "faults", "k=1", "explicit copies", vec![0.5]);
            let record = record.seconds(seconds).with("factor", factor).with("policy", "lru");
            record.with("operand_bytes", 1 << 30)
        };
        let (fits, exceeds) = (product(1.0, 0.5), product(1.5, 1.0));
        let alone = by_factor_sentence(&[&exceeds]);
        assert!(
            alone.contains("1.50 times the memory has 1.0 GiB/s of operands under lru"),
            "{alone}"
        );
        let both = by_factor_sentence(&[&fits, &exceeds]);
        assert!(both.contains("beside one that fits, has 50% of that speed under lru"), "{both}");
    }
}
