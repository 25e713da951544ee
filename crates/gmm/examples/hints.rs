//! What each hint gains: the same work without it and with it, in turn. Prints the table of
//! `docs/hints.md`: pages copied between nodes (which is the same on every machine, give or take a
//! page), and the time of what the program waits for (which is not).
//!
//! ```sh
//! cargo build --release -p gmm-kernels && cargo run --release -p gmm-memory --example hints
//! ```
use std::time::{Duration, Instant};

use gmm::{Advice, Gmm, HostXpu, Kernel, PAGE_SIZE, Result, Stream, Unified};

/// What the XPU has, and what most of the work is on, in pages.
const XPU_PAGES: u64 = 48;
const DATA_PAGES: u64 = 32;
const ROUNDS: usize = 15;
/// At first the policy learns, and frames are made.
const WARM_UP: usize = 3;

struct Machine {
    gmm: Gmm,
    stream: Stream,
    touch: Kernel,
}

/// What one round came to: pages copied, and how long the program waited.
type Round = (u64, Duration);

/// One kind of work: prepares itself once, and then does rounds.
type Work = fn(&Machine, bool) -> Result<Vec<Round>>;

const WORK: [(&str, &str, Work); 7] = [
    ("`WillNeed`", "the CPU writes 64 MiB, a launch reads it", will_need),
    (
        "`WillNeed`, asynchronous",
        "the same, with other work on the CPU in between",
        will_need_async,
    ),
    ("`DontNeed`", "a launch writes 128 MiB of scratch memory, on an XPU of 96 MiB", dont_need),
    ("`Pin`", "8 MiB used by each launch, between sweeps over 192 MiB", pin),
    ("`ReadMostly`", "64 MiB read by the XPU and the CPU in turn", read_mostly),
    ("`AccessedBy`", "the XPU writes 64 MiB, the CPU reads one word of each page", accessed_by),
    ("`Preferred`", "the CPU makes 64 MiB that only the XPU uses", preferred),
];

fn main() -> Result<()> {
    println!("| hint | work | pages copied, without | with | waited, without | with |");
    println!("|---|---|---|---|---|---|");
    for (hint, what, work) in WORK {
        let mut rounds = [Vec::new(), Vec::new()];
        // In turn, so that what disturbs the machine disturbs both.
        for turn in 0..4 {
            rounds[turn % 2].extend(work(&Machine::new()?, turn % 2 == 1)?);
        }
        let [without, with] = rounds.map(typical);
        println!(
            "| {hint} | {what} | {} | {} | {:.1} ms | {:.1} ms |",
            without.0, with.0, without.1, with.1
        );
    }
    Ok(())
}

/// Medians; the second in milliseconds.
fn typical(mut rounds: Vec<Round>) -> (u64, f64) {
    rounds.sort_unstable_by_key(|&(copied, _)| copied);
    let copied = rounds[rounds.len() / 2].0;
    rounds.sort_unstable_by_key(|&(_, waited)| waited);
    (copied, rounds[rounds.len() / 2].1.as_secs_f64() * 1e3)
}

impl Machine {
    fn new() -> Result<Self> {
        let gmm = Gmm::builder().xpu(HostXpu::with_memory(XPU_PAGES * PAGE_SIZE)).build()?;
        let xpu = gmm.xpu(1)?;
        let touch = xpu.load("libgmm_kernels.so")?.kernel("touch")?;
        Ok(Self { stream: xpu.stream()?, touch, gmm })
    }

    fn memory(&self, nr_pages: u64) -> Result<Unified<u64>> {
        self.gmm.mmap((nr_pages * PAGE_SIZE) as usize / 8)
    }

    /// A launch that touches one word in each 4 KiB, and its end.
    fn launch(&self, data: &mut Unified<u64>, write: bool) -> Result<()> {
        let args = (data.as_mut_ptr(), data.len_bytes(), write);
        // SAFETY: the buffer is that long, and ours until the launch has ended.
        unsafe { self.stream.launch(&self.touch, 1, args)?.wait() }
    }

    /// Does rounds; each says how long the program waited.
    fn rounds(&self, mut round: impl FnMut() -> Result<Duration>) -> Result<Vec<Round>> {
        let copied = || -> u64 { self.gmm.snapshot().moves.iter().map(|moved| moved.pages).sum() };
        let mut all = Vec::new();
        for _ in 0..WARM_UP + ROUNDS {
            let before = copied();
            let waited = round()?;
            all.push((copied() - before, waited));
        }
        Ok(all.split_off(WARM_UP))
    }
}

/// One word of each 4 KiB is written by the CPU.
fn write(data: &mut Unified<u64>) {
    data.iter_mut().step_by(512).for_each(|word| *word += 1);
}

/// One word of each so many is read by the CPU.
fn read(data: &Unified<u64>, step: usize) {
    std::hint::black_box(
        data.iter().step_by(step).fold(0, |sum: u64, word| sum.wrapping_add(*word)),
    );
}

fn timed(what: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    what()?;
    Ok(begun.elapsed())
}

fn will_need(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    let mut data = machine.memory(DATA_PAGES)?;
    machine.rounds(|| {
        write(&mut data);
        timed(|| {
            if hint {
                data.will_need(1)?;
            }
            machine.launch(&mut data, false)
        })
    })
}

fn will_need_async(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    let mut data = machine.memory(DATA_PAGES)?;
    machine.rounds(|| {
        write(&mut data);
        let coming = if hint { Some(data.will_need_async(1)?) } else { None };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        timed(|| {
            machine.launch(&mut data, false)?;
            coming.map_or(Ok(()), |coming| coming.wait().map(drop))
        })
    })
}

fn dont_need(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    let mut scratch = machine.memory(64)?;
    machine.rounds(|| {
        timed(|| {
            machine.launch(&mut scratch, true)?;
            if hint { scratch.discard() } else { Ok(()) }
        })
    })
}

fn pin(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    let (mut hot, mut swept) = (machine.memory(4)?, machine.memory(96)?);
    write(&mut hot);
    write(&mut swept);
    if hint {
        hot.pin(1)?;
    }
    machine.rounds(|| {
        machine.launch(&mut swept, false)?;
        timed(|| machine.launch(&mut hot, false))
    })
}

fn read_mostly(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    let mut data = machine.memory(DATA_PAGES)?;
    write(&mut data);
    if hint {
        data.advise(Advice::ReadMostly, 0)?;
    }
    machine.rounds(|| {
        timed(|| {
            machine.launch(&mut data, false)?;
            read(&data, 512);
            Ok(())
        })
    })
}

fn accessed_by(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    let mut data = machine.memory(DATA_PAGES)?;
    if hint {
        data.advise(Advice::AccessedBy, 0)?;
    }
    machine.rounds(|| {
        timed(|| {
            machine.launch(&mut data, true)?;
            read(&data, PAGE_SIZE as usize / 8);
            Ok(())
        })
    })
}

fn preferred(machine: &Machine, hint: bool) -> Result<Vec<Round>> {
    machine.rounds(|| {
        let mut data = machine.memory(DATA_PAGES)?;
        if hint {
            data.advise(Advice::Preferred, 1)?;
        }
        timed(|| {
            write(&mut data);
            machine.launch(&mut data, true)
        })
    })
}
