//! Migration by faults: the XPU, then the CPU, touches one word in each 4 KiB of memory that lies
//! on the other side. Each repeat takes the four measurements in turn, so that what disturbs the
//! machine disturbs subject and baseline alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{Gmm, HostXpu, Kernel, MIB, PAGE_SIZE, Stream, Unified, display_bytes};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::FaultArgs;
use super::distribution::Distribution;
use super::raw::RawCopies;

/// Words of 8 bytes from one touch to the next.
const TOUCH_STRIDE_WORDS: usize = 512;
const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// One line of the result.
#[derive(Debug, Serialize)]
struct Line<'a> {
    case: &'static str,
    bytes: u64,
    repeats: usize,
    /// Medians over the repeats.
    seconds: f64,
    bytes_per_s: f64,
    raw_copy_bytes_per_s: f64,
    /// The fraction of raw copy speed, pair by pair: median and extremes.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    /// The time of a fault beyond the median raw copy of a page.
    overhead_us_median: f64,
    overhead_us_p99: f64,
    /// By what fraction the same takes longer with the event trace on, pair by pair: median.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_overhead: Option<f64>,
    frame_backing: &'a str,
}

/// One direction's measurements.
#[derive(Default)]
struct Samples {
    faulted: Vec<f64>,
    raw: Vec<f64>,
    /// As `faulted`, with the event trace on.
    traced: Vec<f64>,
    /// Of each page, in seconds.
    pages: Vec<f64>,
}

pub(super) fn run(args: &FaultArgs) -> anyhow::Result<()> {
    let least = MIN_FRAMES * PAGE_SIZE;
    ensure!(args.bytes >= least, "--bytes is {}; it must be at least {least}", args.bytes);
    let nr_pages = args.bytes.div_ceil(PAGE_SIZE);
    let bytes = nr_pages * PAGE_SIZE;
    let rounds = args.repeats + 1;
    let progress = progress_bar(u64::from(rounds) + 1, args.json);

    progress.set_message("setting up");
    let configure = |config: HostXpuConfig| {
        let config = config.cores(1).copy_engines(1);
        match args.spin_us {
            Some(us) => config.spin(Duration::from_micros(us)),
            None => config,
        }
    };
    let raw = RawCopies::new(nr_pages, configure(HostXpuConfig::new(bytes)))?;
    // Four frames more than the memory: the page of the times, and the driver's slack.
    let xpu = HostXpu::with_memory(bytes + 8 * MIB).config(configure);
    let gmm = Gmm::builder().xpu(xpu).build()?;
    let mut bench = Bench::new(&gmm, nr_pages, args)?;
    let (mut to_xpu, mut to_cpu) = (Samples::default(), Samples::default());
    for round in 0..rounds {
        progress.inc(1);
        let warm_up = round == 0;
        progress.set_message(if warm_up { "warming up" } else { "faults and raw copies in turn" });
        // In turn, so that what comes first does so as often as the other.
        let traced_first = round % 2 == 1;
        if traced_first {
            bench.traced_round(&gmm, args, &mut to_xpu, &mut to_cpu)?;
        }
        bench.round(&raw, &mut to_xpu, &mut to_cpu)?;
        if !traced_first {
            bench.traced_round(&gmm, args, &mut to_xpu, &mut to_cpu)?;
        }
        if warm_up {
            (to_xpu, to_cpu) = Default::default();
        }
    }
    progress.finish_and_clear();

    let backing = gmm.frame_backing();
    let backing = backing.first().map_or("none", |(_, backing)| backing);
    for (case, samples) in [("to-xpu", to_xpu), ("to-cpu", to_cpu)] {
        let line = summarise(case, bytes, samples, backing);
        if args.json {
            println!("{}", serde_json::to_string(&line)?);
        } else {
            print(&line);
        }
    }
    Ok(())
}

struct Bench {
    data: Unified<u64>,
    /// Nanoseconds that each page's touches took on the XPU.
    times: Unified<u64>,
    stream: Stream,
    touch: Kernel,
}

impl Bench {
    fn new(gmm: &Gmm, nr_pages: u64, args: &FaultArgs) -> anyhow::Result<Self> {
        let xpu = gmm.xpu(1)?;
        let mut bench = Self {
            data: gmm.mmap_named(nr_pages as usize * PAGE_WORDS, "bench data")?,
            times: gmm.mmap_named(nr_pages as usize, "bench times")?,
            stream: xpu.stream()?,
            touch: xpu.load(&args.kernels)?.kernel("touch_timed")?,
        };
        bench.data.iter_mut().step_by(TOUCH_STRIDE_WORDS).for_each(|word| *word = 1);
        Ok(bench)
    }

