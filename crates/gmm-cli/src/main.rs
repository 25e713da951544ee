//! The command `gmm`.
//!
//! Exit codes: 0 it worked, 1 it did not (the reason is on standard error, after `gmm: `),
//! 2 the command line is wrong.
#![forbid(unsafe_code)]

mod doctor;
mod man;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// One memory for CPUs and accelerators (XPUs): one pointer that is valid on every processor.
#[derive(Parser)]
#[command(name = "gmm", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  gmm demo                 a language model on an XPU with a fraction of its size
  gmm bench faults         how fast pages move by faults
  gmm doctor               can GMM run here, and how well?
  sudo gmm doctor --fix    mend what root may mend

`gmm help COMMAND` says more, with examples.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a language model on an XPU whose memory is a fraction of the model.
    #[command(after_help = "\
Examples:
  gmm demo --model DIR \"A page fault.\" \"A cache miss.\"
  gmm demo --model DIR --xpu-memory 16MiB --texts FILE --json
  gmm demo --random-weights

`cargo xtask demo` fetches the model and does the rest.")]
    Demo(gmm_cli::demo::Args),
    /// Measure how fast pages move by faults, against raw copies.
    #[command(after_help = "\
Examples:
  gmm bench faults                             256 MiB each way, nine times
  gmm bench faults --bytes 64MiB --json        one JSON object a line
  gmm bench faults --spin-us 0                 with both sides asleep while they wait

Figures are medians over the repeats. Believe the ratio more than the speeds: subject and raw
copies are measured in turn, so that what disturbs the machine disturbs both.")]
    Bench(gmm_cli::bench::Args),
    Doctor(doctor::Args),
    #[command(hide = true)]
    Man(man::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => gmm_cli::demo::run(args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => gmm_cli::bench::run(args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args),
        Command::Man(args) => man::run(Cli::command(), &args),
    };
    result.unwrap_or_else(|error| {
        // The whole chain of causes, on one line.
        eprintln!("gmm: {error:#}");
        ExitCode::FAILURE
    })
}

/// Writes to standard output. A reader that has gone away, as `head` does, is no error.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_line_is_told_from_a_failure() {
        let error = Cli::try_parse_from(["gmm", "no-such-command"]).err().unwrap();
        assert_eq!(error.exit_code(), 2);
    }
}
