//! What a suite found, one case a record: the same fields for all, as text, JSON and CSV.

use std::fmt::Write as _;

use gmm::display_bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::distribution::Distribution;

/// One case's result: how fast the subject was, and how that compares with its baseline, measured in
/// turn with it. As JSON it is one flat object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// Such as `faults`.
    pub(super) suite: String,
    /// What was measured, such as `to-xpu`.
    pub(super) case: String,
    /// Under which setting, such as `sequential`.
    pub(super) parameter: String,
    /// The subject's speed, where it moves bytes: the median over the repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes_per_s: Option<f64>,
    /// The time that the subject took: the median over the repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    /// What it is compared with, in words.
    pub(super) baseline: String,
    /// The subject's speed over the baseline's, pair by pair: the median, the least and the greatest.
    /// Higher is better.
    pub(super) ratio: f64,
    pub(super) ratio_min: f64,
    pub(super) ratio_max: f64,
    /// How many pairs.
    pub(super) repeats: usize,
    /// The ratio of each pair, in ascending order.
    #[serde(default)]
    pub(super) ratios: Vec<f64>,
    /// What only this suite has to say. Keys carry their units.
    #[serde(flatten)]
    pub(super) more: Map<String, Value>,
}

impl Record {
    /// A record without a speed yet. `ratios` has at least one value.
    pub(super) fn new(
        suite: &str,
        case: impl Into<String>,
        parameter: impl Into<String>,
        baseline: &str,
        ratios: Vec<f64>,
    ) -> Self {
        let ratio = Distribution::new(ratios);
        Self {
            suite: suite.to_owned(),
            case: case.into(),
            parameter: parameter.into(),
            bytes_per_s: None,
            seconds: None,
            baseline: baseline.to_owned(),
            ratio: ratio.median(),
            ratio_min: ratio.min(),
            ratio_max: ratio.max(),
            repeats: ratio.len(),
            ratios: ratio.into_values(),
            more: Map::new(),
        }
    }

    #[must_use]
    pub(super) fn bytes_per_s(mut self, bytes_per_s: f64) -> Self {
        self.bytes_per_s = Some(bytes_per_s);
        self
    }

    #[must_use]
    pub(super) fn seconds(mut self, seconds: f64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    /// Adds a field of the suite's own.
    #[must_use]
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    /// A field of the suite's own, where it is a number.
    pub(super) fn number(&self, key: &str) -> Option<f64> {
        self.more.get(key)?.as_f64()
    }

    /// For people: what it is, how fast, how that compares; then the rest.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} {}", self.suite, self.case);
        if !self.parameter.is_empty() {
            let _ = write!(text, " ({})", self.parameter);
        }
        text.push(':');
        if let Some(bytes_per_s) = self.bytes_per_s {
            let _ = write!(text, " {}/s,", display_bytes(bytes_per_s as u64));
        }
        if let Some(seconds) = self.seconds {
            let _ = write!(text, " {},", display_seconds(seconds));
        }
        let _ = write!(
            text,
            " {} times {} ({} to {} over {} repeats)",
            significant(self.ratio),
            self.baseline,
            significant(self.ratio_min),
            significant(self.ratio_max),
            self.repeats,
        );
        let more: Vec<_> = self.more.iter().map(|(key, value)| display_field(key, value)).collect();
        if !more.is_empty() {
            let _ = write!(text, "\n  {}", more.join(", "));
        }
        text
    }
}

/// CSV (RFC 4180) of records of one suite, with a column for each field that any of them has.
pub(super) fn to_csv(records: &[&Record]) -> anyhow::Result<String> {
    let objects = records
        .iter()
        .map(|record| match serde_json::to_value(record)? {
            Value::Object(object) => Ok(object),
            other => anyhow::bail!("a record is an object, not {other}"),
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut columns = FIRST_COLUMNS.map(str::to_owned).to_vec();
    for key in objects.iter().flat_map(|object| object.keys()) {
        if !columns.contains(key) {
            columns.push(key.clone());
        }
    }
    columns.retain(|column| objects.iter().any(|object| object.contains_key(column)));
    let mut csv = line(columns.iter().map(String::as_str));
    for object in &objects {
        let cells: Vec<String> =
            columns.iter().map(|column| object.get(column).map_or(String::new(), cell)).collect();
        csv.push_str(&line(cells.iter().map(String::as_str)));
    }
    Ok(csv)
}

/// What every suite has stands first.
const FIRST_COLUMNS: [&str; 10] = [
    "suite",
    "case",
    "parameter",
    "bytes_per_s",
    "seconds",
    "baseline",
    "ratio",
    "ratio_min",
    "ratio_max",
    "repeats",
];

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted = cells.map(|cell| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    });
    quoted.collect::<Vec<_>>().join(",") + "\r\n"
}