    fn round(
        &mut self,
        raw: &RawCopies,
        to_xpu: &mut Samples,
        to_cpu: &mut Samples,
    ) -> anyhow::Result<()> {
        to_xpu.raw.push(raw.to_xpu()?.as_secs_f64());
        to_xpu.faulted.push(self.touch_on_xpu()?.as_secs_f64());
        to_xpu.pages.extend(self.times.iter().map(|&ns| ns as f64 * 1e-9));
        to_cpu.raw.push(raw.to_cpu()?.as_secs_f64());
        to_cpu.faulted.push(self.touch_on_cpu(&mut to_cpu.pages).as_secs_f64());
        Ok(())
    }

    /// The same faults with the event trace on, if that was asked for.
    fn traced_round(
        &mut self,
        gmm: &Gmm,
        args: &FaultArgs,
        to_xpu: &mut Samples,
        to_cpu: &mut Samples,
    ) -> anyhow::Result<()> {
        let Some(path) = &args.trace else { return Ok(()) };
        let trace = gmm.trace_to(path)?;
        to_xpu.traced.push(self.touch_on_xpu()?.as_secs_f64());
        to_cpu.traced.push(self.touch_on_cpu(&mut Vec::new()).as_secs_f64());
        let dropped = trace.finish()?.dropped;
        ensure!(dropped == 0, "the trace dropped {dropped} records");
        Ok(())
    }

    /// The XPU writes a word in each 4 KiB, so that every page moves there.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn touch_on_xpu(&mut self) -> anyhow::Result<Duration> {
        let args = (self.data.as_mut_ptr(), self.data.len_bytes(), self.times.as_mut_ptr());
        let start = Instant::now();
        // SAFETY: both buffers are as long as the kernel is told, and are ours until it is done.
        unsafe { self.stream.launch(&self.touch, 1, args)?.wait()? };
        Ok(start.elapsed())
    }

    /// The CPU reads a word in each 4 KiB, so that every page moves back.
    fn touch_on_cpu(&self, pages: &mut Vec<f64>) -> Duration {
        let start = Instant::now();
        for page in self.data.chunks(PAGE_WORDS) {
            let before = Instant::now();
            let sum = page.iter().step_by(TOUCH_STRIDE_WORDS).fold(0u64, |s, w| s.wrapping_add(*w));
            black_box(sum);
            pages.push(before.elapsed().as_secs_f64());
        }
        start.elapsed()
    }
}

fn summarise<'a>(case: &'static str, bytes: u64, samples: Samples, backing: &'a str) -> Line<'a> {
    let nr_pages = bytes / PAGE_SIZE;
    let repeats = samples.raw.len();
    let ratios = samples.raw.iter().zip(&samples.faulted).map(|(raw, faulted)| raw / faulted);
    let ratio = Distribution::new(ratios.collect());
    let traced = samples.traced.iter().zip(&samples.faulted);
    let traced: Vec<_> = traced.map(|(traced, plain)| traced / plain - 1.0).collect();
    let trace_overhead = (!traced.is_empty()).then(|| Distribution::new(traced).median());
    let raw = Distribution::new(samples.raw).median();
    let seconds = Distribution::new(samples.faulted).median();
    let raw_page = raw / nr_pages as f64;
    let overhead = samples.pages.iter().map(|page| (page - raw_page) * 1e6);
    let overhead = Distribution::new(overhead.collect());
    Line {
        case,
        bytes,
        repeats,
        seconds,
        bytes_per_s: bytes as f64 / seconds,
        raw_copy_bytes_per_s: bytes as f64 / raw,
        ratio: ratio.median(),
        ratio_min: ratio.min(),
        ratio_max: ratio.max(),
        overhead_us_median: overhead.median(),
        overhead_us_p99: overhead.percentile(0.99),
        trace_overhead,
        frame_backing: backing,
    }
}

fn print(line: &Line<'_>) {
    println!(
        "{}: {} in {} faults at {}/s, raw copies {}/s (frames: {})",
        line.case,
        display_bytes(line.bytes),
        line.bytes / PAGE_SIZE,
        display_bytes(line.bytes_per_s as u64),
        display_bytes(line.raw_copy_bytes_per_s as u64),
        line.frame_backing,
    );
    println!(
        "  ratio {:.2} ({:.2} to {:.2} over {} repeats); a fault takes {:.0} µs beyond its copy \
         (p99 {:.0} µs)",
        line.ratio,
        line.ratio_min,
        line.ratio_max,
        line.repeats,
        line.overhead_us_median,
        line.overhead_us_p99,
    );
    if let Some(overhead) = line.trace_overhead {
        println!("  with the event trace {:+.2}%", overhead * 100.0);
    }
}

fn progress_bar(len: u64, hidden: bool) -> ProgressBar {
    if hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
        .expect("the template is a constant");
    ProgressBar::new(len).with_style(style)
}
