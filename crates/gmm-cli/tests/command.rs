//! The command `gmm` from the outside: exit codes, where errors go, what it writes.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn gmm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gmm")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_doctors_exit_code_is_what_its_json_says() {
    let output = gmm(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let missing = checks.iter().any(|check| check["necessary"] == true && check["ok"] == false);
    assert_eq!(report["can_run"], !missing);
    assert_eq!(output.status.code(), Some(i32::from(missing)));
    for check in checks {
        // Who is told of a problem is told what is lost and what to do.
        assert_eq!(check["ok"] == false, check["lost"].is_string(), "{check}");
        assert_eq!(check["ok"] == false, check["fix"].is_string(), "{check}");
    }
}

#[test]
fn the_doctor_says_one_line_for_each_check() {
    let report: Value = serde_json::from_slice(&gmm(&["doctor", "--json"]).stdout).unwrap();
    let lines = text(&gmm(&["doctor"]).stdout);
    for check in report["checks"].as_array().unwrap() {
        let begins = format!("{}:", check["name"].as_str().unwrap());
        let about =
            lines.lines().filter(|line| line.get(10..).is_some_and(|l| l.starts_with(&begins)));
        assert_eq!(about.count(), 1, "{begins}\n{lines}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gmm"))
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), gmm(&["doctor"]).status.code());
}

#[test]
fn a_wrong_command_line_exits_with_two() {
    for args in [&["no-such-command"][..], &["doctor", "--no-such-option"], &[]] {
        let output = gmm(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_failure_names_its_cause_and_exits_with_one() {
    let output = gmm(&["man", "/no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.starts_with("gmm: ") && error.contains("/no/such/folder"), "{error}");
    assert!(error.contains("No such file or directory"), "{error}");
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = std::env::temp_dir().join(format!("gmm-man-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let output = gmm(&["man", folder.to_str().unwrap()]);
    let mut pages: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let doctor = fs::read_to_string(folder.join("gmm-doctor.1"));
    fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success());
    assert!(doctor.unwrap().contains("Examples:"));

    pages.sort();
    let help = text(&gmm(&["--help"]).stdout);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let mut expected: Vec<_> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(|name| format!("gmm-{name}.1"))
        .collect();
    expected.push("gmm.1".into());
    expected.sort();
    assert_eq!(pages, expected);
}
