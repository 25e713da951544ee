//! `gmm demo`: a language model on an XPU whose memory is a fraction of the model.
//!
//! [`model`] reads the weights straight into unified memory, [`encoder`] launches kernels with plain
//! pointers to them, and the manager moves pages. All of it runs on an [`accelerator::Accelerator`]: the
//! host XPU, or the CPU alone ([`cpu_only`]), with equal results.

pub mod accelerator;
pub mod alike;
pub mod config;
pub mod cpu_only;
pub mod encoder;
pub mod host_xpu;
pub mod memory;
pub mod model;
pub mod random;
pub mod recorder;
pub mod reference;
pub mod report;
pub mod size;
pub mod texts;
pub mod tokens;
pub mod weights;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use gmm::{TraceGuard, TraceSummary};
use indicatif::{ProgressBar, ProgressStyle};

use accelerator::Accelerator;
use cpu_only::CpuOnly;
use encoder::Encoder;
use host_xpu::HostXpu;
use model::{Model, Source};
use recorder::Recorder;
use reference::{Reference, TOLERANCE};
use report::{Case, Report};

/// What `gmm demo` can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of the model: model.safetensors, config.json and tokenizer.json.
    #[arg(long, value_name = "DIR", conflicts_with = "random_weights")]
    pub model: Option<PathBuf>,

    /// Run the same network with weights from a seed: the same memory traffic, no meaning.
    #[arg(long)]
    pub random_weights: bool,

    /// The XPU's own memory, such as 16MiB or 1GiB.
    #[arg(long, value_name = "SIZE", default_value = "24MiB", value_parser = size::parse)]
    pub xpu_memory: u64,

    /// How many cores the XPU has.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub xpu_cores: u16,

    /// A file of sentences, a line each; blank lines are skipped.
    #[arg(long = "texts", value_name = "FILE")]
    pub texts_file: Option<PathBuf>,

    /// Compare with the known answers in this file; without sentences of your own, run its.
    #[arg(long, value_name = "FILE", conflicts_with = "random_weights")]
    pub reference: Option<PathBuf>,

    /// Print one JSON object and nothing else on the standard output.
    #[arg(long)]
    pub json: bool,

    /// Write what the manager does to this file, which Perfetto opens (at ui.perfetto.dev).
    #[arg(long, value_name = "FILE", conflicts_with = "cpu_only")]
    pub trace: Option<PathBuf>,

    /// Also run without the XPU, recording which pages are used in what order, and say how few moves
    /// would have been enough for that order.
    #[arg(long, conflicts_with = "cpu_only")]
    pub optimum: bool,

    /// Leave the XPU out: the CPU runs the same kernels in ordinary memory.
    #[arg(long)]
    pub cpu_only: bool,

    /// Sentences.
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
}

/// Runs the demo and prints what it found.
///
/// # Errors
/// On bad input, if the XPU fails, or if a result is further from its reference than [`TOLERANCE`].
pub fn run(args: Args) -> Result<()> {
    let reference = args.reference.as_deref().map(Reference::read).transpose()?;
    let texts = gather_texts(&args, reference.as_ref())?;
    let model = Model::open(choose_source(&args)?)?;
    let (machine, trace) = build_machine(&args)?;
    let report = encode(&args, &model, machine.as_ref(), texts, reference.as_ref())?;
    if let Some(trace) = trace {
        let TraceSummary { records, dropped, .. } = trace.finish()?;
        eprintln!("The trace has {records} events ({dropped} dropped): open it on ui.perfetto.dev");
    }

    let mut out = std::io::stdout().lock();
    let printed = if args.json { report.write_json(&mut out) } else { report.write_text(&mut out) };
    match printed.and_then(|()| out.flush()) {
        // A reader that has gone away, as `head` does, has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        result => result.context("can't print the report")?,
    }
    match report.max_abs_error {
        Some(worst) if worst > TOLERANCE => {
            bail!("the largest error, {worst:e}, is beyond the {TOLERANCE:e} allowed")
        }
        _ => Ok(()),
    }
}

