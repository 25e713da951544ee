//! What `gmm demo --json` says of memory is there, and can be true.

use anyhow::{Result, ensure};
use serde_json::Value;

/// What must be a positive number.
const POSITIVE: [&str; 3] = ["weights_bytes", "xpu_memory_bytes", "seconds"];

/// What must be an object of numbers with these keys, if nothing else.
const OBJECTS: [(&str, &[&str]); 4] = [
    ("touched_bytes", &["0", "1"]),
    ("peak_resident_bytes", &["0", "1"]),
    ("faults", &["cpu", "xpu"]),
    ("migrated_bytes", &["0->1"]),
];

/// Fails if something lacks or contradicts something else.
pub(super) fn check(report: &Value, compared: bool) -> Result<()> {
    for key in POSITIVE {
        let value = &report[key];
        ensure!(value.as_f64().is_some_and(|n| n > 0.0), "{key} is {value}");
    }
    for (object, keys) in OBJECTS {
        for key in keys {
            let value = &report[object][key];
            ensure!(value.as_f64().is_some_and(|n| n > 0.0), "{object} {key} is {value}");
        }
    }
    ensure!(report["frame_backing"].is_string(), "frame_backing is {}", report["frame_backing"]);
    let error = &report["max_abs_error"];
    ensure!(error.is_number() == compared, "max_abs_error is {error}");

    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let (touched, peak) = (&report["touched_bytes"]["1"], &report["peak_resident_bytes"]["1"]);
    let (memory, evicted) = (&report["xpu_memory_bytes"], &report["evicted_pages"]);
    let clean = &report["evicted_clean_pages"];
    ensure!(number(peak) <= number(memory), "{peak} bytes were resident in {memory}");
    ensure!(number(clean) <= number(evicted), "{clean} of {evicted} evictions were clean");
    ensure!(
        number(touched) <= number(memory) || number(evicted) > 0.0,
        "{touched} bytes were touched through {memory}, and nothing was evicted"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        json!({
            "weights_bytes": 90, "xpu_memory_bytes": 16, "seconds": 0.5, "max_abs_error": 0.0,
            "touched_bytes": {"0": 96, "1": 58}, "peak_resident_bytes": {"0": 96, "1": 16},
            "faults": {"cpu": 46, "xpu": 34}, "migrated_bytes": {"0->1": 60},
            "evicted_pages": 23, "evicted_clean_pages": 20, "frame_backing": "huge",
        })
    }

    #[test]
    fn a_whole_report_passes() {
        check(&report(), true).unwrap();
    }

    #[test]
    fn whatever_is_missing_is_named() {
        for key in report().as_object().unwrap().keys() {
            let mut poor = report();
            poor.as_object_mut().unwrap().remove(key);
            assert!(check(&poor, true).is_err(), "{key}");
        }
        for (object, keys) in OBJECTS {
            for key in keys {
                let mut poor = report();
                poor[object].as_object_mut().unwrap().remove(*key);
                let error = check(&poor, true).unwrap_err().to_string();
                assert!(error.contains(object) && error.contains(key), "{error}");
            }
        }
    }

    #[test]
    fn what_cannot_be_true_is_noticed() {
        for (object, key, value) in [
            ("peak_resident_bytes", Some("1"), 17),
            ("evicted_clean_pages", None, 24),
            ("xpu_memory_bytes", None, 0),
        ] {
            let mut wrong = report();
            match key {
                Some(key) => wrong[object][key] = value.into(),
                None => wrong[object] = value.into(),
            }
            assert!(check(&wrong, true).is_err(), "{object}");
        }
        let mut wrong = report();
        wrong["evicted_pages"] = 0.into();
        wrong["evicted_clean_pages"] = 0.into();
        assert!(check(&wrong, true).unwrap_err().to_string().contains("nothing was evicted"));
    }
}
