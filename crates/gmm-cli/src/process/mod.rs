//! `gmm ps`, `stat`, `residency`, `prefetch`, `evict`: processes that use GMM, from outside, over
//! their control sockets.

mod moves;
mod ps;
mod residency;
mod stat;

use std::fmt::Display;
use std::io::{self, Write};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use gmm::control::protocol::{Command, Region, Regions};
use gmm::control::{Client, ClientError, Process};
use serde::Serialize;

pub use moves::{EvictArgs, PrefetchArgs, evict, prefetch};
pub use ps::{PsArgs, ps};
pub use residency::{ResidencyArgs, residency};
pub use stat::{StatArgs, stat};

/// Which process, and which memory of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    pid: u32,
    /// Without it, all that the process has.
    instance: Option<u32>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pid, instance) = match text.split_once('.') {
            Some((pid, instance)) => (pid, Some(instance)),
            None => (text, None),
        };
        let parse = |number: &str| number.parse::<u32>().ok();
        let target = match (parse(pid).filter(|&pid| pid > 0), instance.map(parse)) {
            (Some(pid), None) => Some(Self { pid, instance: None }),
            (Some(pid), Some(Some(instance))) => Some(Self { pid, instance: Some(instance) }),
            _ => None,
        };
        target.ok_or_else(|| "a process number, as 1234, or as `gmm ps` shows it, 1234.1".into())
    }
}

impl Target {
    /// The sockets it means; at least one.
    fn find(self) -> Result<Vec<Process>> {
        let Self { pid, instance } = self;
        let mut found = gmm::control::find(pid)?;
        if let Some(instance) = instance {
            found.retain(|process| process.instance == instance);
            if found.is_empty() {
                return Err(ClientError::NoSuchInstance { pid, instance }.into());
            }
        }
        Ok(found)
    }
}

/// What a process is called: with the number of its memory if that is not its first.
fn label(process: &Process) -> String {
    match process.instance {
        0 => process.pid.to_string(),
        instance => format!("{}.{instance}", process.pid),
    }
}

/// The regions of a process, by address.
fn regions(client: &mut Client) -> Result<Vec<Region>> {
    let mut all = Vec::new();
    let mut from = Some(0);
    while let Some(at) = from {
        let part: Regions = client.ask(Command::Regions { from: at }, |_| ())?;
        if part.next.is_some_and(|next| next <= at) {
            bail!("the process answers with the same regions again");
        }
        all.extend(part.regions);
        from = part.next;
    }
    Ok(all)
}

/// Writes to standard output. A reader that has gone away, as `head` does, is no error.
pub(crate) fn print(text: &impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output"),
    }
}

/// Writes an object on a line of its own.
fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string(value)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_number() {
        let parse = |text: &str| text.parse::<Target>();
        assert_eq!(parse("12"), Ok(Target { pid: 12, instance: None }));
        assert_eq!(parse("12.3"), Ok(Target { pid: 12, instance: Some(3) }));
        for text in ["", "0", "-1", "x", "12.", ".1", "12.x", "4294967296", "1.2.3"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