fn gather_texts(args: &Args, reference: Option<&Reference>) -> Result<Vec<String>> {
    let mut texts = args.texts.clone();
    if let Some(path) = &args.texts_file {
        texts.extend(texts::read(path)?);
    }
    if !texts.is_empty() {
        if let Some(reference) = reference {
            ensure!(
                texts.iter().any(|text| reference.find(text).is_some()),
                "the reference knows none of the {} texts",
                texts.len()
            );
        }
        return Ok(texts);
    }
    Ok(match reference {
        Some(reference) => reference.cases.iter().map(|case| case.text.clone()).collect(),
        None => texts::BUILT_IN.map(str::to_owned).into(),
    })
}

fn choose_source(args: &Args) -> Result<Source> {
    if args.random_weights {
        eprintln!(
            "Random weights: what this says of memory holds, what it says of texts does not."
        );
        return Ok(Source::Random);
    }
    if let Some(folder) = args.model.clone().or_else(model::find_cached) {
        return Ok(Source::Folder(folder));
    }
    ensure!(args.reference.is_none(), "a reference needs the model: name it with --model DIR");
    eprintln!(
        "No model here (name one with --model DIR), so the same network runs with random weights:"
    );
    eprintln!("what this says of memory holds, what it says of texts does not.");
    Ok(Source::Random)
}

/// The machine, and the trace of it that is being written.
fn build_machine(args: &Args) -> Result<(Box<dyn Accelerator>, Option<TraceGuard>)> {
    if args.cpu_only {
        return Ok((Box::new(CpuOnly::new(args.xpu_cores.into())), None));
    }
    let (memory, cores) = (args.xpu_memory, args.xpu_cores.into());
    let xpu = HostXpu::new(memory, cores).with_context(|| {
        format!("can't make an XPU with {} of memory and {cores} cores", size::show(memory))
    })?;
    let trace = args.trace.as_deref().map(|path| xpu.trace_to(path)).transpose()?;
    Ok((Box::new(xpu), trace))
}

fn encode(
    args: &Args,
    model: &Model,
    machine: &dyn Accelerator,
    texts: Vec<String>,
    reference: Option<&Reference>,
) -> Result<Report> {
    let tokens = texts
        .iter()
        .map(|text| model.tokens.encode(text, model.config.vocab_size))
        .collect::<Result<Vec<_>>>()?;

    let begun = Instant::now();
    let bar = progress_bar(args, "reading weights", "{binary_bytes} of {binary_total_bytes}");
    let weights = model.weights(machine, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let load_seconds = begun.elapsed().as_secs_f64();
    let weights_bytes = weights.nr_bytes();
    let encoder = Encoder::new(machine, model.config.clone(), weights)?;

    let begun = Instant::now();
    let bar = progress_bar(args, "running the encoder", "{pos} of {len} launches");
    let embeddings = encoder.encode(&tokens, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    let memory = machine.memory()?;
    let pages_optimum = match args.optimum {
        true => Some(fewest_moves(args, model, &tokens)?),
        false => None,
    };

    let mut cases = Vec::new();
    for ((text, tokens), embedding) in texts.into_iter().zip(&tokens).zip(embeddings) {
        let known = reference.and_then(|reference| reference.find(&text));
        let max_abs_error = known.map(|known| known.compare(tokens, &embedding)).transpose()?;
        cases.push(Case { text, nr_tokens: tokens.len(), embedding, max_abs_error });
    }
    Ok(Report {
        weights: model.origin.clone(),
        weights_bytes,
        max_abs_error: cases.iter().filter_map(|case| case.max_abs_error).reduce(f64::max),
        cases,
        load_seconds,
        seconds,
        xpu_cores: args.xpu_cores.into(),
        pages_optimum,
        memory,
    })
}

/// How many pages had to be moved to the XPU at least.
fn fewest_moves(args: &Args, model: &Model, tokens: &[Vec<u32>]) -> Result<u64> {
    let recorder = Recorder::new(args.xpu_cores.into());
    let weights = model.weights(&recorder, &mut |_, _| {})?;
    Encoder::new(&recorder, model.config.clone(), weights)?.encode(tokens, &mut |_, _| {})?;
    Ok(recorder.fewest_moves((args.xpu_memory / gmm::PAGE_SIZE) as usize))
}

/// A bar on the standard error, if that is a terminal.
fn progress_bar(args: &Args, what: &'static str, figures: &str) -> ProgressBar {
    if args.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = format!("{{msg:20}} [{{wide_bar}}] {figures}");
    let bar = ProgressBar::new(0).with_message(what);
    match ProgressStyle::with_template(&template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
