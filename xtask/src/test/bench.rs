//! `gmm bench` runs, and what it prints for programs is whole. How fast it was is printed and not
//! judged: on a machine that others use too, a threshold fails by chance.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Context, Done, steps};

/// One suite of `gmm bench`, small.
struct Suite {
    args: &'static [&'static str],
    /// The cases that must be there, a line each.
    cases: &'static [&'static str],
    /// What each line must hold that is a positive number.
    positive: &'static [&'static str],
    /// What each line must hold that is a number.
    numbers: &'static [&'static str],
    /// What each line must hold that is a text.
    texts: &'static [&'static str],
}

const FAULTS: Suite = Suite {
    args: &["faults", "--bytes", "32MiB", "--repeats", "5"],
    cases: &["to-xpu", "to-cpu"],
    positive: &["bytes", "repeats", "seconds", "bytes_per_s", "raw_copy_bytes_per_s", "ratio"],
    // Below 0 where the copy took longer in the raw round.
    numbers: &["overhead_us_median", "overhead_us_p99"],
    texts: &["frame_backing"],
};

const COALESCE: Suite = Suite {
    args: &["coalesce", "--faults", "1000", "--repeats", "5", "--threads", "2"],
    cases: &["cpu-1", "xpu-1", "cpu-2", "xpu-2"],
    positive: &["ns_per_fault", "ns_per_fault_min", "ns_per_fault_max", "ratio"],
    numbers: &["faults", "repeats", "threads"],
    texts: &["suite"],
};

const OVERSUBSCRIBE: Suite = Suite {
    args: &[
        "oversubscribe",
        "--xpu-memory",
        "32MiB",
        "--factors",
        "1.5,4",
        "--policies",
        "dip,lru",
        "--sweeps",
        "5",
    ],
    cases: &[
        "read-1.5-dip",
        "write-1.5-dip",
        "read-4-dip",
        "write-4-dip",
        "read-1.5-lru",
        "write-1.5-lru",
        "read-4-lru",
        "write-4-lru",
    ],
    positive: &["seconds", "bytes_per_s", "bound_bytes_per_s", "ratio", "pages_moved"],
    numbers: &["pages_optimum", "pages_written_back", "factor", "sweeps"],
    texts: &["suite", "policy"],
};

/// The step `bench`.
pub(super) fn step(context: &Context) -> Result<Done> {
    context.workspace.build_release()?;
    let mut notes = Vec::new();
    for suite in [FAULTS, COALESCE, OVERSUBSCRIBE] {
        let mut command = context.workspace.command(context.workspace.gmm());
        command.arg("bench").args(suite.args).arg("--json");
        let done = steps::run(command)?;
        steps::ensure_success(&done)?;
        let ratios =
            suite.check(&done.stdout).with_context(|| format!("gmm bench {}", suite.args[0]))?;
        let cases = suite.cases.iter().zip(ratios);
        notes.extend(cases.map(|(case, ratio)| format!("{case} {ratio:.2}")));
    }
    Ok(Done::ok(format!("ratio to what can be had: {}", notes.join(", "))))
}

impl Suite {
    /// The ratio of each case.
    fn check(&self, output: &str) -> Result<Vec<f64>> {
        let lines: Vec<Value> = output
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
            .collect::<Result<_>>()?;
        let ratio = |case: &&str| {
            let mut found = lines.iter().filter(|line| line["case"] == **case);
            let line = found.next().with_context(|| format!("no case {case}"))?;
            ensure!(found.next().is_none(), "two lines of case {case}");
            for key in self.positive {
                let value = &line[*key];
                ensure!(value.as_f64().is_some_and(|n| n > 0.0), "{case}: {key} is {value}");
            }
            for key in self.numbers {
                ensure!(line[*key].is_number(), "{case}: {key} is {}", line[*key]);
            }
            for key in self.texts {
                ensure!(line[*key].is_string(), "{case}: {key} is {}", line[*key]);
            }
            line["ratio"].as_f64().context("no ratio")
        };
        self.cases.iter().map(ratio).collect()
    }
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
        assert_eq!(FAULTS.check(&output(&[line("to-xpu"), line("to-cpu")])).unwrap(), [0.5, 0.5]);
    }

    #[test]
    fn a_case_that_is_missing_or_there_twice_fails() {
        assert!(FAULTS.check(&output(&[line("to-xpu")])).is_err());
        assert!(FAULTS.check(&output(&[line("to-xpu"), line("to-cpu"), line("to-cpu")])).is_err());
        assert!(FAULTS.check("no JSON\n").is_err());
    }

    #[test]
    fn a_line_that_lacks_anything_fails() {
        for key in line("to-xpu").as_object().unwrap().keys() {
            let mut poor = line("to-xpu");
            poor.as_object_mut().unwrap().remove(key);
            assert!(FAULTS.check(&output(&[poor, line("to-cpu")])).is_err(), "{key}");
        }
    }
}
