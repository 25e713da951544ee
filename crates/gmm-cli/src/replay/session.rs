//! Reads the files, replays what they record, and gives the results as they come.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gmm::display_bytes;
use gmm_trace::{Format, Recording, Trace};
use indicatif::{ProgressBar, ProgressStyle};

use super::allocators::{Entry, MAX_CAPACITY_BYTES, Recipe};
use super::options::Args;
use super::page::{self, Section};
use super::program::{Failed, Program};
use super::record::{Record, Subject};
use super::remaps::remaps;
use super::story::Story;
use super::{advice, execute, executed, export, measure, recorded, summary};
use crate::process::print;

/// The width of what is no terminal.
const PLAIN_WIDTH: usize = 100;

/// Replays what was asked for. A file that can't be read does not keep the others from being
/// replayed.
///
/// # Errors
/// If a file can't be read, or is no recording; and if results can't be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let allocators = args.allocators();
    if args.export.is_some() && (args.files.len(), allocators.len()) != (1, 1) {
        eprintln!("gmm: --export writes one replay: name one file, and one allocator, such as");
        eprintln!("gmm: gmm replay FILE --allocator stitching --export replay.pickle");
        return Ok(ExitCode::from(2));
    }
    if let Some(path) = overwritten(args) {
        eprintln!("gmm: {} is a recording that is read: write to another file", path.display());
        return Ok(ExitCode::from(2));
    }
    if args.remaps && allocators.iter().all(|entry| entry.name != "stitching") {
        eprintln!("gmm: --remaps is about the stitching allocator: add it to --allocator");
        return Ok(ExitCode::from(2));
    }
    let mut session = Session { args, allocators, progress: progress_bar(), page: Vec::new() };
    let mut failures = Vec::new();
    for path in &args.files {
        if let Err(error) = session.file(path) {
            failures.push(format!("{error:#}"));
        }
    }
    session.progress.finish_and_clear();
    if let Some(path) = args.html.as_ref().filter(|_| !session.page.is_empty())
        && let Err(error) = std::fs::write(path, page::page(session.page))
    {
        failures.push(format!("can't write {}: {error}", path.display()));
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\ngmm: "));
    }
    Ok(ExitCode::SUCCESS)
}

/// An output that is a recording, too.
fn overwritten(args: &Args) -> Option<&Path> {
    let outputs = [&args.html, &args.export].into_iter().flatten();
    let is_read = |path: &&PathBuf| {
        let Ok(path) = path.canonicalize() else { return false };
        args.files.iter().filter_map(|file| file.canonicalize().ok()).any(|file| file == path)
    };
    outputs.filter(is_read).map(AsRef::as_ref).next()
}

fn joined(errors: &[anyhow::Error]) -> String {
    errors.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>().join("\ngmm: ")
}

struct Session<'a> {
    args: &'a Args,
    allocators: Vec<&'static Entry>,
    progress: ProgressBar,
    /// The sections of the page so far.
    page: Vec<page::Written>,
}

