//! `gmm doctor`: can GMM run on this machine, and how well?
//!
//! [`facts`] looks, [`checks`] judges (pure functions of the facts), [`fix`] mends what root may
//! mend, [`report`] says it, for people or in JSON.

mod checks;
mod facts;
mod fix;
mod report;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use facts::Facts;
use report::Report;

/// Say what this machine has that GMM needs: a line each, ok or not, what is lost, how to fix it.
///
/// Looks at the kernel version, access to userfaultfd and its features, 2 MiB huge pages, how
/// frames of an XPU will be backed, memory and its limits, overcommit, max_map_count.
/// Exits with 0 if GMM can run, with 1 if something necessary is missing.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gmm doctor
  gmm doctor --json | python3 -m json.tool
  sudo gmm doctor --fix

--fix sets vm.max_map_count, vm.unprivileged_userfaultfd, the mode of /dev/userfaultfd and
transparent_hugepage/enabled, and of these only what a line above calls not ok. It lasts until the
next start of the machine.")]
pub(crate) struct Args {
    /// Apply the fixes that root may apply, and say what was there before and after.
    #[arg(long)]
    fix: bool,
    /// One JSON object: `can_run`, `checks`, `fixes`.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = Path::new("/");
    let mut checks = checks::all(&Facts::gather());
    let mut fixes = Vec::new();
    if args.fix {
        let wanted: Vec<_> = checks.iter().filter_map(|check| check.action()).collect();
        if !wanted.is_empty() && !rustix::process::geteuid().is_root() {
            bail!("--fix changes settings of the kernel, which takes root: sudo gmm doctor --fix");
        }
        fixes = wanted.iter().map(|action| fix::apply(action, root)).collect();
        checks = checks::all(&Facts::gather());
    }
    let report = Report::new(&checks, &fixes);
    crate::print(&if args.json { report.json()? } else { report.text(args.fix) })?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
