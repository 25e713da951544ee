//! Every driver call of a scripted run is made to fail, at every position: the step that it
//! belongs to fails cleanly or succeeds, no byte is lost, the invariants hold, no frame leaks,
//! and the step done again succeeds. Also calls that hang (on the virtual clock), calls that fail
//! several times in a row, and contexts that die in the middle of a call.
#![cfg(not(shuttle))]

use std::collections::{BTreeMap, BTreeSet};

use gmm_core::driver::{Access, Capabilities, DriverError, Protection};
use gmm_core::{Attribute, Error, NodeId, PAGE_SIZE, PageNr, PageRange, Stopped, VirtAddr};
use gmm_driver_tests::array::{
    AccessError, Call, Completion, DeviceOptions, FRAME_WORDS, Failure, Trigger, byte_offset,
};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
/// Two contexts of each of three XPUs, and one on a device without memory, beside the CPU.
const A1: usize = 1;
const A2: usize = 2;
const B: usize = 3;
const B2: usize = 4;
const C1: usize = 5;
const C2: usize = 6;
const GUEST: usize = 7;

type Step = fn(&mut Run) -> Result<(), String>;

/// A world, and what its pages hold.
struct Run {
    world: World,
    /// The regions, in the order in which they were made.
    regions: Vec<PageRange>,
    pages: BTreeMap<PageNr, [u64; FRAME_WORDS]>,
    /// Words that mean nothing, after a copy to them that failed.
    unknown: BTreeSet<(PageNr, usize)>,
}

/// Moves pages in every direction, evicts, shares, protects, holds, copies, discards, unmaps.
const SCRIPT: &[(&str, Step)] = &[
    ("mmap", |r| r.mmap(6)),
    ("cpu writes 0", |r| r.write(CPU, 0, 1)),
    ("cpu writes 1", |r| r.write(CPU, 1, 2)),
    ("cpu writes 2", |r| r.write(CPU, 2, 3)),
    ("a1 reads 0", |r| r.read(A1, 0)),
    ("a2 reads 0", |r| r.read(A2, 0)),
    ("b reads 0", |r| r.read(B, 0)),
    ("b reads 1", |r| r.read(B, 1)),
    ("a1 writes 0", |r| r.write(A1, 0, 4)),
    ("a1 writes 3", |r| r.write(A1, 3, 5)),
    ("a1 writes 4", |r| r.write(A1, 4, 6)),
    ("a1 writes 5, evicts", |r| r.write(A1, 5, 7)),
    ("a2 writes 1, evicts", |r| r.write(A2, 1, 8)),
    ("b writes 5, from a", |r| r.write(B, 5, 9)),
    ("b reads 4, from a", |r| r.read(B, 4)),
    ("a1 writes 4, shared", |r| r.write(A1, 4, 10)),
    ("cpu reads 4", |r| r.read(CPU, 4)),
    ("cpu reads 5", |r| r.read(CPU, 5)),
    ("cpu drops 5 itself", |r| r.drop_behind_the_core(5)),
    ("cpu reads 5 again", |r| r.read(CPU, 5)),
    ("cpu writes 5", |r| r.write(CPU, 5, 11)),
    ("prefetch to a", |r| r.prefetch(0, 3, 1)),
    ("prefetch to b", |r| r.prefetch(2, 3, 2)),
    ("protect", |r| r.protect(0, 4, Protection::ReadOnly)),
    ("a2 reads 2", |r| r.read(A2, 2)),
    ("unprotect", |r| r.protect(0, 4, Protection::ReadWrite)),
    ("a2 writes 2", |r| r.write(A2, 2, 12)),
    ("hold by a1", |r| r.hold(A1, 0, 2)),
    ("hold by the cpu", |r| r.hold(CPU, 2, 2)),
    ("discard", |r| r.discard(2)),
    ("b reads 2", |r| r.read(B, 2)),
    ("launder a", |r| r.launder(1)),
    ("mmap more", |r| r.mmap(2)),
    ("a1 writes 6", |r| r.write(A1, 6, 13)),
    ("munmap in part", |r| r.munmap(1, 2)),
    ("b writes 3", |r| r.write(B, 3, 14)),
    ("prefetch to the host", |r| r.prefetch(1, 2, 0)),
    ("c1 writes 0", |r| r.write(C1, 0, 15)),
    ("c2 reads 0", |r| r.read(C2, 0)),
    ("b2 reads 0", |r| r.read(B2, 0)),
    ("the guest writes 1", |r| r.write(GUEST, 1, 16)),
    ("pin on c", |r| r.pin(1, 2, 3)),
    ("c2 writes 1, pinned there", |r| r.write(C2, 1, 17)),
    ("unpin", |r| r.unpin(1, 2, 3)),
    ("copy to b", |r| r.memcpy((4, 0), (2, 0), 2 * PAGE_SIZE, 2)),
    ("copy of a part, over two pages, to a", |r| r.memcpy((0, 8), (4, PAGE_SIZE - 16), 24, 1)),
    ("pin beside copies", |r| r.pin(4, 1, 3)),
    ("copy to what is pinned", |r| r.memcpy((4, 0), (1, 0), 2 * PAGE_SIZE, 3)),
    ("copy from what is pinned", |r| r.memcpy((2, 16), (4, 8), PAGE_SIZE, 0)),
    ("unpin after copies", |r| r.unpin(4, 1, 3)),
    ("copy of what a1 holds", |r| r.memcpy_held(A1, 1, (2, 1), 2)),
    ("copy to where a2 holds", |r| r.memcpy_held(A2, 2, (2, 3), 1)),
    ("read mostly", |r| r.advise(1, 3, Attribute::ReadMostly(true))),
    ("cpu reads 1, mostly read", |r| r.read(CPU, 1)),
    ("cpu writes 1, mostly read", |r| r.write(CPU, 1, 18)),
    ("to be mapped by the cpu", |r| r.advise(3, 1, Attribute::AccessedBy(NodeId::HOST, true))),
    ("a1 writes 3 again", |r| r.write(A1, 3, 19)),
    ("cpu writes 3, where it is", |r| r.write(CPU, 3, 20)),
    ("b writes 3, takes it", |r| r.write(B, 3, 21)),
    ("to be on c", |r| r.advise(4, 1, Attribute::Preferred(Some(NodeId(3))))),
    ("cpu writes 4, on c", |r| r.write(CPU, 4, 22)),
    ("launder b", |r| r.launder(2)),
    ("b2 reads 3, clean", |r| r.read(B2, 3)),
    ("b2 writes 3", |r| r.write(B2, 3, 23)),
    ("reclaim b", |r| r.reclaim(2)),
    ("evict from c", |r| r.evict(3)),
    ("protect what is mostly read", |r| r.protect(1, 3, Protection::ReadOnly)),
    ("unprotect what is mostly read", |r| r.protect(1, 3, Protection::ReadWrite)),
];

