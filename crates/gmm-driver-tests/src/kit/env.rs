//! What the rules are written with: frames, patterns, copies and mappings of a device under test.

use core::time::Duration;
use std::sync::{Arc, Once};

use gmm_core::driver::{
    Capabilities, Clear, Device, Enter, Examine, Extent, Mmu, Op, Place, Protection,
};
use gmm_core::{Batch, Frame, FrameNr, HostAddr, NodeId, PageNr, PageRange, VirtAddr};

use super::{Bench, HostMemory, TestContext};

/// How long one batch may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a check ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The rule does not apply.
    Skip(String),
    /// The rule is broken.
    Broken(String),
}

/// How a check ends.
pub(super) type Check = Result<(), Stop>;

/// `Err(Stop::Broken)` with a message, unless the condition holds.
macro_rules! must {
    ($holds:expr, $($said:tt)+) => {
        if !$holds {
            return Err($crate::kit::env::Stop::Broken(format!($($said)+)));
        }
    };
}
pub(super) use must;

pub(super) fn broken<E: core::fmt::Display>(what: &str) -> impl FnOnce(E) -> Stop {
    let what = what.to_owned();
    move |error| Stop::Broken(format!("{what} failed: {error}"))
}

pub(super) fn skip(why: &str) -> Stop {
    Stop::Skip(why.to_owned())
}

/// The value of a pattern at an offset: another one for each seed and offset, never 0.
pub(super) fn pattern(seed: u64, offset: u64) -> u64 {
    let mixed = (seed << 32 ^ offset).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29) | 1
}

/// A device under test.
pub(super) struct Env {
    pub(super) bench: Box<dyn Bench>,
    pub(super) device: Arc<dyn Device>,
    pub(super) first: NodeId,
    numbered: Once,
    pub(super) offsets: Vec<u64>,
    pub(super) host: Box<dyn HostMemory>,
}

/// The frames of host memory that rules may use: the last is the kit's own, to look at frames.
pub(super) const HOST_FRAMES: usize = 18;
const SCRATCH: usize = HOST_FRAMES - 1;

impl Env {
    pub(super) fn new(bench: Box<dyn Bench>) -> Self {
        let device = bench.device();
        let is_host = device.capabilities().contains(Capabilities::MOVABLE_FRAMES);
        let first = if is_host { NodeId::HOST } else { NodeId(1) };
        let host = bench.host_memory(HOST_FRAMES);
        Self { first, numbered: Once::new(), offsets: bench.offsets(), host, device, bench }
    }

    /// Tells the device its numbers, once. Not before they are needed: a rule about a space
    /// leaves it to the space.
    fn number(&self) {
        self.numbered.call_once(|| self.device.set_first_node(self.first));
    }

    /// A context, with nothing reserved.
    pub(super) fn bare_context(&self) -> Box<dyn TestContext> {
        self.number();
        self.bench.context(0)
    }

    pub(super) fn has(&self, capability: Capabilities) -> bool {
        self.device.capabilities().contains(capability)
    }

    pub(super) fn needs(&self, capability: Capabilities) -> Check {
        if self.has(capability) {
            return Ok(());
        }
        Err(Stop::Skip(format!("the device does not declare {capability:?}")))
    }

    /// One import from the first node.
    pub(super) fn import_once(&self, nr_frames: u32) -> Result<Vec<Frame>, Stop> {
        self.number();
        let mut out: Batch<Extent, 16> = Batch::new();
        self.device.import(self.first, nr_frames, &mut out).map_err(broken("import"))?;
        let numbers = out.iter().flat_map(|e| e.start.0..e.start.0.saturating_add(e.nr_frames));
        Ok(numbers.map(|nr| Frame { node: self.first, nr: FrameNr(nr) }).collect())
    }

    /// Imports until there are `limit` frames, or none came in three requests in a row.
    pub(super) fn import_up_to(&self, limit: usize) -> Result<Vec<Frame>, Stop> {
        if self.device.nodes().is_empty() {
            return Err(skip("the device has no memory of its own"));
        }
        let (mut frames, mut empty) = (Vec::new(), 0);
        while frames.len() < limit && empty < 3 {
            let got = self.import_once((limit - frames.len()).min(16) as u32)?;
            empty = if got.is_empty() { empty + 1 } else { 0 };
            frames.extend(got);
        }
        Ok(frames)
    }

    /// Exactly `n` frames of the first node.
    pub(super) fn frames(&self, n: usize) -> Result<Vec<Frame>, Stop> {
        if self.device.nodes().first().is_some_and(|d| (d.capacity_frames as usize) < n) {
            return Err(Stop::Skip(format!("the first node has fewer than {n} frames")));
        }
        let frames = self.import_up_to(n)?;
        must!(frames.len() == n, "import handed over {} frames of {n}", frames.len());
        Ok(frames)
    }

    /// Starts a batch and waits for it.
    pub(super) fn transfer(&self, ops: &[Op]) -> Check {
        let fence = self.device.submit(ops).map_err(broken("submit"))?;
        self.device.wait(fence, PATIENCE).map_err(broken("wait"))
    }

