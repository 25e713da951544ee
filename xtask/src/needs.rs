//! What the demo needs on a machine, each named precisely when it is missing.

use std::env;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process::{self, Show};
use crate::workspace::Workspace;

/// Looks for the Rust compiler (of the version that the manifest asks for), a C compiler, which
/// links what Rust compiles, and Python's pip, which fetches the model. Only a missing pip can be
/// done without. Says what it found.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut missing = Vec::new();

    let wanted = rust_version(workspace);
    match first_line(&mut workspace.command("rustc"), &["--version"]) {
        None => missing.push(format!("Rust {wanted} or later: `rustc` can't be run")),
        Some(found) if older(&found, &wanted) => {
            missing
                .push(format!("Rust {wanted} or later: this is {found}; `rustup update stable`"));
        }
        Some(found) => eprintln!("  found {found}"),
    }

    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    match first_line(&mut workspace.command(&compiler), &["--version"]) {
        None => missing.push(format!(
            "a C compiler, to link with: `{compiler}` can't be run; Debian and Ubuntu: `apt install gcc`"
        )),
        Some(found) => eprintln!("  found {found}"),
    }

    match pip(workspace) {
        Ok(found) => eprintln!("  found {found}"),
        Err(why) => eprintln!("  {why}; it is needed only to fetch the model"),
    }

    if !missing.is_empty() {
        bail!("this machine lacks:\n  {}", missing.join("\n  "));
    }
    Ok(())
}

/// The version line of `python3 -m pip`, or what is missing.
pub(crate) fn pip(workspace: &Workspace) -> Result<String> {
    if first_line(&mut workspace.command("python3"), &["--version"]).is_none() {
        bail!("no `python3` on this machine; Debian and Ubuntu: `apt install python3-pip`");
    }
    match first_line(&mut workspace.command("python3"), &["-m", "pip", "--version"]) {
        Some(line) => Ok(line),
        None => bail!("`python3` has no pip; Debian and Ubuntu: `apt install python3-pip`"),
    }
}

/// The `rust-version` of the workspace's packages.
fn rust_version(workspace: &Workspace) -> String {
    let version = workspace.metadata["packages"][0]["rust_version"].as_str();
    version.unwrap_or("1.95").to_owned()
}

fn first_line(command: &mut Command, args: &[&str]) -> Option<String> {
    let limit = Duration::from_secs(60);
    let done = process::run(command.args(args), Show::Nothing, limit).ok()?;
    done.success().then(|| done.stdout.lines().next().unwrap_or_default().to_owned())
}

/// Is the compiler that says `rustc 1.94.0 (...)` older than `1.95`?
fn older(line: &str, wanted: &str) -> bool {
    let numbers = |version: &str| -> Vec<u32> {
        version.split(['.', '-']).map_while(|n| n.parse().ok()).collect()
    };
    numbers(line.split(' ').nth(1).unwrap_or_default()) < numbers(wanted)
}

#[cfg(test)]
mod tests {
    use super::older;

    #[test]
    fn compares_versions_by_number() {
        assert!(older("rustc 1.94.1 (abc 2026-01-01)", "1.95"));
        assert!(older("rustc 1.9.0", "1.95"));
        assert!(!older("rustc 1.95.0 (abc)", "1.95"));
        assert!(!older("rustc 1.100.0-nightly (abc)", "1.95"));
        assert!(!older("rustc 2.0.0", "1.95.3"));
    }

    #[test]
    fn a_line_without_a_version_is_too_old() {
        assert!(older("something else", "1.95"));
    }
}
