//! `gmm man DIR`: the manual pages, made from the definition of the command line, so that they
//! can't differ from it. For packagers; `cargo xtask man` calls it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Write the manual pages to a folder.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder; it must be there.
    folder: PathBuf,
}

pub(crate) fn run(mut command: clap::Command, args: &Args) -> Result<ExitCode> {
    command.build();
    write(&command, "gmm", args)?;
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        if subcommand.get_name() != "help" {
            write(subcommand, &format!("gmm-{}", subcommand.get_name()), args)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes one page and prints where it lies.
fn write(command: &clap::Command, name: &str, args: &Args) -> Result<()> {
    let path = args.folder.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut page)?;
    fs::write(&path, page).with_context(|| format!("can't write {}", path.display()))?;
    Ok(crate::print(&format!("{}\n", path.display()))?)
}
