//! Migration by faults: the XPU, then the CPU, touches one word in each 4 KiB of memory that lies
//! on the other side. Each repeat takes the measurements in turn, so that what disturbs the
//! machine disturbs subject and baseline alike: a raw copy, the touches that fault, and the same
//! touches once more, which find every page and say what they cost by themselves.

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{Gmm, HostXpu, Kernel, MIB, PAGE_SIZE, Stream, Unified};
use gmm_core::Config;

use super::distribution::Distribution;
use super::options::{Kernels, Link, Order, Output, Repeats};
use super::peers::Peers;
use super::raw::RawCopies;
use super::record::Record;
use super::room;
use super::session::Session;
use super::touched::{self, PAGE_WORDS};

/// What `gmm bench faults` takes.
#[derive(Debug, Args)]
pub(super) struct FaultArgs {
    /// How much memory migrates each way in one repeat, at least 8MiB; rounded up to 2 MiB pages
    #[arg(long, default_value = "256MiB", value_parser = crate::demo::size::parse)]
    bytes: u64,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    repeats: Repeats,
    /// How long each side looks for the other's answer at most before it sleeps, in microseconds
    /// [default: the driver's own]
    #[arg(long)]
    spin_us: Option<u64>,
    /// In which order the pages are touched
    #[arg(long, value_enum, default_value_t = Order::Sequential)]
    order: Order,
    /// How many cores of the XPU, and threads of the CPU, fault at once, each on its share of the
    /// pages; one copies
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    cores: u32,
    /// The longest window of look-ahead, in pages; 0 is none. Several are measured in turn
    /// [default: the manager's own]
    #[arg(long, value_delimiter = ',')]
    look_ahead: Vec<u32>,
    /// Make each repeat once more with the event trace written to this file, and compare
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Also measure how others move the same bytes: through a bounce buffer, in pieces of 4 KiB, and
    /// by a user-space pager on `UFFDIO_COPY`
    #[arg(long)]
    peers: bool,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

impl FaultArgs {
    /// The setting, as records name it.
    fn parameter(&self, look_ahead: u32) -> String {
        let mut parameter = match (self.order, self.cores) {
            (order, 1) => order.name().to_owned(),
            (Order::Sequential, cores) => format!("cores={cores}"),
            (order, cores) => format!("{} cores={cores}", order.name()),
        };
        if !self.look_ahead.is_empty() {
            parameter += &format!(" look-ahead={look_ahead}");
        }
        self.link.name(parameter)
    }
}

/// One direction's measurements.
#[derive(Default)]
struct Samples {
    faulted: Vec<f64>,
    raw: Vec<f64>,
    /// As `faulted`, when every page is there.
    resident: Vec<f64>,
    /// As `faulted`, with the event trace on.
    traced: Vec<f64>,
    /// Of each page, in seconds.
    pages: Vec<f64>,
}

pub(super) fn run(args: &FaultArgs, session: &mut Session) -> anyhow::Result<()> {
    let least = MIN_FRAMES * PAGE_SIZE;
    ensure!(args.bytes >= least, "--bytes is {}; it must be at least {least}", args.bytes);
    // Host frames and XPU frames of the raw copies; data and XPU of each manager.
    let nr_pairs = 1 + args.look_ahead.len().max(1) as u64;
    room::check(args.bytes.saturating_mul(2 * nr_pairs), "--bytes")?;
    let nr_pages = args.bytes.div_ceil(PAGE_SIZE);
    let bytes = nr_pages * PAGE_SIZE;
    let rounds = args.repeats.repeats + 1;
    session.begin("faults", u64::from(rounds));
    session.doing("setting up");
    let configure = |config: HostXpuConfig| {
        let config = args.link.configure(config.cores(args.cores).copy_engines(1));
        match args.spin_us {
            Some(us) => config.spin(Duration::from_micros(us)),
            None => config,
        }
    };
    let raw = RawCopies::new(nr_pages, configure(HostXpuConfig::new(bytes)))?;
    let windows = match &args.look_ahead[..] {
        [] => vec![Config::default().look_ahead],
        some => distinct(some),
    };
    // Four frames more than the memory: the page of the times, and the driver's slack.
    let xpu = || HostXpu::with_memory(bytes + 8 * MIB).config(configure);
    let make = |&window: &u32| {
        let gmm = Gmm::builder().xpu(xpu()).config(|c| c.look_ahead = window).build()?;
        Bench::new(gmm, window, nr_pages, args)
    };
    let mut benches = windows.iter().map(make).collect::<anyhow::Result<Vec<_>>>()?;
    let mut peers = if args.peers { Some(Peers::new(nr_pages)?) } else { None };
    for round in 0..rounds {
        let warm_up = round == 0;
        session.doing(if warm_up { "warming up" } else { "faults and raw copies in turn" });
        for (nth, bench) in benches.iter_mut().enumerate() {
            // In turn, so that what comes first does so as often as the other.
            let traced_first = round % 2 == 1;
            if traced_first {
                bench.traced_round(args)?;
            }
            bench.round(&raw)?;
            if !traced_first {
                bench.traced_round(args)?;
            }
            if let Some(peers) = peers.as_mut().filter(|_| nth == 0) {
                let (to_xpu, to_cpu) = bench.last_round();
                peers.round(to_xpu, to_cpu, nr_pages, !warm_up)?;
            }
            if warm_up {
                (bench.to_xpu, bench.to_cpu) = Default::default();
            }
        }
        session.step();
    }

    for bench in benches {
        touched::check_all(&bench.data)?;
        let backing = bench.gmm.frame_backing();
        let backing = backing.first().map_or("none", |(_, backing)| backing.as_str());
        for (case, samples) in [("to-xpu", bench.to_xpu), ("to-cpu", bench.to_cpu)] {
            let record = summarise(case, args.parameter(bench.look_ahead), bytes, samples)
                .with("frame_backing", backing)
                .with("order", args.order.name())
                .with("cores", args.cores)
                .with("look_ahead", bench.look_ahead);
            session.put(record)?;
        }
    }
    if let Some(peers) = peers {
        for record in peers.records(&args.parameter(windows[0]))? {
            session.put(record)?;
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
    cores: u32,
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
            touch: xpu.load(&args.kernels.kernels)?.kernel("touch_timed")?,
            look_ahead,
            cores: args.cores,
            to_xpu: Samples::default(),
            to_cpu: Samples::default(),
            gmm,
        };
        bench.times[nr_pages as usize..].copy_from_slice(&bench.order);
        touched::fill(&mut bench.data);
        Ok(bench)
    }

    fn round(&mut self, raw: &RawCopies) -> anyhow::Result<()> {
        self.to_xpu.raw.push(raw.to_xpu()?.as_secs_f64());
        let faulted = self.touch_on_xpu()?.as_secs_f64();
        self.to_xpu.faulted.push(faulted);
        let times = &self.times[..self.order.len()];
        self.to_xpu.pages.extend(times.iter().map(|&ns| ns as f64 * 1e-9));
        let resident = self.touch_on_xpu()?.as_secs_f64();
        self.to_xpu.resident.push(resident);
        self.to_cpu.raw.push(raw.to_cpu()?.as_secs_f64());
        let mut pages = core::mem::take(&mut self.to_cpu.pages);
        let faulted = self.touch_on_cpu(&mut pages)?.as_secs_f64();
        self.to_cpu.faulted.push(faulted);
        self.to_cpu.pages = pages;
        self.to_cpu.resident.push(self.touch_on_cpu(&mut Vec::new())?.as_secs_f64());
        Ok(())
    }

    /// How long the faults of the last round took each way.
    fn last_round(&self) -> (Duration, Duration) {
        let last = |samples: &Samples| samples.faulted.last().copied().unwrap_or_default();
        let [to_xpu, to_cpu] = [&self.to_xpu, &self.to_cpu].map(last).map(Duration::from_secs_f64);
        (to_xpu, to_cpu)
    }

    /// The same faults with the event trace on, if that was asked for.
    fn traced_round(&mut self, args: &FaultArgs) -> anyhow::Result<()> {
        let Some(path) = &args.trace else { return Ok(()) };
        let trace = self.gmm.trace_to(path)?;
        let faulted = self.touch_on_xpu()?.as_secs_f64();
        self.to_xpu.traced.push(faulted);
        self.to_cpu.traced.push(self.touch_on_cpu(&mut Vec::new())?.as_secs_f64());
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
        unsafe { self.stream.launch(&self.touch, self.cores.into(), args)?.wait()? };
        Ok(start.elapsed())
    }

    /// The CPU reads a word in each 4 KiB, so that every page moves back. They hold what the XPU
    /// has written.
    fn touch_on_cpu(&self, pages: &mut Vec<f64>) -> anyhow::Result<Duration> {
        let threads = self.cores as usize;
        let barrier = Barrier::new(threads);
        let share = |nth: usize| {
            let cut = |nth: usize| self.order.len() * nth / threads;
            let mut times = Vec::with_capacity(self.order.len());
            barrier.wait();
            let start = Instant::now();
            for &nr in &self.order[cut(nth)..cut(nth + 1)] {
                let words = &self.data[nr as usize * PAGE_WORDS..][..PAGE_WORDS];
                let before = Instant::now();
                let sum = touched::touch(words);
                times.push(before.elapsed().as_secs_f64());
                touched::check_sum(nr, sum)?;
            }
            Ok((start, Instant::now(), times))
        };
        let shares: anyhow::Result<Vec<_>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|nth| scope.spawn(move || share(nth))).collect();
            let mut shares = vec![share(0)];
            for other in others {
                shares.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            shares.into_iter().collect()
        });
        let mut shares = shares?;
        let begun = shares.iter().map(|share| share.0).min();
        let ended = shares.iter().map(|share| share.1).max();
        shares.iter_mut().for_each(|share| pages.append(&mut share.2));
        Ok(ended.zip(begun).map_or(Duration::ZERO, |(ended, begun)| ended - begun))
    }
}

