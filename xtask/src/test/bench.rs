//! `gmm bench` runs, and what it prints for programs is whole. How fast it was is printed and not
//! judged: on a machine that others use too, a threshold fails by chance.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Context, Done, steps};

const ARGS: [&str; 7] = ["bench", "faults", "--bytes", "32MiB", "--repeats", "5", "--json"];

/// The cases that must be there, a line each.
const CASES: [&str; 2] = ["to-xpu", "to-cpu"];

/// What each line must hold that is a positive number.
const POSITIVE: [&str; 6] =
    ["bytes", "repeats", "seconds", "bytes_per_s", "raw_copy_bytes_per_s", "ratio"];

/// What each line must hold that is a number; where the copy took longer in the raw round, below 0.
const NUMBERS: [&str; 2] = ["overhead_us_median", "overhead_us_p99"];

/// The step `bench`.
pub(super) fn step(context: &Context) -> Result<Done> {
    context.workspace.build_release()?;
    let mut command = context.workspace.command(context.workspace.gmm());
    command.args(ARGS);
    let done = steps::run(command)?;
    steps::ensure_success(&done)?;
    let ratios = check(&done.stdout)?;
    let ratios: Vec<_> =
        CASES.iter().zip(ratios).map(|(case, ratio)| format!("{case} {ratio:.2}")).collect();
    Ok(Done::ok(format!("ratio to a raw copy: {}", ratios.join(", "))))
}

/// The ratio of each case.
fn check(output: &str) -> Result<Vec<f64>> {
    let lines: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
        .collect::<Result<_>>()?;
    let ratio = |case: &&str| {
        let mut found = lines.iter().filter(|line| line["case"] == **case);
        let line = found.next().with_context(|| format!("no case {case}"))?;
        ensure!(found.next().is_none(), "two lines of case {case}");
        for key in POSITIVE {
            ensure!(line[key].as_f64().is_some_and(|n| n > 0.0), "{case}: {key} is {}", line[key]);
        }
        for key in NUMBERS {
            ensure!(line[key].is_number(), "{case}: {key} is {}", line[key]);
        }
        ensure!(line["frame_backing"].is_string(), "{case}: no frame_backing");
        line["ratio"].as_f64().context("no ratio")
    };
    CASES.iter().map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(case: &str) -> Value {
        json!({
            "case": case, "bytes": 1, "repeats": 5, "seconds": 0.1, "bytes_per_s": 10.0,
            "raw_copy_bytes_per_s": 20.0, "ratio": 0.5, "overhead_us_median": -1.0,
            "overhead_us_p99": 3.0, "frame_backing": "huge",
        })
    }

    fn output(lines: &[Value]) -> String {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_whole_report_passes() {
        assert_eq!(check(&output(&[line("to-xpu"), line("to-cpu")])).unwrap(), [0.5, 0.5]);
    }

    #[test]
    fn a_case_that_is_missing_or_there_twice_fails() {
        assert!(check(&output(&[line("to-xpu")])).is_err());
        assert!(check(&output(&[line("to-xpu"), line("to-cpu"), line("to-cpu")])).is_err());
        assert!(check("no JSON\n").is_err());
    }

    #[test]
    fn a_line_that_lacks_anything_fails() {
        for key in line("to-xpu").as_object().unwrap().keys() {
            let mut poor = line("to-xpu");
            poor.as_object_mut().unwrap().remove(key);
            assert!(check(&output(&[poor, line("to-cpu")])).is_err(), "{key}");
        }
    }
}
