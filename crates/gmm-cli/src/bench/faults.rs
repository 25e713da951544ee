//! Migration by faults: the XPU, then the CPU, touches one word in each 4 KiB of memory that lies
//! on the other side. Each repeat takes the four measurements in turn, so that what disturbs the
//! machine disturbs subject and baseline alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{Gmm, HostXpu, Kernel, MIB, PAGE_SIZE, Stream, Unified, display_bytes};
use gmm_core::Config;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::distribution::Distribution;
use super::raw::RawCopies;
use super::{FaultArgs, Order};

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
    order: Order,
    /// The longest window of look-ahead, in pages.
    look_ahead: u32,
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
    let windows = match &args.look_ahead[..] {
        [] => vec![Config::default().look_ahead],
        some => some.to_vec(),
    };
    // Four frames more than the memory: the page of the times, and the driver's slack.
    let xpu = || HostXpu::with_memory(bytes + 8 * MIB).config(configure);
    let make = |&window: &u32| {
        let gmm = Gmm::builder().xpu(xpu()).config(|c| c.look_ahead = window).build()?;
        Bench::new(gmm, window, nr_pages, args)
    };
    let mut benches = windows.iter().map(make).collect::<anyhow::Result<Vec<_>>>()?;
    for round in 0..rounds {
        progress.inc(1);
        let warm_up = round == 0;
        progress.set_message(if warm_up { "warming up" } else { "faults and raw copies in turn" });
        for bench in &mut benches {
            // In turn, so that what comes first does so as often as the other.
            let traced_first = round % 2 == 1;
            if traced_first {
                bench.traced_round(args)?;
            }
            bench.round(&raw)?;
            if !traced_first {
                bench.traced_round(args)?;
            }
            if warm_up {
                (bench.to_xpu, bench.to_cpu) = Default::default();
            }
        }
    }
    progress.finish_and_clear();

    for bench in benches {
        let backing = bench.gmm.frame_backing();
        let backing = backing.first().map_or("none", |(_, backing)| backing);
        for (case, samples) in [("to-xpu", bench.to_xpu), ("to-cpu", bench.to_cpu)] {
            let line = Line {
                frame_backing: backing,
                order: args.order,
                look_ahead: bench.look_ahead,
                ..summarise(case, bytes, samples)
            };
            if args.json {
                println!("{}", serde_json::to_string(&line)?);
            } else {
                print(&line);
            }
        }
    }
    Ok(())
}

struct Bench {
    data: Unified<u64>,
    /// Nanoseconds that each page's touches took on the XPU; then, in the second half, the order in
    /// which it touches them.
    times: Unified<u64>,
    /// The order in which the CPU touches them.
    order: Vec<u64>,
    stream: Stream,
    touch: Kernel,
    look_ahead: u32,
    to_xpu: Samples,
    to_cpu: Samples,
    gmm: Gmm,
}

impl Bench {
    fn new(gmm: Gmm, look_ahead: u32, nr_pages: u64, args: &FaultArgs) -> anyhow::Result<Self> {
        let xpu = gmm.xpu(1)?;
        let mut order: Vec<u64> = (0..nr_pages).collect();
        if args.order == Order::Random {
            shuffle(&mut order);
        }
        let mut bench = Self {
            data: gmm.mmap_named(nr_pages as usize * PAGE_WORDS, "bench data")?,
            times: gmm.mmap_named(2 * nr_pages as usize, "bench times")?,
            order,
            stream: xpu.stream()?,
            touch: xpu.load(&args.kernels)?.kernel("touch_timed")?,
            look_ahead,
            to_xpu: Samples::default(),
            to_cpu: Samples::default(),
            gmm,
        };
        bench.times[nr_pages as usize..].copy_from_slice(&bench.order);
        bench.data.iter_mut().step_by(TOUCH_STRIDE_WORDS).for_each(|word| *word = 1);
        Ok(bench)
    }

    fn round(&mut self, raw: &RawCopies) -> anyhow::Result<()> {
        self.to_xpu.raw.push(raw.to_xpu()?.as_secs_f64());
        let faulted = self.touch_on_xpu()?.as_secs_f64();
        self.to_xpu.faulted.push(faulted);
        let times = &self.times[..self.order.len()];
        self.to_xpu.pages.extend(times.iter().map(|&ns| ns as f64 * 1e-9));
        self.to_cpu.raw.push(raw.to_cpu()?.as_secs_f64());
        let mut pages = core::mem::take(&mut self.to_cpu.pages);
        let faulted = self.touch_on_cpu(&mut pages).as_secs_f64();
        self.to_cpu.faulted.push(faulted);
        self.to_cpu.pages = pages;
        Ok(())
    }

    /// The same faults with the event trace on, if that was asked for.
    fn traced_round(&mut self, args: &FaultArgs) -> anyhow::Result<()> {
        let Some(path) = &args.trace else { return Ok(()) };
        let trace = self.gmm.trace_to(path)?;
        let faulted = self.touch_on_xpu()?.as_secs_f64();
        self.to_xpu.traced.push(faulted);
        self.to_cpu.traced.push(self.touch_on_cpu(&mut Vec::new()).as_secs_f64());
        let dropped = trace.finish()?.dropped;
        ensure!(dropped == 0, "the trace dropped {dropped} records");
        Ok(())
    }

    /// The XPU writes a word in each 4 KiB, so that every page moves there.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn touch_on_xpu(&mut self) -> anyhow::Result<Duration> {
        let times = self.times.as_mut_ptr();
        let order = times.wrapping_add(self.order.len());
        let args = (self.data.as_mut_ptr(), self.data.len_bytes(), times, order);
        let start = Instant::now();
        // SAFETY: the buffers are as long as the kernel is told, and are ours until it is done; the
        // order has each page once.
        unsafe { self.stream.launch(&self.touch, 1, args)?.wait()? };
        Ok(start.elapsed())
    }

    /// The CPU reads a word in each 4 KiB, so that every page moves back.
    fn touch_on_cpu(&self, pages: &mut Vec<f64>) -> Duration {
        let start = Instant::now();
        for &nr in &self.order {
            let page = &self.data[nr as usize * PAGE_WORDS..][..PAGE_WORDS];
            let before = Instant::now();
            let sum = page.iter().step_by(TOUCH_STRIDE_WORDS).fold(0u64, |s, w| s.wrapping_add(*w));
            black_box(sum);
            pages.push(before.elapsed().as_secs_f64());
        }
        start.elapsed()
    }
}

/// The same order in each run: Fisher and Yates, with a xorshift generator.
fn shuffle(order: &mut [u64]) {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..order.len()).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        order.swap(i, (x % (i as u64 + 1)) as usize);
    }
}

fn summarise(case: &'static str, bytes: u64, samples: Samples) -> Line<'static> {
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
        frame_backing: "",
        order: Order::Sequential,
        look_ahead: 0,
    }
}

fn print(line: &Line<'_>) {
    println!(
        "{} ({:?}, look-ahead {}): {} in {} pages at {}/s, raw copies {}/s (frames: {})",
        line.case,
        line.order,
        line.look_ahead,
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
