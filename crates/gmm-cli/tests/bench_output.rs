//! What `gmm bench` does with its output, from the outside.

use std::fs;
use std::process::{Command, Stdio};

#[test]
fn a_run_whose_reader_has_gone_ends_at_its_first_result() {
    let folder = std::env::temp_dir().join(format!("gmm-bench-gone-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmm"));
    command.args(["bench", "coalesce", "--faults", "1", "--repeats", "5", "--json", "--csv"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.arg(&folder).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
    // A line of names, and one of six results.
    let csv = fs::read_to_string(folder.join("coalesce.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    fs::remove_dir_all(folder).unwrap();
}
