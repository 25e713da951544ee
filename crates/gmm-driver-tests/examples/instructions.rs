//! Runs one thing that the core does, many times over, on a device that does nothing: for counting
//! its instructions (`cargo xtask test --only instructions`).
//!
//! ```console
//! $ valgrind --tool=callgrind target/release/examples/instructions fault-usable 1000
//! ```

use core::time::Duration;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gmm_core::driver::{
    Access, Capabilities, Clear, Device, DriverError, Enter, Examine, Extent, Fence, Mmu,
    NodeDescription, Op, Partial, Protection,
};
use gmm_core::{
    Batch, Clock, Config, FrameNr, NodeId, PAGE_SIZE, PageRange, Processor, Resolved, Space,
};

const NR_PAGES: u64 = 64;

/// A page in a part of the window in which no region ever lay.
const FAR: u64 = 1 << 16;

struct Nothing {
    node: [NodeDescription; 1],
}

/// A clock that goes on by 10 ms each time it is read: no page moves too often.
#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Duration {
        Duration::from_millis(10 * self.0.fetch_add(1, Ordering::Relaxed))
    }
}

impl Device for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::REPLAYABLE_FAULTS
            | Capabilities::READ_ONLY_MAPPINGS
            | Capabilities::OWN_MEMORY
    }

    fn nodes(&self) -> &[NodeDescription] {
        &self.node
    }

    fn set_first_node(&self, _first: NodeId) {}

    fn import(
        &self,
        _node: NodeId,
        _nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError> {
        // Asked once: it gives all that it has.
        out.push(Extent { start: FrameNr(0), nr_frames: self.node[0].capacity_frames });
        Ok(())
    }

    fn release(&self, _node: NodeId, _extents: &[Extent]) {}

    fn submit(&self, _ops: &[Op]) -> Result<Fence, DriverError> {
        Ok(Fence(0))
    }

    fn wait(&self, _fence: Fence, _timeout: Duration) -> Result<(), DriverError> {
        Ok(())
    }

    fn poll(&self, _fence: Fence) -> bool {
        true
    }

    fn host_addr(&self, frame: gmm_core::Frame) -> Option<gmm_core::HostAddr> {
        Some(gmm_core::HostAddr(u64::from(frame.nr.0) * PAGE_SIZE))
    }
}

impl Mmu for Nothing {
    fn va_examine(&self, _range: PageRange) -> Result<Examine, DriverError> {
        Ok(Examine::Reserved)
    }

    fn va_release(&self, _range: PageRange) {}

    fn pmap_enter(&self, _mappings: &[Enter]) -> Result<(), Partial> {
        Ok(())
    }

    fn pmap_clear(&self, _mappings: &mut [Clear]) -> Result<(), Partial> {
        Ok(())
    }
}

fn nothing() -> Arc<Nothing> {
    let capacity_frames = 2 * NR_PAGES as u32;
    Arc::new(Nothing { node: [NodeDescription { capacity_frames }] })
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().collect();
    let [_, what, times] = args.as_slice() else {
        eprintln!("usage: instructions lookup|fault-usable|fault-move TIMES");
        return ExitCode::from(2);
    };
    let times: u64 = times.parse().expect("TIMES is a number");
    let space = Space::new(Config::default(), nothing(), nothing(), Arc::new(Ticks::default()))
        .expect("a host can be made");
    let node = space.add_device(nothing()).expect("there is room for a device");
    let xpu = space.attach(node, nothing()).expect("there is room for a context").processor;
    let range = space
        .mmap(NR_PAGES * PAGE_SIZE, Protection::ReadWrite, "pages")
        .expect("the window has room");
    let fault = |processor: &Processor, page: u64| {
        space.fault(processor, range.start.plus(page).start(), Access::Write)
    };
    let cpu = space.cpu();
    for page in 0..NR_PAGES {
        fault(cpu, page).expect("a first touch is served");
    }
    // So far apart that they make no run.
    let pages = (0..times).map(|n| n * 7 % NR_PAGES);
    match what.as_str() {
        // Far from the region there is no entry: this finds so.
        "lookup" => pages.for_each(|page| {
            fault(cpu, FAR + page).expect_err("nothing is mapped there");
        }),
        "fault-usable" => pages.for_each(|page| {
            assert_eq!(fault(cpu, page), Ok(Resolved::AlreadyUsable));
        }),
        // There, and back the next time round.
        "fault-move" => (0..times).for_each(|n| {
            let who = if (n / NR_PAGES).is_multiple_of(2) { &*xpu } else { cpu };
            assert_eq!(fault(who, n * 7 % NR_PAGES), Ok(Resolved::Entered));
        }),
        _ => {
            eprintln!("there is no {what}: lookup, fault-usable or fault-move");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
