//! `gmm residency`: where the pages of each region of a process are.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use gmm::control::protocol::{Command, Region, Residency, Run, page_address};
use gmm::control::{Client, Process};
use gmm::{PAGE_SIZE, display_bytes};
use serde_json::json;

use super::{Target, label, print, print_json, regions};

/// What `gmm residency` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
The map has a character for each page, or for several where a region is large: `.` nothing is there
yet, `0` to `9` and `a` to `f` the one node that has a copy, `*` several nodes have equal copies,
`?` the page is on the move, `~` pages that are not alike.

Examples:
  gmm residency --pid 1234
  gmm residency --pid 1234 --region weights
  gmm residency --pid 1234 --json | jq '.runs[].copies'")]
pub struct ResidencyArgs {
    /// The process, as `gmm ps` lists it
    #[arg(long, short, value_name = "PID")]
    pid: Target,
    /// Only regions of this name
    #[arg(long, short, value_name = "NAME")]
    region: Option<String>,
    /// One JSON object a region and line
    #[arg(long)]
    json: bool,
}

/// Characters of a map on one line, and how many lines there are at most.
const MAP_WIDTH: u64 = 64;
const MAP_LINES: u64 = 8;

/// How many runs of pages are shown in words.
const SHOWN_RUNS: usize = 16;

/// Prints where pages are.
///
/// # Errors
/// If the process can't be asked, or has no region of that name.
pub fn residency(args: &ResidencyArgs) -> Result<()> {
    let mut names = Vec::new();
    let mut nr_shown = 0;
    for process in args.pid.find()? {
        let mut client = Client::connect(&process)?;
        let all = regions(&mut client)?;
        names.extend(all.iter().map(|region| region.name.clone()));
        let wanted = |r: &&Region| args.region.as_ref().is_none_or(|name| *name == r.name);
        for region in all.iter().filter(wanted) {
            let runs = runs(&mut client, region)?;
            match args.json {
                true => print_json(&as_json(&process, region, &runs))?,
                false => print(&describe(&process, region, &runs))?,
            }
            nr_shown += 1;
        }
    }
    match &args.region {
        Some(name) if nr_shown == 0 => {
            names.sort();
            names.dedup();
            bail!("there is no region {name:?}; there are {names:?}")
        }
        _ if nr_shown == 0 && !args.json => print(&"the process has no regions\n"),
        _ => Ok(()),
    }
}

/// The runs of a region, by address.
fn runs(client: &mut Client, region: &Region) -> Result<Vec<Run>> {
    let end = region.first_page.saturating_add(region.pages);
    let mut all = Vec::new();
    let mut from = Some(region.first_page);
    while let Some(at) = from {
        let command = Command::Residency { from: at, pages: end.saturating_sub(at) };
        let part: Residency = client.ask(command, |_| ())?;
        if part.next.is_some_and(|next| next <= at) {
            bail!("the process answers with the same pages again");
        }
        all.extend(part.runs);
        from = part.next;
    }
    Ok(all)
}

fn as_json(process: &Process, region: &Region, runs: &[Run]) -> serde_json::Value {
    json!({
        "pid": process.pid,
        "instance": process.instance,
        "region": region.name,
        "address": page_address(region.first_page),
        "pages": region.pages,
        "writable": region.writable,
        "runs": runs,
    })
}

fn describe(process: &Process, region: &Region, runs: &[Run]) -> String {
    let name = if region.name.is_empty() { "(unnamed)" } else { &region.name };
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut text = format!(
        "region {name} of process {}: {} at {}{}\n",
        label(process),
        display_bytes(region.pages.saturating_mul(PAGE_SIZE)),
        page_address(region.first_page),
        if region.writable { "" } else { ", read-only" },
    );
    let (pages_a_char, map) = map(region, runs);
    for line in map.chunks(MAP_WIDTH as usize) {
        let _ = writeln!(text, "  {}", line.iter().collect::<String>());
    }
    if pages_a_char > 1 {
        let _ = writeln!(text, "  ({pages_a_char} pages a character)");
    }
    for run in runs.iter().take(SHOWN_RUNS) {
        let first = run.first_page.saturating_sub(region.first_page);
        let last = first.saturating_add(run.pages).saturating_sub(1);
        let _ = writeln!(text, "  page {:<13} {}", pages(first, last), story(run));
    }
    if let Some(more) = runs.len().checked_sub(SHOWN_RUNS).filter(|&more| more > 0) {
        let _ = writeln!(text, "  and {more} more runs of pages (--json lists them)");
    }
    text
}