fn display_field(key: &str, value: &Value) -> String {
    let name = key.replace('_', " ");
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            if key.ends_with("bytes_per_s") {
                let name = name.trim_end_matches(" bytes per s");
                format!("{name} {}/s", display_bytes(number as u64))
            } else if key.ends_with("seconds") {
                format!("{} {}", name.trim_end_matches(" seconds"), display_seconds(number))
            } else if key.ends_with("bytes") {
                format!("{name} {}", display_bytes(number as u64))
            } else {
                format!("{name} {}", significant(number))
            }
        }
        other => format!("{name} {}", cell(other)),
    }
}

/// A time with a unit that suits it.
pub(super) fn display_seconds(seconds: f64) -> String {
    match seconds.abs() {
        s if s < 1e-6 => format!("{} ns", significant(seconds * 1e9)),
        s if s < 1e-3 => format!("{} µs", significant(seconds * 1e6)),
        s if s < 1.0 => format!("{} ms", significant(seconds * 1e3)),
        _ => format!("{} s", significant(seconds)),
    }
}

/// A number with three significant digits, and all of a whole number's.
pub(super) fn significant(number: f64) -> String {
    if number == number.trunc() && number.abs() < 1e15 {
        return format!("{number:.0}");
    }
    let digits = 2 - number.abs().log10().floor() as i32;
    format!("{number:.*}", digits.clamp(0, 9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record() -> Record {
        Record::new("faults", "to-xpu", "sequential", "raw copy", vec![0.9, 0.7, 0.8])
            .bytes_per_s(5e9)
            .seconds(0.05)
            .with("overhead_us_median", 12.345)
            .with("frame_backing", "huge, \"shared\"")
    }

    #[test]
    fn json_is_one_flat_object_that_reads_back() {
        let text = serde_json::to_string(&record()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["ratio"], json!(0.8));
        assert_eq!((&value["ratio_min"], &value["ratio_max"]), (&json!(0.7), &json!(0.9)));
        assert_eq!(value["repeats"], json!(3));
        assert_eq!(value["overhead_us_median"], json!(12.345));
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record());
        // What has no speed in bytes has no such field.
        let bare = Record::new("coalesce", "cpu-1", "", "2 µs", vec![1.0]);
        assert!(!serde_json::to_string(&bare).unwrap().contains("bytes_per_s"));
    }

    #[test]
    fn csv_has_a_column_for_each_field_of_any_record_and_quotes_what_needs_it() {
        let other = Record::new("faults", "to-cpu", "sequential", "raw copy", vec![0.5]);
        let csv = to_csv(&[&record(), &other]).unwrap();
        let lines: Vec<_> = csv.split_terminator("\r\n").collect();
        assert_eq!(
            lines[0],
            "suite,case,parameter,bytes_per_s,seconds,baseline,ratio,ratio_min,ratio_max,repeats,\
             frame_backing,overhead_us_median,ratios"
        );
        assert_eq!(
            lines[1],
            "faults,to-xpu,sequential,5000000000.0,0.05,raw copy,0.8,0.7,0.9,3,\
             \"huge, \"\"shared\"\"\",12.345,0.7 0.8 0.9"
        );
        assert_eq!(lines[2], "faults,to-cpu,sequential,,,raw copy,0.5,0.5,0.5,1,,,0.5");
    }

    #[test]
    fn text_says_what_how_fast_and_against_what() {
        assert_eq!(
            record().text(),
            "faults to-xpu (sequential): 4.7 GiB/s, 50 ms, 0.800 times raw copy (0.700 to 0.900 \
             over 3 repeats)\n  frame backing huge, \"shared\", overhead us median 12.3"
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 3.0, 0.012345, 1.2345, 123.45, 123456.7, -0.5];
        let shown = ["0", "3", "0.0123", "1.23", "123", "123457", "-0.500"];
        assert_eq!(numbers.map(significant), shown);
        assert_eq!(display_seconds(1.5e-6), "1.50 µs");
    }
}