/// What the devices are like.
#[derive(Clone, Copy)]
struct Kind {
    completion: Completion,
    read_only: bool,
    /// Launches name what they use: no fault is replayed.
    held: bool,
    /// The CPU maps frames of others, and replicas.
    coherent: bool,
}

const PLAIN: Kind =
    Kind { completion: Completion::Inline, read_only: true, held: false, coherent: false };

impl Run {
    fn new(kind: Kind) -> Self {
        let pick = |options: DeviceOptions| {
            let options = options.completing(kind.completion);
            let not = |options: DeviceOptions, yes, capability| match yes {
                true => options,
                false => options.without(capability),
            };
            let options = not(options, kind.read_only, Capabilities::READ_ONLY_MAPPINGS);
            not(options, !kind.held, Capabilities::REPLAYABLE_FAULTS)
        };
        let host = |h: DeviceOptions| {
            let h = DeviceOptions { import_limit: 3, ..h.completing(kind.completion) };
            match kind.coherent {
                true => h.with(Capabilities::COHERENT_LINK | Capabilities::READ_ONLY_REPLICAS),
                false => h,
            }
        };
        let guest = DeviceOptions { node_frames: Vec::new(), ..DeviceOptions::xpu("guest", 0) };
        let world = World::builder(13)
            .host(host)
            .xpu(pick(DeviceOptions::xpu("a", 3)), 2)
            .xpu(pick(DeviceOptions::xpu("b", 4)), 2)
            .xpu(pick(DeviceOptions::xpu("c", 3)), 2)
            .xpu(pick(guest), 1)
            .config(|c| (c.high_watermark, c.launder_share) = (Some(2), 1))
            .build();
        let (regions, pages) = (Vec::new(), BTreeMap::new());
        Self { world, regions, pages, unknown: BTreeSet::new() }
    }

    /// The `index`-th page that is mapped.
    fn page(&self, index: usize) -> PageNr {
        *self.pages.keys().nth(index).expect("the script names pages that exist")
    }