    pub(super) fn wait(&self, fence: gmm_core::driver::Fence) -> Check {
        self.device.wait(fence, PATIENCE).map_err(broken("wait"))
    }

    pub(super) fn host_addr(&self, frame: usize) -> HostAddr {
        self.host.addr(frame)
    }

    /// Fills a frame of host memory with a pattern.
    pub(super) fn fill_host(&self, frame: usize, seed: u64) {
        for &offset in &self.offsets {
            self.host.write(frame, offset, pattern(seed, offset));
        }
    }

    /// Fills a frame of the device with a pattern.
    pub(super) fn fill(&self, frame: Frame, seed: u64) -> Check {
        self.fill_host(SCRATCH, seed);
        self.transfer(&[copy(Place::Host(self.host_addr(SCRATCH)), Place::Frame(frame))])
    }

    /// The words of a frame of the device.
    pub(super) fn words(&self, frame: Frame) -> Result<Vec<u64>, Stop> {
        for &offset in &self.offsets {
            self.host.write(SCRATCH, offset, 0x5EED);
        }
        self.transfer(&[copy(Place::Frame(frame), Place::Host(self.host_addr(SCRATCH)))])?;
        Ok(self.offsets.iter().map(|&o| self.host.read(SCRATCH, o)).collect())
    }

    /// Compares words with a pattern (seed 0: with zeros).
    pub(super) fn compare(&self, what: &str, words: &[u64], seed: u64) -> Check {
        for (&offset, &word) in self.offsets.iter().zip(words) {
            let wanted = if seed == 0 { 0 } else { pattern(seed, offset) };
            must!(word == wanted, "{what}: {word:#x} at offset {offset}, not {wanted:#x}");
        }
        Ok(())
    }

    pub(super) fn expect_frame(&self, what: &str, frame: Frame, seed: u64) -> Check {
        let words = self.words(frame)?;
        self.compare(what, &words, seed)
    }

    /// Reserves `nr_pages` pages in a context, following its suggestions.
    pub(super) fn reserve(&self, mmu: &dyn Mmu, nr_pages: u64) -> Result<PageRange, Stop> {
        let window = self.bench.window();
        let mut start = window.start;
        for _ in 0..16 {
            let range = PageRange { start, nr_pages };
            match mmu.va_examine(range).map_err(broken("va_examine"))? {
                Examine::Reserved => return Ok(range),
                Examine::Refused => start = range.end(),
                Examine::Suggest { base, alignment_bytes } => {
                    must!(
                        base.is_page_start() && alignment_bytes.is_power_of_two(),
                        "va_examine suggests {base} aligned to {alignment_bytes} bytes"
                    );
                    start = base.page();
                }
            }
            if start.plus(nr_pages) > window.end() {
                break;
            }
        }
        Err(Stop::Broken(format!("va_examine takes no {nr_pages} pages in the window {window}")))
    }

    /// A context with `nr_pages` reserved.
    pub(super) fn context(&self, nr_pages: u64) -> Result<(Box<dyn TestContext>, PageRange), Stop> {
        let context = self.bare_context();
        let range = self.reserve(&*context.mmu(), nr_pages)?;
        Ok((context, range))
    }

    /// Every sampled word of a page as a core sees it equals the pattern.
    pub(super) fn expect_page(
        &self,
        what: &str,
        context: &dyn TestContext,
        page: PageNr,
        seed: u64,
    ) -> Check {
        let words: Result<Vec<u64>, _> =
            self.offsets.iter().map(|&o| context.load(at(page, o))).collect();
        let words = words.map_err(broken(&format!("{what}: a load of the page")))?;
        self.compare(what, &words, seed)
    }

    /// A core writes a pattern to every sampled word of a page.
    pub(super) fn write_page(&self, context: &dyn TestContext, page: PageNr, seed: u64) -> Check {
        for &offset in &self.offsets {
            let stored = context.store(at(page, offset), pattern(seed, offset));
            stored.map_err(broken("a store to a page entered read-write"))?;
        }
        Ok(())
    }
}

/// The address at an offset of a page.
pub(super) fn at(page: PageNr, offset: u64) -> VirtAddr {
    VirtAddr(page.start().0 + offset)
}

pub(super) fn copy(from: Place, to: Place) -> Op {
    Op::Copy { from, to }
}

pub(super) fn enter(mmu: &dyn Mmu, page: PageNr, frame: Frame, protection: Protection) -> Check {
    mmu.pmap_enter(&[Enter::local(page, frame, protection)]).map_err(broken("pmap_enter"))
}

pub(super) fn clear(mmu: &dyn Mmu, page: PageNr, frame: Frame) -> Check {
    let mut batch = [Clear { page, frame, was_empty: false }];
    mmu.pmap_clear(&mut batch).map_err(broken("pmap_clear"))?;
    must!(!batch[0].was_empty, "pmap_clear says that a page nobody discarded was empty");
    Ok(())
}