fn pages(first: u64, last: u64) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

/// What is to be said of a run.
fn story(run: &Run) -> String {
    let mut words = match run.copies.as_slice() {
        [] => run.state.clone(),
        copies => {
            let copies = copies.iter().map(|copy| {
                let pinned = if copy.pinned { ", pinned" } else { "" };
                format!("node {} ({}{pinned})", copy.node, copy.moved_by)
            });
            copies.collect::<Vec<_>>().join(" and ")
        }
    };
    for (verb, processors) in [("mapped by", &run.mapped), ("written by", &run.writable)] {
        if !processors.is_empty() {
            let who = processors.iter().map(|&p| match p {
                0 => "the CPU".to_owned(),
                p => format!("processor {p}"),
            });
            let _ = write!(words, ", {verb} {}", who.collect::<Vec<_>>().join(" and "));
        }
    }
    words
}

/// How many pages a character stands for, and the characters.
fn map(region: &Region, runs: &[Run]) -> (u64, Vec<char>) {
    let pages_a_char = region.pages.div_ceil(MAP_WIDTH * MAP_LINES).max(1);
    let nr_chars = region.pages.div_ceil(pages_a_char) as usize;
    let mut map = vec![None; nr_chars];
    for run in runs {
        let Some(first) = run.first_page.checked_sub(region.first_page) else { continue };
        let last = first.saturating_add(run.pages.saturating_sub(1));
        let last = ((last / pages_a_char) as usize).min(nr_chars.saturating_sub(1));
        for at in (first / pages_a_char) as usize..=last {
            let Some(place) = map.get_mut(at) else { break };
            let sign = sign(run);
            *place = Some(place.map_or(sign, |old| if old == sign { sign } else { '~' }));
        }
    }
    (pages_a_char, map.into_iter().map(|sign| sign.unwrap_or(' ')).collect())
}

fn sign(run: &Run) -> char {
    match run.copies.as_slice() {
        [] if run.state == "empty" => '.',
        [] => '?',
        [copy] => char::from_digit(copy.node.into(), 16).unwrap_or('+'),
        _ => '*',
    }
}

#[cfg(test)]
mod tests {
    use gmm::control::protocol::CopyOfPage;

    use super::*;

    fn run(first_page: u64, pages: u64, nodes: &[u8]) -> Run {
        let copies = nodes.iter().map(|&node| CopyOfPage {
            node,
            pinned: false,
            moved_by: "fault of processor 1".into(),
        });
        let state = ["empty", "exclusive", "shared"][nodes.len().min(2)].to_owned();
        let copies = copies.collect();
        Run { first_page, pages, state, copies, mapped: vec![], writable: vec![] }
    }

    fn region(pages: u64) -> Region {
        Region { name: "a".into(), first_page: 100, pages, writable: true }
    }

    fn map_of(pages: u64, runs: &[Run]) -> (u64, String) {
        let (pages_a_char, map) = map(&region(pages), runs);
        (pages_a_char, map.into_iter().collect())
    }

    #[test]
    fn a_small_region_has_a_character_a_page() {
        let mut moving = run(106, 1, &[]);
        moving.state = "in-motion".into();
        let runs =
            [run(100, 2, &[]), run(102, 1, &[0]), run(103, 2, &[0, 1]), run(105, 1, &[12]), moving];
        assert_eq!(map_of(8, &runs), (1, "..0**c? ".into()));
    }

    #[test]
    fn a_large_one_has_several_pages_a_character() {
        let (pages_a_char, map) = map_of(1024, &[run(100, 511, &[0]), run(611, 513, &[1])]);
        assert_eq!((pages_a_char, map.len()), (2, 512));
        assert_eq!(&map[254..257], "0~1");
        // What a process says that makes no sense is no harm.
        assert_eq!(map_of(3, &[run(0, 9, &[]), run(u64::MAX, u64::MAX, &[1])]), (1, "   ".into()));
        assert_eq!(map_of(0, &[run(100, 0, &[])]).1, "");
    }

    #[test]
    fn a_run_is_told_in_words() {
        let mut shared = run(1, 2, &[0, 1]);
        (shared.mapped, shared.writable) = (vec![0, 3], vec![]);
        assert_eq!(
            story(&shared),
            "node 0 (fault of processor 1) and node 1 (fault of processor 1), mapped by the CPU \
             and processor 3"
        );
        assert_eq!(story(&run(1, 1, &[])), "empty");
        assert_eq!((pages(3, 3).as_str(), pages(3, 5).as_str()), ("3", "3 to 5"));
    }
}