    fn mmap(&mut self, nr_pages: u64) -> Result<(), String> {
        let made = self.world.space.mmap(nr_pages * PAGE_SIZE, Protection::ReadWrite, "script");
        let range = made.map_err(|e| e.to_string())?;
        self.regions.push(range);
        self.pages.extend(range.pages().map(|p| (p, [0; FRAME_WORDS])));
        Ok(())
    }

    fn munmap(&mut self, first: usize, nr_pages: u64) -> Result<(), String> {
        let range = PageRange { start: self.page(first), nr_pages };
        let result = self.world.space.munmap(range.start.start(), range.len_bytes());
        result.map_err(|e| e.to_string())?;
        self.pages.retain(|&p, _| !range.contains(p));
        Ok(())
    }

    fn write(&mut self, who: usize, page: usize, seed: u64) -> Result<(), String> {
        let page = self.page(page);
        for at in 0..FRAME_WORDS as u64 {
            let value = seed << 8 | at;
            let store = |r: &Self| r.world.processors[who].store(word(page, at), value);
            self.healed(who, page, Access::Write, store).map_err(|e| e.to_string())?;
            self.pages.get_mut(&page).expect("mapped")[at as usize] = value;
            self.unknown.remove(&(page, at as usize));
        }
        Ok(())
    }

    fn read(&mut self, who: usize, page: usize) -> Result<(), String> {
        let page = self.page(page);
        for at in 0..FRAME_WORDS as u64 {
            let load = |r: &Self| r.world.processors[who].load(word(page, at));
            let seen = self.healed(who, page, Access::Read, load).map_err(|e| e.to_string())?;
            let wanted = self.pages[&page][at as usize];
            let is_unknown = self.unknown.contains(&(page, at as usize));
            assert!(is_unknown || seen == wanted, "word {at} of {page:?} seen by {who}: {seen:#x}");
        }
        Ok(())
    }

    /// An access; if the page was poisoned by a fault that failed, as after a repair; if its fault
    /// can't be replayed, as a launch that names the page.
    fn healed<T>(
        &self,
        who: usize,
        page: PageNr,
        access: Access,
        attempt: impl Fn(&Self) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        match attempt(self) {
            Err(AccessError::Poisoned) => {
                self.world.heal(who, page.start())?;
                attempt(self)
            }
            Err(AccessError::Unserved) => {
                let processor = self.world.processors[who].processor.clone();
                let range = PageRange { start: page, nr_pages: 1 };
                let _held = self.world.space.hold(&processor, &[range], access)?;
                let done = attempt(self);
                assert!(!matches!(done, Err(AccessError::Unserved)), "held and not mapped");
                done
            }
            result => result,
        }
    }

    fn drop_behind_the_core(&mut self, page: usize) -> Result<(), String> {
        let page = self.page(page);
        let context = &self.world.cpu().context;
        if context.maps(page) {
            context.discard_behind_the_core(page);
            self.zeroed(page);
        }
        Ok(())
    }

    fn zeroed(&mut self, page: PageNr) {
        self.pages.get_mut(&page).expect("mapped").fill(0);
        self.unknown.retain(|&(of, _)| of != page);
    }

    fn prefetch(&mut self, first: usize, nr_pages: u64, node: u8) -> Result<(), String> {
        let addr = self.page(first).start();
        let done = self.world.space.prefetch(addr, nr_pages * PAGE_SIZE, NodeId(node));
        match done.map_err(|e| e.to_string())?.stopped {
            // A frame may be lost.
            None | Some(Stopped::NoRoom(_)) => Ok(()),
            Some(stopped) => Err(format!("{stopped:?}")),
        }
    }

    fn protect(&mut self, first: usize, nr_pages: u64, to: Protection) -> Result<(), String> {
        let addr = self.page(first).start();
        let done = self.world.space.protect(addr, nr_pages * PAGE_SIZE, to);
        done.map_err(|e| e.to_string())
    }

    fn launder(&mut self, node: u8) -> Result<(), String> {
        self.world.space.launder(NodeId(node)).map(drop).map_err(|e| e.to_string())
    }

    fn hold(&mut self, who: usize, first: usize, nr_pages: u64) -> Result<(), String> {
        let range = PageRange { start: self.page(first), nr_pages };
        let processor = self.world.processors[who].processor.clone();
        let held = self.world.space.hold(&processor, &[range], Access::Write);
        held.map(drop).map_err(|e| e.to_string())
    }

    fn range(&self, first: usize, nr_pages: u64) -> (VirtAddr, u64) {
        (self.page(first).start(), nr_pages * PAGE_SIZE)
    }

