//! `gmm ps`, `stat`, `residency`, `prefetch` and `evict` on a process that uses GMM.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use gmm::{Gmm, HostXpu, PAGE_SIZE};
use serde_json::Value;

/// Tells this program to be the process that is looked at.
const TARGET: &str = "GMM_TEST_TARGET";
const WORDS_A_PAGE: usize = PAGE_SIZE as usize / 8;

/// The process that is looked at: twelve pages, ten of them with contents, and an XPU of eight.
#[test]
fn target() {
    if std::env::var_os(TARGET).is_none() {
        return;
    }
    let xpu = HostXpu::with_memory(8 * PAGE_SIZE).config(|config| config.name("test XPU"));
    let gmm = Gmm::builder().xpu(xpu).build().unwrap();
    let mut weights = gmm.mmap_named::<u64>(12 * WORDS_A_PAGE, "weights").unwrap();
    let _other = gmm.mmap_named::<u8>(1, "other\x1b[2J").unwrap();
    for page in 0..10 {
        weights[page * WORDS_A_PAGE + page] = page as u64 + 1;
    }
    println!("target: ready");
    // Until the other end is closed.
    for line in std::io::stdin().lines() {
        let sum: u64 = weights.iter().sum();
        println!("target: {} {sum}", line.unwrap());
    }
    std::process::exit(0);
}

struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Target {
    /// Starts one, with a runtime folder of its own.
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gmm-ps-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["target", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(TARGET, "1").env("XDG_RUNTIME_DIR", &folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self { child, stdin, stdout, folder };
        assert_eq!(target.next_line(), "ready");
        target
    }

    fn next_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the target has ended");
            // The harness says things too, on the same line.
            if let Some((_, said)) = line.trim_end().split_once("target: ") {
                return said.to_owned();
            }
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// The command, with the target's runtime folder.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gmm"));
        command.args(args).env("XDG_RUNTIME_DIR", &self.folder);
        command
    }

    fn gmm(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// `gmm COMMAND --pid TARGET`, which succeeds.
    fn ask(&self, command: &str, args: &[&str]) -> String {
        let output = self.gmm(&[&[command, "--pid", &self.pid()], args].concat());
        assert!(output.status.success(), "{command} {args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The same with `--json`: the one line.
    fn json(&self, command: &str, args: &[&str]) -> Value {
        let said = self.ask(command, &[args, &["--json"]].concat());
        assert_eq!(said.lines().count(), 1, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    fn resident(&self) -> [u64; 2] {
        let counters = self.json("stat", &[]);
        [0, 1].map(|node| counters["counters"]["nodes"][node]["resident_frames"].as_u64().unwrap())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid()]).status().unwrap();
        assert!(sent.success());
    }

    /// The contents are as they were.
    fn assert_whole(&mut self) {
        writeln!(self.stdin.as_mut().unwrap(), "sum").unwrap();
        assert_eq!(self.next_line(), "sum 55");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let ended = self.child.wait().unwrap();
        let _ = std::fs::remove_dir_all(&self.folder);
        if !std::thread::panicking() {
            assert!(ended.success(), "{ended}");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What is said on standard error by a command that fails with that exit code.
fn failure(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stderr)
}

#[test]
fn ps_lists_it() {
    let target = Target::start("ps");
    let find = |said: String| {
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.into_iter().find(|line: &Value| line["pid"] == target.child.id()).unwrap()
    };
    let line = find(text(&target.gmm(&["ps", "--json"]).stdout));
    assert_eq!((&line["regions"], &line["error"]), (&2.into(), &Value::Null), "{line}");
    assert_eq!(line["mapped_bytes"], 13 * PAGE_SIZE);
    let node = &line["nodes"][1];
    assert_eq!((&node["device"], &node["node"]), (&"test XPU".into(), &1.into()));
    assert_eq!(line["nodes"][0]["resident_bytes"], 10 * PAGE_SIZE);
    assert!(line["command"].as_str().unwrap().contains("process-"), "{line}");

    let said = text(&target.gmm(&["ps"]).stdout);
    let line = said.lines().find(|line| line.trim_start().starts_with(&target.pid())).unwrap();
    for part in ["26.0 MiB", "20.0 MiB", "test XPU"] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    assert!(said.lines().next().unwrap().contains("NODE 1"), "{said}");
}

#[test]
fn stat_shows_counters_in_three_forms() {
    let target = Target::start("stat");
    assert_eq!(target.resident(), [10, 0]);
    let said = target.ask("stat", &[]);
    for part in [&format!("process {}\n", target.pid()), "node 1 (test XPU", "region weights"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(!said.contains('\x1b'), "what the process says does nothing to a terminal");
    let said = target.ask("stat", &["--prometheus"]);
    assert!(said.contains("# TYPE ") && said.contains("resident_frames"), "{said}");
    let both = target.gmm(&["stat", "--pid", &target.pid(), "--json", "--prometheus"]);
    failure(&both, 2);
}

#[test]
fn watching_ends_with_the_process() {
    let target = Target::start("watch");
    let args = ["stat", "--pid", &target.pid(), "--json", "--watch", "0.02"];
    let mut watcher = target.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["pid"], target.child.id());
    }
    drop(target);
    lines.for_each(drop);
    assert!(watcher.wait().unwrap().success());
}

#[test]
fn residency_shows_where_pages_are() {
    let target = Target::start("residency");
    let region = target.json("residency", &["--region", "weights"]);
    assert_eq!((&region["pages"], &region["writable"]), (&12.into(), &true.into()));
    let runs = region["runs"].as_array().unwrap();
    let pages: Vec<_> = runs.iter().map(|run| run["pages"].as_u64().unwrap()).collect();
    assert_eq!(pages, [10, 2]);
    assert_eq!(runs[0]["copies"][0]["node"], 0);
    assert_eq!(runs[1]["state"], "empty");

    let said = target.ask("residency", &[]);
    assert!(said.contains("\n  0000000000..\n"), "{said}");
    assert!(said.contains("page 0 to 9") && said.contains("mapped by the CPU"), "{said}");
    assert!(said.contains("region other") && !said.contains('\x1b'), "{said:?}");

    target.ask("prefetch", &["--node", "1"]);
    assert!(target.ask("residency", &["--region", "weights"]).contains("1100.."));

    let none = target.gmm(&["residency", "--pid", &target.pid(), "--region", "no such"]);
    let said = failure(&none, 1);
    assert!(said.contains("no such") && said.contains("weights"), "{said}");
}

#[test]
fn pages_are_moved_in_and_out() {
    let mut target = Target::start("moves");
    let said = target.ask("prefetch", &["--node", "1"]);
    let expected =
        format!("process {}: 16.0 MiB brought to node 1, no room for 4.0 MiB\n", target.pid());
    assert_eq!(said, expected);
    assert_eq!(target.resident()[1], 8);
    let answer = target.json("prefetch", &["--node", "1"]);
    assert_eq!(
        (&answer["moved"]["moved_pages"], &answer["moved"]["already_pages"]),
        (&0.into(), &8.into())
    );

    let answer = target.json("evict", &[]);
    assert_eq!(answer["moved"]["moved_pages"], 8);
    assert_eq!(target.resident(), [10, 0]);
    target.assert_whole();
    target.ask("prefetch", &["-n", "1"]);
    assert!(target.ask("evict", &["--node", "1"]).contains("pushed out to host memory"));
    target.ask("prefetch", &["--node", "0"]);
    target.assert_whole();
}

#[test]
fn it_is_found_where_it_was_started_with_another_folder() {
    let target = Target::start("folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmm"));
    command.args(["stat", "--pid", &target.pid()]).env_remove("XDG_RUNTIME_DIR");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn what_can_not_be_asked_is_said_with_what_to_do() {
    let target = Target::start("errors");
    for command in [&["stat"][..], &["residency"], &["prefetch", "--node", "1"], &["evict"]] {
        let ask = |pid: &str| target.gmm(&[command, &["--pid", pid]].concat());
        let said = failure(&ask("4194305"), 1);
        assert!(said.contains("no process 4194305") && said.contains("gmm ps"), "{said}");
        // This process has no unified memory.
        let said = failure(&ask(&std::process::id().to_string()), 1);
        assert!(said.contains("does not use GMM"), "{said}");
        let said = failure(&ask(&format!("{}.7", target.pid())), 1);
        assert!(said.contains("no memory number 7"), "{said}");
        for wrong in ["", "x", "-1", "0", "1.x"] {
            failure(&target.gmm(&[command, &[&format!("--pid={wrong}")]].concat()), 2);
        }
        failure(&target.gmm(command), 2);
    }
    let pid = &target.pid();
    for command in
        [["prefetch", "--pid", pid, "--node", "9"], ["evict", "--pid", pid, "--node", "9"]]
    {
        let said = failure(&target.gmm(&command), 1);
        assert!(said.contains("node 9"), "{said}");
    }
    failure(&target.gmm(&["evict", "--pid", pid, "--node", "0"]), 2);
    failure(&target.gmm(&["prefetch", "--pid", pid, "--node", "256"]), 2);
    failure(&target.gmm(&["stat", "--pid", pid, "--watch", "0"]), 2);
}

#[test]
fn another_user_is_sent_away() {
    let target = Target::start("user");
    let mut command = target.command(&["stat", "--pid", &target.pid()]);
    // Only root can be another.
    match command.uid(65534).gid(65534).output() {
        Ok(output) => {
            let said = failure(&output, 1);
            assert!(said.contains("belongs to user 0") && said.contains("sudo"), "{said}");
        }
        Err(error) => eprintln!("SKIPPED: another user can't be tried here: {error}"),
    }
}

#[test]
fn a_process_that_is_stopped_is_listed_all_the_same() {
    let mut target = Target::start("stopped");
    target.signal("-STOP");
    let said = text(&target.gmm(&["ps"]).stdout);
    target.signal("-CONT");
    let line = said.lines().find(|line| line.contains(&target.pid())).unwrap();
    assert!(line.contains("does not answer"), "{line}");
    target.assert_whole();
}

#[test]
fn who_is_interrupted_leaves_nothing_under_way() {
    let mut target = Target::start("interrupted");
    for _ in 0..5 {
        let args = ["prefetch", "--pid", &target.pid(), "--node", "1"];
        let mut child = target.command(&args).stdout(Stdio::null()).spawn().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Pages may be on the move for the last one, for a moment.
    let start = std::time::Instant::now();
    loop {
        let output = target.gmm(&["evict", "--pid", &target.pid()]);
        if output.status.success() {
            break;
        }
        assert!(text(&output.stderr).contains("another client"), "{output:?}");
        assert!(start.elapsed().as_secs() < 60, "it never ends");
    }
    target.assert_whole();
    let mut rest = String::new();
    drop(target.stdin.take());
    target.stdout.read_to_string(&mut rest).unwrap();
}
