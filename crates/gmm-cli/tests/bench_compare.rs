//! `gmm bench compare` from the outside: what it prints, and the exit code that scripts go by.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// A file with one case for each list of ratios.
fn results(folder: &Path, name: &str, cases: &[(&str, [f64; 5])]) -> PathBuf {
    let line = |(case, ratios): &(&str, [f64; 5])| {
        let result = json!({
            "suite": "faults", "case": case, "parameter": "sequential", "baseline": "raw copy",
            "seconds": 0.1, "ratio": ratios[2], "ratio_min": ratios[0], "ratio_max": ratios[4],
            "repeats": 5, "ratios": ratios, "overhead_us_median": 12.5,
        });
        format!("{result}\n")
    };
    let path = folder.join(name);
    fs::write(&path, cases.iter().map(line).collect::<String>()).unwrap();
    path
}

fn compare(old: &Path, new: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmm"));
    command.args(["bench", "compare"]).args([old, new]).args(options).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const FAST: [f64; 5] = [0.90, 0.91, 0.92, 0.93, 0.94];
const SLOW: [f64; 5] = [0.70, 0.71, 0.72, 0.73, 0.74];

#[test]
fn the_exit_code_says_whether_anything_got_slower() {
    let folder = std::env::temp_dir().join(format!("gmm-compare-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let old = results(&folder, "old.json", &[("to-xpu", FAST), ("to-cpu", SLOW), ("gone", FAST)]);
    let new = results(&folder, "new.json", &[("to-xpu", SLOW), ("to-cpu", FAST), ("here", FAST)]);

    let output = compare(&old, &new, &[]);
    assert_eq!(output.status.code(), Some(1));
    let lines = text(&output.stdout);
    let begins: Vec<_> = lines.lines().map(|line| line.split([':', ',']).next().unwrap()).collect();
    let wanted =
        ["slower", "missing in the new file", "missing in the old file", "faster", "1 slower"];
    assert_eq!(begins, wanted, "{lines}");

    // A tolerance of more than what it lost.
    assert_eq!(compare(&old, &new, &["--tolerance", "30"]).status.code(), Some(0));
    let same = compare(&old, &old, &["--json"]);
    assert_eq!(same.status.code(), Some(0));
    let verdicts: Vec<Value> =
        text(&same.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(verdicts.len(), 3);
    assert!(verdicts.iter().all(|line| line["verdict"] == "as_before"), "{verdicts:?}");

    fs::write(folder.join("bad.json"), "no result\n").unwrap();
    let bad = compare(&old, &folder.join("bad.json"), &[]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(text(&bad.stderr).contains("bad.json") && text(&bad.stderr).contains("line 1"));
    assert_eq!(text(&bad.stdout), "");
    let other = results(&folder, "other.json", &[("elsewhere", FAST)]);
    let nothing = compare(&old, &other, &[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(text(&nothing.stderr).contains("no case in common"), "{}", text(&nothing.stderr));
    fs::remove_dir_all(folder).unwrap();
}