    fn pin(&mut self, first: usize, nr_pages: u64, node: u8) -> Result<(), String> {
        let (addr, len) = self.range(first, nr_pages);
        self.world.space.pin(addr, len, NodeId(node)).map_err(|e| e.to_string())
    }

    fn unpin(&mut self, first: usize, nr_pages: u64, node: u8) -> Result<(), String> {
        let (addr, len) = self.range(first, nr_pages);
        self.world.space.unpin(addr, len, NodeId(node)).map_err(|e| e.to_string())
    }

    fn advise(&mut self, first: usize, nr_pages: u64, what: Attribute) -> Result<(), String> {
        let (addr, len) = self.range(first, nr_pages);
        self.world.space.set_attribute(addr, len, what).map_err(|e| e.to_string())
    }

    fn reclaim(&mut self, node: u8) -> Result<(), String> {
        self.world.space.reclaim_now(NodeId(node)).map_err(|e| e.to_string())
    }

    fn evict(&mut self, node: u8) -> Result<(), String> {
        self.world.space.evict(NodeId(node), 2).map(drop).map_err(|e| e.to_string())
    }

    fn discard(&mut self, page: usize) -> Result<(), String> {
        let page = self.page(page);
        let done = self.world.space.discard(page.start(), PAGE_SIZE);
        done.map_err(|e| e.to_string())?;
        self.zeroed(page);
        Ok(())
    }

    /// From page and offset to page and offset, in whole words.
    fn memcpy(
        &mut self,
        dst: (usize, u64),
        src: (usize, u64),
        len: u64,
        node: u8,
    ) -> Result<(), String> {
        self.try_memcpy(dst, src, len, node).map_err(|e| e.to_string())
    }

    fn try_memcpy(
        &mut self,
        (dst, dst_offset): (usize, u64),
        (src, src_offset): (usize, u64),
        len: u64,
        node: u8,
    ) -> Result<(), Error> {
        let dst = self.page(dst).start().0 + dst_offset;
        let src = self.page(src).start().0 + src_offset;
        let done = self.world.space.memcpy(VirtAddr(dst), VirtAddr(src), len, NodeId(node));
        let before = self.pages.clone();
        // Most words of a page do not exist, and read as zero.
        let word_at = |addr: u64| {
            let page = VirtAddr(addr).page();
            let exists = |&at: &usize| page.start().0 + byte_offset(at * 8) == addr;
            (0..FRAME_WORDS)
                .find(exists)
                .map_or((0, None), |at| (before[&page][at], Some((page, at))))
        };
        for (page, words) in &mut self.pages {
            for (at, word) in words.iter_mut().enumerate() {
                let addr = page.start().0 + byte_offset(at * 8);
                if (dst..dst + len).contains(&addr) {
                    let (value, place) = word_at(src + (addr - dst));
                    *word = value;
                    match done.is_err() || place.is_some_and(|place| self.unknown.contains(&place))
                    {
                        true => self.unknown.insert((*page, at)),
                        false => self.unknown.remove(&(*page, at)),
                    };
                }
            }
        }
        done
    }

    /// A page is copied while a launch that reads `held` holds it. Where that launch could write
    /// and can't be kept from it for a while, it can't be copied.
    fn memcpy_held(
        &mut self,
        who: usize,
        held: usize,
        (dst, src): (usize, usize),
        node: u8,
    ) -> Result<(), String> {
        let range = PageRange { start: self.page(held), nr_pages: 1 };
        let processor = self.world.processors[who].processor.clone();
        let hold = self.world.space.hold(&processor, &[range], Access::Read);
        let _hold = hold.map_err(|e| e.to_string())?;
        match self.try_memcpy((dst, 0), (src, 0), PAGE_SIZE, node) {
            Err(Error::PageHeld { addr, .. }) if addr.page() == range.start => Ok(()),
            done => done.map_err(|e| e.to_string()),
        }
    }

    /// Every byte, as the CPU sees it.
    fn check_bytes(&mut self) {
        for index in 0..self.pages.len() {
            let seen = match self.read(CPU, index) {
                // Not by the CPU then, without a copy of its own.
                Err(what) if what.contains("is pinned there") => self.read(C2, index),
                seen => seen,
            };
            seen.expect("every page is read once nothing fails any more");
        }
    }

    /// Forgets the contexts that died, as a driver's watcher does.
    fn bury(&self) {
        let dead = self.world.processors.iter().filter(|p| p.context.is_dead());
        dead.for_each(|p| self.world.space.detach(&p.processor));
    }

