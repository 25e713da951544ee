//! `gmm ps`: who uses GMM, and how much of what.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use gmm::control::protocol::{Command, Hello};
use gmm::control::{Client, Process};
use gmm::{PAGE_SIZE, display_bytes};
use serde::Serialize;

use super::{label, print, print_json};

/// How long a process may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much of a command line is shown.
const SHOWN_COMMAND_CHARS: usize = 40;

/// What `gmm ps` takes.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// A line of the list.
#[derive(Serialize)]
struct Line {
    pid: u32,
    instance: u32,
    command: String,
    /// Why nothing more is known.
    error: Option<String>,
    #[serde(flatten)]
    known: Option<Known>,
    #[serde(skip)]
    label: String,
}

#[derive(Serialize)]
struct Known {
    version: String,
    regions: u64,
    mapped_bytes: u64,
    nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Node {
    node: u8,
    device: String,
    resident_bytes: u64,
    capacity_bytes: u64,
}

/// Lists the processes that use GMM.
///
/// # Errors
/// If standard output can't be written.
pub fn ps(args: &PsArgs) -> Result<()> {
    let processes = gmm::control::processes();
    // Those that don't answer are waited for together.
    let lines: Vec<Line> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            processes.iter().map(|process| scope.spawn(|| Line::of(process))).collect();
        asked.into_iter().map(|line| line.join().expect("it does not panic")).collect()
    });
    if args.json {
        return lines.iter().try_for_each(print_json);
    }
    if lines.is_empty() {
        return print(&"no process that you may ask uses GMM\n");
    }
    print(&format_args!("{}\n", table(&lines)))
}

fn table(lines: &[Line]) -> Table {
    let nr_nodes = lines.iter().filter_map(|line| line.known.as_ref()).map(|k| k.nodes.len());
    let nr_nodes = nr_nodes.max().unwrap_or(0);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = ["PID", "REGIONS", "MAPPED"].map(str::to_owned).to_vec();
    header.extend((0..nr_nodes).map(|node| match node {
        0 => "HOST".to_owned(),
        node => format!("NODE {node}"),
    }));
    header.extend(["XPUS", "COMMAND"].map(str::to_owned));
    table.set_header(header);
    for line in lines {
        let mut row = vec![line.label.clone()];
        match &line.known {
            Some(known) => {
                row.push(known.regions.to_string());
                row.push(display_bytes(known.mapped_bytes));
                let resident =
                    |node: usize| known.nodes.get(node).map(|n| display_bytes(n.resident_bytes));
                row.extend((0..nr_nodes).map(|node| resident(node).unwrap_or_default()));
                let xpus: Vec<_> =
                    known.nodes.iter().skip(1).map(|node| node.device.as_str()).collect();
                row.push(xpus.join(", "));
            }
            None => row.extend(vec!["?".to_owned(); 3 + nr_nodes]),
        }
        let command: String = line.command.chars().take(SHOWN_COMMAND_CHARS).collect();
        let error = line.error.as_ref().map(|error| format!(" ({error})"));
        row.push(command + &error.unwrap_or_default());
        table.add_row(row);
    }
    for column in 0..3 + nr_nodes {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl Line {
    fn of(process: &Process) -> Self {
        let (known, error) = match Known::of(process) {
            Ok(known) => (Some(known), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let command = command_of(process.pid);
        let (pid, instance, label) = (process.pid, process.instance, label(process));
        Self { pid, instance, command, error, known, label }
    }
}

impl Known {
    fn of(process: &Process) -> Result<Self> {
        let mut client = Client::connect(process)?;
        client.set_patience(PATIENCE);
        let hello: Hello = client.ask(Command::Hello, |_| ())?;
        let nodes = hello.nodes.into_iter().map(|n| Node {
            node: n.node,
            device: n.device,
            resident_bytes: n.resident_pages.saturating_mul(PAGE_SIZE),
            capacity_bytes: n.capacity_pages.saturating_mul(PAGE_SIZE),
        });
        Ok(Self {
            version: hello.version,
            regions: hello.regions,
            mapped_bytes: hello.pages.saturating_mul(PAGE_SIZE),
            nodes: nodes.collect(),
        })
    }
}

/// The command line, on one line; nothing if the process has gone meanwhile.
fn command_of(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    // What it says is another's: no control characters of it reach a terminal.
    words.join(" ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
