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
use gmm_cli::process;

/// One memory for CPUs and accelerators (XPUs): one pointer that is valid on every processor.
#[derive(Parser)]
#[command(name = "gmm", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  gmm demo                 a language model on an XPU with a fraction of its size
  gmm bench faults         how fast pages move by faults
  gmm replay run.pickle    where a PyTorch program's memory went, and what would have fitted
  gmm ps                   which processes use GMM, and how much of what
  gmm stat --pid 1234      what one of them has done so far
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
    /// Measure how fast the manager is, against raw copies.
    #[command(after_help = "\
Examples:
  gmm bench all --report report.html           everything, as one page, in five minutes
  gmm bench faults                             256 MiB each way, nine times
  gmm bench faults --bytes 64MiB --json        one JSON object a line
  gmm bench faults --peers                     and how others move the same bytes
  gmm bench faults --spin-us 0                 with both sides asleep while they wait
  gmm bench oversubscribe                      sweeps over up to 4 times the XPU's memory
  gmm bench compare OLD.json NEW.json          what got slower since

Figures are medians over the repeats. Believe the ratio more than the speeds: subject and raw
copies are measured in turn, so that what disturbs the machine disturbs both.")]
    Bench(gmm_cli::bench::Args),
    /// List the processes that use GMM: their regions, and what each node holds of them.
    ///
    /// Shows your own processes; root sees everybody's.
    #[command(after_help = "\
Examples:
  gmm ps
  gmm ps --json | jq 'select(.command | test(\"train\"))'")]
    Ps(process::PsArgs),
    /// Show the counters of a process: faults, moves, evictions, who holds how much.
    #[command(after_help = "\
Examples:
  gmm stat --pid 1234
  gmm stat --pid 1234 --watch 1
  gmm stat --pid 1234 --json | jq .counters
  gmm stat --pid 1234 --prometheus > /var/lib/node_exporter/gmm.prom")]
    Stat(process::StatArgs),
    /// Show where the pages of each region of a process are.
    Residency(process::ResidencyArgs),
    /// Bring all pages of a process to a node, as far as there is room.
    ///
    /// Pages that nobody has touched are not made, and what lies on the node is not pushed out for
    /// others. The process may go on meanwhile. Interrupted, it stops after a few pages.
    #[command(after_help = "\
Examples:
  gmm prefetch --pid 1234 --node 1    before a burst of work on the XPU
  gmm prefetch --pid 1234 --node 0    before the CPU reads all of it")]
    Prefetch(process::PrefetchArgs),
    /// Push all pages of a process out of the XPUs, to host memory.
    ///
    /// Their memory is free for other pages then; a process that goes on fetches back what it
    /// uses. Pages that are pinned, or held by a launch, stay. Interrupted, it stops after a few
    /// pages.
    #[command(after_help = "\
Examples:
  gmm evict --pid 1234              off all XPUs
  gmm evict --pid 1234 --node 2     off one")]
    Evict(process::EvictArgs),
    /// Say what other allocators would have needed for what a program allocated: from PyTorch's memory
    /// snapshots.
    ///
    /// Reads what was recorded, does the same with each allocator, and compares what they reserve with
    /// what was live (the sum of the sizes asked for). Operations are counted from 1, what was alive
    /// when the recording began first: in an event list, by line. Requests that failed when they were
    /// recorded are tried again if a capacity is given, and else left out.
    #[command(after_help = "\
Examples:
  gmm replay snapshot.pickle                           reserved, live, fragmentation
  gmm replay snapshot.pickle --capacity 24GiB          would it have run out on a card of 24 GiB?
  gmm replay run.txt --find-capacity                   the smallest card for each allocator
  gmm replay run.txt --allocator stitching --remaps    the price of small cards
  gmm replay run.txt --execute                         for real, on memory that is looked at
  gmm replay *.pickle --json | jq '{file, allocator, utilisation}'

A snapshot is what torch.cuda.memory._snapshot() returns after
torch.cuda.memory._record_memory_history(), pickled. It is data to this command: nothing in it runs.")]
    Replay(gmm_cli::replay::Args),
    Doctor(doctor::Args),
    #[command(hide = true)]
    Man(man::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => gmm_cli::demo::run(args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => gmm_cli::bench::run(args),
        Command::Ps(args) => process::ps(&args).map(|()| ExitCode::SUCCESS),
        Command::Stat(args) => process::stat(&args).map(|()| ExitCode::SUCCESS),
        Command::Residency(args) => process::residency(&args).map(|()| ExitCode::SUCCESS),
        Command::Prefetch(args) => process::prefetch(&args).map(|()| ExitCode::SUCCESS),
        Command::Evict(args) => process::evict(&args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => gmm_cli::replay::run(&args),
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