impl Session<'_> {
    fn file(&mut self, path: &Path) -> Result<()> {
        let name = path.display().to_string();
        let trace = self.read(path)?;
        if trace.recordings.is_empty() {
            bail!("{name}: nothing was recorded of any device");
        }
        for recording in &trace.recordings {
            let device = recording.device();
            self.device(&name, &trace, recording)
                .with_context(|| format!("{name}, device {device}"))?;
        }
        self.export(trace)
    }

    /// Writes the replay that was asked for as a snapshot.
    fn export(&self, trace: Trace) -> Result<()> {
        let Some(path) = &self.args.export else { return Ok(()) };
        let recipe = Recipe::Named(self.allocators[0]);
        let replays = trace.recordings.iter().map(|recording| {
            let program = Program::new(recording, self.failed());
            export::record(&program, recipe, self.capacity(recording))
        });
        let recordings = replays.collect::<Result<_>>()?;
        let exported = Trace { format: Format::Snapshot, recordings, settings: None, ..trace };
        let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
        gmm_trace::write_snapshot(&exported, file).with_context(|| path.display().to_string())
    }

    /// Whether what failed would have fitted is a question only where there is a capacity.
    fn failed(&self) -> Failed {
        if self.args.capacity.is_some() { Failed::Retried } else { Failed::LeftOut }
    }

    fn capacity(&self, recording: &Recording) -> u64 {
        let ample = || measure::ample_capacity(recording.peak_live_bytes());
        self.args.capacity.unwrap_or_else(ample)
    }

    /// Reads a file; how far it has come is shown in bytes.
    fn read(&self, path: &Path) -> Result<Trace> {
        let name = path.display();
        let about = std::fs::metadata(path).with_context(|| format!("can't read {name}"))?;
        if about.is_dir() {
            bail!("{name} is a folder: name the recordings in it, such as {name}/*.pickle");
        }
        self.progress.set_style(style("reading {msg} {bar:30} {bytes}/{total_bytes}"));
        self.progress.set_message(name.to_string());
        self.progress.set_length(about.len());
        self.progress.set_position(0);
        gmm_trace::read_file(path, &mut |bytes| self.progress.set_position(bytes))
            .with_context(|| name.to_string())
    }

    fn device(&mut self, file: &str, trace: &Trace, recording: &Recording) -> Result<()> {
        let program = Program::new(recording, self.failed());
        let peak_live_bytes = program.peak_live_bytes();
        if peak_live_bytes > MAX_CAPACITY_BYTES {
            bail!(
                "{peak_live_bytes} bytes live at once, more than the {} of the largest device \
                 there is for replays: is the recording damaged?",
                display_bytes(MAX_CAPACITY_BYTES)
            );
        }
        let capacity_bytes = self.capacity(recording);
        let device = recording.device();
        let gaps = recording.gaps().total();
        let subject = Subject { file, device, gaps, peak_live_bytes, capacity_bytes };
        self.progress.set_style(style("{prefix} {bar:30} {pos}/{len} {msg}"));
        self.progress.set_prefix(format!("{file}, device {device}"));
        self.progress.set_length(self.allocators.len() as u64);
        self.progress.set_position(0);
        let record = |entry: &&'static Entry| {
            self.progress.set_message(entry.name);
            let record = self.measure(&program, subject, entry);
            self.progress.inc(1);
            record
        };
        // One that can't do it does not keep the others from it.
        let (mut records, mut failures) = (Vec::new(), Vec::new());
        for entry in &self.allocators {
            match record(entry) {
                Ok(record) => records.push(record),
                Err(error) => failures.push(error.context(entry.name)),
            }
        }
        if records.is_empty() {
            bail!(joined(&failures));
        }
        let mut story = Story::new(&program, &records, trace.settings.as_ref(), self.args.capacity);
        if self.args.html.is_some() || story.is_tight(&program, &records) {
            self.progress.set_length(advice::NR_TRIED);
            self.progress.set_position(0);
            story.advise(&program, trace, &mut |what| {
                self.progress.set_message(what.to_owned());
                self.progress.inc(1);
            })?;
        }
        self.show(&mut records, &story, trace, recording)?;
        if self.args.html.is_some() {
            let pictures = story.pictures(&program)?;
            let recorded = recorded::timeline(recording, program.len());
            let section = Section {
                records: &records,
                story: &story,
                pictures: &pictures,
                recorded: recorded.as_ref(),
                recording,
                sites: &trace.sites,
            };
            self.page.push(section.write(self.page.len()));
        }
        if self.args.execute {
            self.execute(file, recording)?;
        }
        if failures.is_empty() { Ok(()) } else { bail!(joined(&failures)) }
    }

    /// Runs it for real, and says what became of it. What memory lost is an error, after that.
    fn execute(&self, file: &str, recording: &Recording) -> Result<()> {
        let program = Program::new(recording, Failed::LeftOut);
        self.progress.set_length(program.len() as u64);
        self.progress.set_position(0);
        self.progress.set_message("executed");
        let played = || self.progress.inc(1);
        let executed = execute::execute(&program, self.args.execute_memory, played)
            .context("it could not be executed")?;
        let text = if self.args.json {
            let line = executed::Line { file, device: recording.device(), execute: &executed };
            serde_json::to_string(&line)? + "\n"
        } else {
            summary::executed(&executed, program.len(), width())
        };
        self.progress.suspend(|| print(&text))?;
        executed.intact()
    }

    fn measure(
        &self,
        program: &Program<'_>,
        subject: Subject<'_>,
        entry: &'static Entry,
    ) -> Result<Record> {
        let recipe = Recipe::Named(entry);
        let replayed = measure::replay(program, recipe, subject.capacity_bytes)?;
        let ns_per_op = measure::time_per_operation(program, recipe, subject.capacity_bytes)?;
        let mut record = Record::new(subject, entry.name, replayed, ns_per_op);
        if self.args.find_capacity {
            let least = measure::find_capacity(program, recipe, subject.peak_live_bytes)?;
            record.set_min_capacity(least);
        }
        if self.args.remaps && entry.name == "stitching" {
            record.remaps = Some(remaps(program, recipe, subject.peak_live_bytes)?);
        }
        Ok(record)
    }

    fn show(
        &self,
        records: &mut [Record],
        story: &Story,
        trace: &Trace,
        recording: &Recording,
    ) -> Result<()> {
        let text = if self.args.json {
            let leading = records.iter_mut().find(|record| record.allocator == story.leading);
            if let Some(leading) = leading {
                leading.advice = story.advice.clone();
            }
            let lines = records.iter().map(|record| Ok(serde_json::to_string(record)? + "\n"));
            lines.collect::<Result<String>>()?
        } else {
            let nr_events = recording.events().len();
            summary::text(records, story, nr_events, &trace.sites, width()) + "\n"
        };
        self.progress.suspend(|| print(&text))
    }
}

/// Shown on standard error, if that is a terminal.
fn progress_bar() -> ProgressBar {
    ProgressBar::new(0)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}

/// How many characters a line of standard output has.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    size.map_or(PLAIN_WIDTH, |size| match size.ws_col {
        0 => PLAIN_WIDTH,
        columns => usize::from(columns),
    })
}
