//! What moving pages costs on this machine: `cargo run --release -p gmm-cpu --example moves`.

use std::error::Error;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gmm_core::driver::{
    Clear, Device, Enter, Extent, MappingKind, Mmu, Op, Protection, RemoteHandle,
};
use gmm_core::{Batch, Config, Frame, FrameNr, NodeId, PAGE_SIZE, PageRange, Space};
use gmm_cpu::{CpuDriver, MonotonicClock, Options};

const PAGES: u64 = 64;
const ROUNDS: u32 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let cpu = CpuDriver::new(Options { capacity_frames: Some(128), ..Options::default() })?;
    let (host, mmu) = (cpu.host(), cpu.mmu());
    let mut extents = Batch::<Extent, 16>::new();
    host.import(NodeId::HOST, PAGES as u32, &mut extents)?;
    let range = PageRange { nr_pages: PAGES, ..cpu.window() };
    mmu.va_examine(range)?;

    let frame = |n: u64| Frame { node: NodeId::HOST, nr: FrameNr(n as u32) };
    let zero = |n| host.wait(host.submit(&[Op::Zero(frame(n))])?, Duration::ZERO);
    report("first zero-fill of a frame", PAGES, || (0..PAGES).try_for_each(zero))?;
    report("later zero-fill of a frame", PAGES, || (0..PAGES).try_for_each(zero))?;

    let enter = |n| Enter::local(range.start.plus(n), frame(n), Protection::ReadWrite);
    let clear = |n| Clear { page: range.start.plus(n), frame: frame(n), was_empty: false };
    for batch in [1, 16] {
        let starts = || (0..PAGES).step_by(batch as usize);
        let (mut entering, mut clearing) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for first in starts() {
                let run: [Enter; 16] = std::array::from_fn(|i| enter(first + i as u64));
                mmu.pmap_enter(&run[..batch as usize])?;
            }
            entering += start.elapsed();
            let start = Instant::now();
            for first in starts() {
                let mut run: [Clear; 16] = std::array::from_fn(|i| clear(first + i as u64));
                mmu.pmap_clear(&mut run[..batch as usize])?;
            }
            clearing += start.elapsed();
        }
        let n = PAGES as u32 * ROUNDS;
        println!("pmap_enter, batches of {batch:2}: {:7.2} µs a page", micros(entering / n));
        println!("pmap_clear, batches of {batch:2}: {:7.2} µs a page", micros(clearing / n));
    }

    // The two other ways to map a page, each with a read of every page.
    let file = rustix::fs::memfd_create("moves", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, PAGES * PAGE_SIZE)?;
    let handle = |n| RemoteHandle { fd: file.as_raw_fd(), offset_bytes: n * PAGE_SIZE };
    let far = |n: u64| Frame { node: NodeId(1), nr: FrameNr(n as u32) };
    let remote = |n| Enter { kind: MappingKind::Remote(handle(n)), frame: far(n), ..enter(n) };
    let replica = |n| Enter { kind: MappingKind::Replica, ..enter(n) };
    let read = |n: u64| {
        // SAFETY: the page is mapped.
        unsafe { (range.start.plus(n).start().0 as *const u8).read_volatile() };
    };
    for (what, mapping, rounds) in
        [("remote", &remote as &dyn Fn(u64) -> Enter, ROUNDS), ("replica", &replica, 3)]
    {
        let (mut entering, mut clearing) = (Duration::ZERO, Duration::ZERO);
        for n in (0..rounds).flat_map(|_| 0..PAGES) {
            let start = Instant::now();
            mmu.pmap_enter(&[mapping(n)])?;
            entering += start.elapsed();
            read(n);
            let start = Instant::now();
            let Enter { page, frame, .. } = mapping(n);
            mmu.pmap_clear(&mut [Clear { page, frame, was_empty: false }])?;
            clearing += start.elapsed();
        }
        let n = PAGES as u32 * rounds;
        println!("pmap_enter, {what}: {:7.2} µs a page", micros(entering / n));
        println!("pmap_clear, {what}: {:7.2} µs a page", micros(clearing / n));
    }
    mmu.va_release(range);
    host.release(NodeId::HOST, &extents.into_iter().collect::<Vec<_>>());

    let config = Config { window: cpu.window(), ..Config::default() };
    let space = Space::new(config, host, mmu, Arc::new(MonotonicClock::new()))?;
    let handlers = cpu.start(&space)?;
    let len = PAGES * PAGE_SIZE;
    let region = space.mmap(len, Protection::ReadWrite, "moves")?;
    let touch = || {
        for page in region.pages() {
            // SAFETY: the region is mapped, and nothing else uses it.
            unsafe { (page.start().0 as *mut u8).write_volatile(1) };
        }
        Ok::<(), gmm_core::Error>(())
    };
    report("fault, first touch of a page", PAGES, touch)?;
    space.discard(region.start.start(), len)?;
    report("fault, zero-fill of a used frame", PAGES, touch)?;
    drop(handlers);
    Ok(())
}

fn report<E>(what: &str, n: u64, run: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let start = Instant::now();
    run()?;
    println!("{what}: {:.1} µs", micros(start.elapsed()) / n as f64);
    Ok(())
}

fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