/// Each window once, where it is first.
fn distinct(windows: &[u32]) -> Vec<u32> {
    let first = |(nr, window): &(usize, &u32)| !windows[..*nr].contains(window);
    windows.iter().enumerate().filter(first).map(|(_, window)| *window).collect()
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

fn summarise(case: &str, parameter: String, bytes: u64, samples: Samples) -> Record {
    let nr_pages = bytes / PAGE_SIZE;
    let ratios = samples.raw.iter().zip(&samples.faulted).map(|(raw, faulted)| raw / faulted);
    let record = Record::new("faults", case, parameter, "raw copy", ratios.collect());
    let traced = samples.traced.iter().zip(&samples.faulted);
    let traced: Vec<_> = traced.map(|(traced, plain)| traced / plain - 1.0).collect();
    let with_touches = samples.raw.iter().zip(&samples.resident).zip(&samples.faulted);
    let with_touches = with_touches.map(|((raw, touches), faulted)| (raw + touches) / faulted);
    let with_touches = Distribution::new(with_touches.collect()).median();
    let touches_us = Distribution::new(samples.resident).median() / nr_pages as f64 * 1e6;
    let raw = Distribution::new(samples.raw).median();
    let seconds = Distribution::new(samples.faulted).median();
    let raw_page = raw / nr_pages as f64;
    let overhead = samples.pages.iter().map(|page| (page - raw_page) * 1e6);
    let overhead = Distribution::new(overhead.collect());
    let record = record
        .seconds(seconds)
        .bytes_per_s(bytes as f64 / seconds)
        .with("bytes", bytes)
        .with("raw_copy_bytes_per_s", bytes as f64 / raw)
        // One page's touches when it is there, and the ratio of copies and touches one after the
        // other to both by faults.
        .with("touches_us", touches_us)
        .with("ratio_with_touches", with_touches)
        // The time of a fault and a page's touches beyond the median raw copy of a page.
        .with("overhead_us_median", overhead.median())
        .with("overhead_us_p99", overhead.percentile(0.99));
    if traced.is_empty() {
        return record;
    }
    // By what fraction the same takes longer with the event trace on, pair by pair.
    record.with("trace_overhead", Distribution::new(traced).median())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_is_named_twice_is_measured_once() {
        assert_eq!(distinct(&[4, 0, 4, 4, 8]), [4, 0, 8]);
    }
}
