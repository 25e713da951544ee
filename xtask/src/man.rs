//! `cargo xtask man`: the manual pages, which the command writes from its own definition.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::{self, Show};
use crate::workspace::Workspace;

pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    println!("{}", write(&workspace)?.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// Builds the command, lets it write its pages, and returns where they lie.
pub(crate) fn write(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.target.join("man");
    fs::create_dir_all(&folder)?;
    let args = ["run", "--quiet", "--release", "--package", "gmm-cli", "--", "man"];
    let mut command = workspace.cargo(&args);
    command.arg(&folder);
    let done = process::run(&mut command, Show::Errors, Duration::from_secs(45 * 60))?;
    ensure!(done.success(), "gmm man: {}", done.how());
    let pages: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
    ensure!(pages.iter().any(|page| page.ends_with("/gmm.1")), "gmm man wrote no gmm.1");
    Ok(pages)
}
