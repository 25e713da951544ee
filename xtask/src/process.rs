//! Runs a command: no standard input, a time limit, its output passed on line by line and kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// What of a command's output is passed on while it runs. All of it is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// Standard output and standard error.
    All,
    /// Standard error only.
    Errors,
    /// Nothing.
    Nothing,
}

/// A command that ended by itself.
pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn success(&self) -> bool {
        self.status.success()
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// How it ended, in words, such as `exit status: 2`.
    pub(crate) fn how(&self) -> String {
        self.status.to_string()
    }
}

/// How long what a command started may outlive it.
const AFTERMATH: Duration = Duration::from_secs(20);

/// Runs `command` to its end. An error means that it could not be started or ran longer than
/// `limit`; it and its children are then killed.
pub(crate) fn run(command: &mut Command, show: Show, limit: Duration) -> Result<Finished> {
    run_within(command, show, limit, AFTERMATH)
}

fn run_within(
    command: &mut Command,
    show: Show,
    limit: Duration,
    aftermath: Duration,
) -> Result<Finished> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("can't start {name}"))?;
    let stdout = child.stdout.take().context("no pipe")?;
    let stderr = child.stderr.take().context("no pipe")?;
    let stdout = thread::spawn(move || pass_on(stdout, show == Show::All, std::io::stdout()));
    let stderr = thread::spawn(move || pass_on(stderr, show != Show::Nothing, std::io::stderr()));

    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(2);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            kill_tree(child.id());
            child.wait()?;
            bail!("{name} was killed: it ran longer than {} s", limit.as_secs());
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    // Whatever it left running holds its output open: what was said by then is all there will be.
    let deadline = Instant::now() + aftermath;
    while !(stdout.is_finished() && stderr.is_finished()) {
        if Instant::now() >= deadline {
            bail!("{name} ended ({status}), but left a process that holds its output");
        }
        thread::sleep(Duration::from_millis(2));
    }
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(Finished { status, stdout: text(stdout), stderr: text(stderr) })
}

/// Reads to the end; each line is written to `out` at once when it is to be shown. A reader of our
/// own output who went away is no reason to stop.
fn pass_on(from: impl Read, show: bool, mut out: impl Write) -> String {
    let mut from = BufReader::new(from);
    let mut text = String::new();
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line) {
        if show {
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
        text.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    text
}

/// Kills a process and all that descend from it, parents first, so that none is started anew.
fn kill_tree(pid: u32) {
    let children = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children: Vec<u32> = children
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| pid.parse().ok())
        .collect();
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended just now: then there is nothing to kill.
        let _ = kill_process(pid, Signal::KILL);
    }
    children.into_iter().for_each(kill_tree);
}

/// The processor time of all children that have ended and of theirs. Zero where the kernel does not
/// say.
pub(crate) fn cpu_of_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: u64 = fields_after_name(&stat).skip(13).take(2).flat_map(str::parse::<u64>).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// The fields of a line of `/proc/PID/stat` that follow the name, which may hold anything: the
/// state, the parent, ..., as 14th and 15th the user and system time of the children.
fn fields_after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace()
}

/// `text` without terminal colour sequences.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Finished> {
        run(Command::new("sh").args(["-c", script]), Show::Errors, limit)
    }

    #[test]
    fn keeps_both_outputs_and_the_exit_code() {
        let done = shell("echo out; echo err >&2; exit 7", Duration::from_secs(60)).unwrap();
        assert_eq!(done.stdout, "out\n");
        assert_eq!(done.stderr, "err\n");
        assert_eq!(done.code(), Some(7));
        assert!(!done.success());
    }

    #[test]
    fn the_time_limit_kills() {
        let error = shell("exec sleep 600", Duration::ZERO).err().unwrap();
        assert!(error.to_string().contains("ran longer than"), "{error}");
    }

    #[test]
    fn a_kill_reaches_grandchildren() {
        let mut parent = Command::new("sh")
            .args(["-c", "sh -c 'echo up; exec sleep 600' & wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(parent.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        kill_tree(parent.id());
        parent.wait().unwrap();
        // The grandchild holds the other end: the output ends only when it is gone.
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_process_left_behind_is_no_reason_to_wait_for_ever() {
        let file = std::env::temp_dir().join(format!("xtask-left-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $! > \"$0\""]).arg(&file);
        let limit = Duration::from_secs(60);
        let error = run_within(&mut command, Show::Nothing, limit, Duration::ZERO).err().unwrap();
        let left = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        kill_tree(left.trim().parse().unwrap());
        assert!(error.to_string().contains("left a process"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let result = run(&mut Command::new("no-such-program"), Show::All, Duration::from_secs(1));
        assert!(result.err().unwrap().to_string().contains("no-such-program"));
    }

    #[test]
    fn the_processor_time_of_children_is_counted() {
        let before = cpu_of_children();
        shell("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", Duration::from_secs(60))
            .unwrap();
        assert!(cpu_of_children() > before);
    }

    #[test]
    fn a_name_does_not_shift_the_fields() {
        let fields: Vec<_> = fields_after_name("7 (a) b) S 1 2").collect();
        assert_eq!(fields, ["S", "1", "2"]);
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(plain("\u{1b}[1;32mok\u{1b}[0m 3"), "ok 3");
    }
}
