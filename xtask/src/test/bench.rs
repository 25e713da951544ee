//! `gmm bench` runs, and what it prints for programs is whole. How fast it was is printed and not
//! judged: on a machine that others use too, a threshold fails by chance.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Context, Done, steps};

/// What one suite of `gmm bench all` must print.
struct Suite {
    name: &'static str,
    /// The cases that must be there, a line each: as the line has it or, where several lines have it,
    /// with a space and the line's parameter.
    cases: &'static [&'static str],
    /// What each line must hold that is a positive number, beside what all lines hold.
    positive: &'static [&'static str],
    /// What each line must hold that is a number.
    numbers: &'static [&'static str],
    /// What each line must hold that is a text.
    texts: &'static [&'static str],
}

/// What every line of every suite holds: positive numbers, and texts.
const POSITIVE: [&str; 4] = ["ratio", "ratio_min", "ratio_max", "repeats"];
const TEXTS: [&str; 4] = ["suite", "case", "parameter", "baseline"];

const SUITES: [Suite; 15] = [
    Suite {
        name: "faults",
        cases: &[
            "to-xpu sequential",
            "to-cpu sequential",
            "to-xpu random",
            "to-cpu random",
            "to-xpu cores=4",
            "to-cpu cores=4",
        ],
        positive: &["bytes", "seconds", "bytes_per_s", "raw_copy_bytes_per_s"],
        // Below 0 where the copy took longer in the raw round.
        numbers: &["overhead_us_median", "overhead_us_p99"],
        texts: &["frame_backing"],
    },
    Suite {
        name: "faults",
        cases: &[
            "to-xpu-against-bounce",
            "to-xpu-against-4k",
            "to-cpu-against-pager",
            "to-cpu-against-4k",
        ],
        positive: &["bytes", "seconds", "bytes_per_s", "baseline_bytes_per_s"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "product",
        cases: &[
            "faults k=1024 fp32",
            "prefetch k=1024 fp32",
            "faults k=2048 fp32",
            "faults k=2048 fp16",
            "faults k=2048 fp32 cores=2",
            "prefetch k=2048 fp16 cores=2",
            "faults k=2048 fp16 blocks=3 factor=1.5 lru",
            "prefetch k=2048 fp16 blocks=3 factor=1.5 lru",
        ],
        positive: &["seconds", "baseline_seconds", "operand_bytes", "pages_moved", "pages_least"],
        numbers: &["faults", "coalesced_faults", "factor"],
        texts: &["policy", "type"],
    },
    Suite {
        name: "latency",
        cases: &["to-xpu arriving", "to-cpu arriving", "to-xpu from-rest", "to-cpu from-rest"],
        positive: &["seconds", "baseline_seconds", "pages"],
        numbers: &["overhead_us_median", "overhead_us_p99", "steal_percent"],
        texts: &[],
    },
    Suite {
        name: "cost",
        cases: &["to-xpu sequential", "to-cpu sequential"],
        positive: &["seconds", "baseline_seconds", "bytes", "target_ratio"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "cost",
        cases: &["idle"],
        positive: &["threads"],
        numbers: &["context_switches", "context_switches_min", "context_switches_max"],
        texts: &[],
    },
    Suite {
        name: "prefetch",
        cases: &["to-xpu", "to-host", "launch-over-coming-pages", "chunks-to-xpu"],
        positive: &["bytes", "seconds", "bytes_per_s", "baseline_bytes_per_s", "workers"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "memcpy",
        cases: &[
            "host-to-xpu",
            "xpu-to-host",
            "xpu-to-xpu",
            "host-to-host",
            "plain-to-xpu",
            "unaligned-to-xpu",
            "chunks-host-to-xpu",
        ],
        positive: &["bytes", "seconds", "bytes_per_s", "baseline_bytes_per_s", "workers"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "coalesce",
        cases: &["cpu-1", "xpu-1", "cpu-2", "xpu-2"],
        positive: &["ns_per_fault", "ns_per_fault_min", "ns_per_fault_max"],
        numbers: &["faults", "threads"],
        texts: &[],
    },
    Suite {
        name: "oversubscribe",
        cases: &["read-1.5-dip", "write-1.5-dip"],
        positive: &["seconds", "bytes_per_s", "bound_bytes_per_s", "pages_moved"],
        numbers: &["pages_optimum", "pages_written_back", "factor", "sweeps"],
        texts: &["policy"],
    },
    Suite {
        name: "pagesize",
        cases: &["sum", "update", "sort", "join", "stencil"],
        positive: &["seconds", "baseline_seconds", "bytes"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "cpu",
        cases: &[
            "zero-fill",
            "sum threads=1",
            "update threads=1",
            "sort threads=1",
            "join threads=1",
            "stencil threads=1",
            "sum threads=2",
            "update threads=2",
            "sort threads=2",
            "join threads=2",
            "stencil threads=2",
            "dedup threads=1",
            "map-reduce threads=1",
            "blocks threads=1",
            "dedup threads=2",
            "map-reduce threads=2",
            "blocks threads=2",
        ],
        positive: &["seconds", "baseline_seconds", "ratio_low_95", "ratio_high_95"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "steady",
        cases: &["iteration", "first-iteration"],
        positive: &["seconds", "baseline_seconds", "bytes"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "scale",
        cases: &[
            "lookup",
            "zero-fill",
            "lookups-at-once cores=2",
            "lookups-at-once cores=4",
            "migration-at-once cores=2",
            "migration-at-once cores=4",
        ],
        positive: &["seconds", "baseline_seconds"],
        numbers: &[],
        texts: &[],
    },
    Suite {
        name: "switch",
        cases: &["first-output", "against-cold-file", "against-page-cache", "against-sleep"],
        positive: &["seconds", "baseline_seconds", "model_bytes", "xpu_memory_bytes"],
        numbers: &["must_move_bytes"],
        texts: &[],
    },
];

/// The step `bench`.
pub(super) fn step(context: &Context) -> Result<Done> {
    context.workspace.build_release()?;
    let folder = std::env::temp_dir().join(format!("gmm-bench-step-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let result = run(context, &folder);
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    result
}

fn run(context: &Context, folder: &Path) -> Result<Done> {
    let mut command = context.workspace.command(context.workspace.gmm());
    let (report, results) = (folder.join("report.html"), folder.join("results.json"));
    command.args(["bench", "all", "--short", "--json", "--report"]).arg(&report);
    command.arg("--csv").arg(folder);
    let done = steps::run(command)?;
    steps::ensure_success(&done)?;
    let mut notes = Vec::new();
    for suite in &SUITES {
        let ratios =
            suite.check(&done.stdout).with_context(|| format!("gmm bench {}", suite.name))?;
        let cases = suite.cases.iter().zip(ratios);
        notes.extend(cases.map(|(case, ratio)| format!("{} {case} {ratio:.2}", suite.name)));
        let csv = folder.join(format!("{}.csv", suite.name));
        let csv = fs::read_to_string(&csv).with_context(|| csv.display().to_string())?;
        ensure!(csv.lines().count() > suite.cases.len(), "{}.csv lacks lines", suite.name);
    }
    let page = fs::read_to_string(&report).context("the report")?;
    ensure!(page.contains("<svg") && page.ends_with("</html>\n"), "the report is no whole page");
    // Nothing got slower since just now.
    fs::write(&results, &done.stdout)?;
    let mut command = context.workspace.command(context.workspace.gmm());
    command.args(["bench", "compare"]).args([&results, &results]);
    steps::ensure_success(&steps::run(command)?)?;
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
            let is_it = |line: &&Value| {
                let (name, parameter) = match case.split_once(' ') {
                    Some((name, parameter)) => (name, Some(parameter)),
                    None => (*case, None),
                };
                line["suite"] == self.name
                    && line["case"] == name
                    && parameter.is_none_or(|parameter| line["parameter"] == parameter)
            };
            let mut found = lines.iter().filter(is_it);
            let line = found.next().with_context(|| format!("no case {case}"))?;
            ensure!(found.next().is_none(), "two lines of case {case}");
            for key in POSITIVE.iter().chain(self.positive) {
                let value = &line[*key];
                ensure!(value.as_f64().is_some_and(|n| n > 0.0), "{case}: {key} is {value}");
            }
            for key in self.numbers {
                ensure!(line[*key].is_number(), "{case}: {key} is {}", line[*key]);
            }
            for key in TEXTS.iter().chain(self.texts) {
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

    const LATENCY: Suite = Suite {
        name: "latency",
        cases: &["to-xpu arriving", "to-cpu arriving"],
        positive: &["seconds"],
        numbers: &["overhead_us_median"],
        texts: &["unit"],
    };

    fn line(case: &str) -> Value {
        json!({
            "suite": "latency", "case": case, "parameter": "arriving", "baseline": "raw copy",
            "repeats": 5, "seconds": 0.1, "ratio": 0.5, "ratio_min": 0.4, "ratio_max": 0.6,
            "overhead_us_median": -1.0, "unit": "page",
        })
    }

    fn output(lines: &[Value]) -> String {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn check(lines: &[Value]) -> Result<Vec<f64>> {
        LATENCY.check(&output(lines))
    }

    #[test]
    fn a_whole_report_passes() {
        let mut other = line("to-xpu");
        other["parameter"] = "from-rest".into();
        let mut foreign = line("to-xpu");
        foreign["suite"] = "faults".into();
        let lines = [line("to-xpu"), other, foreign, line("to-cpu")];
        assert_eq!(check(&lines).unwrap(), [0.5, 0.5]);
    }

    #[test]
    fn a_case_that_is_missing_or_there_twice_fails() {
        assert!(check(&[line("to-xpu")]).is_err());
        assert!(check(&[line("to-xpu"), line("to-cpu"), line("to-cpu")]).is_err());
        assert!(LATENCY.check("no JSON\n").is_err());
    }

    #[test]
    fn a_line_that_lacks_anything_fails() {
        for key in line("to-xpu").as_object().unwrap().keys() {
            let mut poor = line("to-xpu");
            poor.as_object_mut().unwrap().remove(key);
            assert!(check(&[poor, line("to-cpu")]).is_err(), "{key}");
        }
    }
}
