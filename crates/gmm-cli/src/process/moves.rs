//! `gmm prefetch` and `gmm evict`: all pages of a process to a node, or out of it.

use anyhow::{Result, bail};
use clap::Args;
use gmm::control::Client;
use gmm::control::protocol::{Command, Moved, Progress};
use gmm::{PAGE_SIZE, display_bytes};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{Target, label, print, print_json};

/// What `gmm prefetch` takes.
#[derive(Debug, Args)]
pub struct PrefetchArgs {
    /// The process, as `gmm ps` lists it
    #[arg(long, short, value_name = "PID")]
    pid: Target,
    /// Where to: 0 is host memory, others are XPUs
    #[arg(long, short)]
    node: u8,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// What `gmm evict` takes.
#[derive(Debug, Args)]
pub struct EvictArgs {
    /// The process, as `gmm ps` lists it
    #[arg(long, short, value_name = "PID")]
    pid: Target,
    /// Off this node only [default: off all XPUs]
    #[arg(long, short, value_parser = clap::value_parser!(u8).range(1..))]
    node: Option<u8>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Brings all pages that have contents to a node, as far as there is room.
///
/// # Errors
/// If the process can't be asked, or pages can't be moved.
pub fn prefetch(args: &PrefetchArgs) -> Result<()> {
    let command = Command::Prefetch { node: args.node };
    run(args.pid, &command, args.json, &format!("brought to node {}", args.node))
}

/// Pushes pages out to host memory.
///
/// # Errors
/// If the process can't be asked, or pages can't be moved.
pub fn evict(args: &EvictArgs) -> Result<()> {
    run(args.pid, &Command::Evict { node: args.node }, args.json, "pushed out to host memory")
}

fn run(target: Target, command: &Command, is_json: bool, done: &str) -> Result<()> {
    let mut failures = Vec::new();
    for process in target.find()? {
        let mut client = Client::connect(&process)?;
        let bar = progress_bar();
        let moved: Moved = client.ask(command.clone(), |progress: Progress| {
            bar.set_length(progress.total_pages);
            bar.set_position(progress.done_pages);
        })?;
        bar.finish_and_clear();
        let name = label(&process);
        if is_json {
            let (pid, instance) = (process.pid, process.instance);
            print_json(&json!({"pid": pid, "instance": instance, "moved": moved}))?;
        } else {
            print(&describe(&name, &moved, done))?;
        }
        if moved.failed_pages > 0 {
            let why = moved.failure.unwrap_or_default();
            failures
                .push(format!("{} pages of {name} stay where they are: {why}", moved.failed_pages));
        }
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(())
}

fn describe(name: &str, moved: &Moved, done: &str) -> String {
    let size = |pages: u64| display_bytes(pages.saturating_mul(PAGE_SIZE));
    let mut text = format!("process {name}: {} {done}", size(moved.moved_pages));
    if moved.already_pages > 0 {
        text += &format!(", {} were there", size(moved.already_pages));
    }
    if moved.no_room_pages > 0 {
        text += &format!(", no room for {}", size(moved.no_room_pages));
    }
    text + "\n"
}

/// Shown on standard error, if that is a terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} pages {eta}");
    ProgressBar::new(0).with_style(style.expect("the template is a constant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_it_is_said_in_bytes() {
        let moved = Moved { moved_pages: 3, no_room_pages: 1, ..Moved::default() };
        let text = describe("7", &moved, "brought to node 1");
        assert_eq!(text, "process 7: 6.0 MiB brought to node 1, no room for 2.0 MiB\n");
    }
}
