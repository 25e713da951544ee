//! `gmm stat`: the counters of a process.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use gmm::control::protocol::{Command, StatFormat};
use gmm::control::{Client, Process};
use serde_json::{Value, json};

use super::{Target, label, print, print_json};

/// What `gmm stat` takes.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// The process, as `gmm ps` lists it
    #[arg(long, short, value_name = "PID")]
    pid: Target,
    /// One JSON object a line
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// The text that Prometheus reads
    #[arg(long)]
    prometheus: bool,
    /// Again after so many seconds, until the process ends
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    watch: Option<Duration>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s: f64| Duration::try_from_secs_f64(s).ok());
    let seconds = seconds.filter(|s| *s >= Duration::from_millis(10));
    seconds.ok_or_else(|| "a number of seconds, at least 0.01".into())
}

/// Prints the counters.
///
/// # Errors
/// If the process can't be asked.
pub fn stat(args: &StatArgs) -> Result<()> {
    let processes = args.pid.find()?;
    one_look(args, &processes)?;
    let Some(pause) = args.watch else { return Ok(()) };
    loop {
        std::thread::sleep(pause);
        // That it has ended is what was waited for.
        let Ok(processes) = args.pid.find() else { return Ok(()) };
        if let Err(error) = one_look(args, &processes) {
            return if args.pid.find().is_ok() { Err(error) } else { Ok(()) };
        }
    }
}

fn one_look(args: &StatArgs, processes: &[Process]) -> Result<()> {
    let mut text = String::new();
    for process in processes {
        let mut client = Client::connect(process)?;
        let mut get = |format| client.ask::<Value>(Command::Stat { format }, |_| ());
        if args.json {
            let counters = get(StatFormat::Json)?;
            let (pid, instance) = (process.pid, process.instance);
            print_json(&json!({"pid": pid, "instance": instance, "counters": counters}))?;
            continue;
        }
        let format = if args.prometheus { StatFormat::Prometheus } else { StatFormat::Text };
        let answer = get(format)?;
        if !args.prometheus {
            text += &format!("process {}\n", label(process));
        }
        text += answer.as_str().unwrap_or_default();
    }
    if !args.prometheus {
        text = without_controls(&text);
        if args.watch.is_some() && std::io::stdout().is_terminal() {
            // In the same place as before.
            text.insert_str(0, "\x1b[H\x1b[J");
        }
    }
    print(&text)
}

/// What a process says of itself does nothing to a terminal.
fn without_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_positive_number() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "1e300", "x"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