    /// Everything is unmapped: no frame may be missing, but for those whose copy never ended.
    fn check_leaks(&mut self, max_lost: u32) {
        for page in self.pages.keys() {
            self.world.space.munmap(page.start(), 1).expect("munmap at the end");
        }
        for node in self.world.space.snapshot().nodes {
            assert_eq!(node.resident_frames, 0, "node {} holds frames of no page", node.node);
            assert_eq!(node.in_transit_frames, 0, "node {} has lost track of frames", node.node);
            assert!(node.lost_frames <= max_lost, "node {}: {} lost", node.node, node.lost_frames);
        }
    }
}

/// Runs the script with a trigger; says how many calls failed.
fn play(mut run: Run, trigger: Option<Trigger>) -> u64 {
    run.world.machine.inject(trigger);
    let times = trigger.map_or(0, |t| t.times);
    let is_death = trigger.is_some_and(|t| t.failure == Failure::Death);
    for (name, step) in SCRIPT {
        let mut failures = 0;
        while let Err(what) = step(&mut run) {
            let at = format!("{trigger:?}, step {name:?}: {what}");
            assert!(run.world.machine.injected().0 > 0, "{at}, and nothing was made to fail");
            run.world.assert_sound(&at);
            if is_death {
                run.bury();
                if failures > 0 {
                    // It is the step's own context that died.
                    assert!(at.contains("dead") || at.contains("not attached"), "{at}");
                    break;
                }
            } else if failures + 1 == times {
                run.check_bytes();
            }
            failures += 1;
            assert!(is_death || failures <= times, "{at}, for the {failures}th time");
        }
        run.world.assert_sound((name, trigger));
    }
    let (hits, _) = run.world.machine.injected();
    let is_hang = trigger.is_some_and(|t| t.failure == Failure::Hang);
    run.world.machine.inject(None);
    run.bury();
    run.check_bytes();
    run.world.assert_sound(("end", trigger));
    // A batch that hangs keeps all frames that it writes; the script's have three at most.
    run.check_leaks(if is_hang { 3 * hits as u32 } else { 0 });
    hits
}

/// Makes call after call fail, until the script has no more.
fn every_position(failure: Failure, times: u64, kind: Kind) {
    let mut positions = 0;
    loop {
        let trigger = Trigger { call: None, first: positions, times, failure };
        if play(Run::new(kind), Some(trigger)) == 0 {
            break;
        }
        positions += 1;
    }
    assert!(positions > 100, "only {positions} driver calls in the script");
}

#[test]
fn the_script_itself_makes_every_kind_of_call() {
    let run = Run::new(Kind { completion: Completion::Halves, ..PLAIN });
    let machine = run.world.machine.clone();
    play(run, None);
    for call in Call::ALL {
        assert!(machine.calls(call) > 0, "the script makes no call of kind {call:?}");
    }
}

#[test]
fn one_error_at_every_position() {
    let os = DriverError::Os { call: "mmap", errno: 12 };
    for error in [DriverError::Busy, DriverError::NoMemory, os] {
        every_position(Failure::Error(error), 1, PLAIN);
    }
}

#[test]
fn one_error_at_every_position_without_read_only_mappings() {
    let kind = Kind { completion: Completion::AtWait, read_only: false, ..PLAIN };
    every_position(Failure::Error(DriverError::Busy), 1, kind);
}

#[test]
fn one_error_at_every_position_where_launches_hold() {
    for read_only in [true, false] {
        let kind = Kind { read_only, held: true, ..PLAIN };
        every_position(Failure::Error(DriverError::Busy), 1, kind);
    }
}

#[test]
fn one_error_at_every_position_over_a_coherent_link() {
    let kind = Kind { completion: Completion::Halves, coherent: true, ..PLAIN };
    every_position(Failure::Error(DriverError::NoMemory), 1, kind);
}

#[test]
fn three_errors_in_a_row_at_every_position() {
    let kind = Kind { completion: Completion::Halves, ..PLAIN };
    every_position(Failure::Error(DriverError::NoMemory), 3, kind);
}

#[test]
fn a_hang_at_every_position() {
    for coherent in [false, true] {
        every_position(
            Failure::Hang,
            1,
            Kind { completion: Completion::Halves, coherent, ..PLAIN },
        );
    }
}

#[test]
fn death_at_every_position() {
    for held in [false, true] {
        every_position(Failure::Death, 1, Kind { held, ..PLAIN });
    }
}
