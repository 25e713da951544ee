//! The command `gmm`.
use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Runs a language model on an XPU whose memory is a fraction of the model.
    Demo(gmm_cli::demo::Args),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Demo(args) => gmm_cli::demo::run(args),
    }
}
