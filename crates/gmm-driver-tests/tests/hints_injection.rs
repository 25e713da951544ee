//! Every driver call of a script of hints is made to fail, at every position: remote mappings,
//! replicas and pins are as safe from it as everything else. See `injection.rs`.
#![cfg(not(shuttle))]

use std::collections::BTreeMap;

use gmm_core::driver::{Access, Capabilities, DriverError, Protection};
use gmm_core::{Attribute, NodeId, PAGE_SIZE, PageNr, PageRange};
use gmm_driver_tests::array::{
    AccessError, Completion, DeviceOptions, FRAME_WORDS, Failure, Trigger,
};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
/// Two contexts of the first XPU, one of the second, which has no link.
const A1: usize = 1;
const A2: usize = 2;
const B: usize = 3;
const NODE_A: NodeId = NodeId(1);

/// Pages that processors map where they are; that should be on `a`; that are mostly read; that
/// are pinned; two that are none of it.
const REMOTE: u64 = 0;
const PREFERRED: u64 = 1;
const READ_MOSTLY: u64 = 2;
const PINNED: u64 = 3;
const PLAIN: u64 = 4;

type Step = fn(&mut Run) -> Result<(), String>;

const SCRIPT: &[(&str, Step)] = &[
    ("a1 writes the remote page", |r| r.write(A1, REMOTE, 1)),
    ("the cpu reads it", |r| r.read(CPU, REMOTE)),
    ("the cpu writes it", |r| r.write(CPU, REMOTE, 2)),
    ("a2 writes it", |r| r.write(A2, REMOTE, 3)),
    ("the cpu makes the preferred page", |r| r.write(CPU, PREFERRED, 4)),
    ("the cpu writes the read-mostly page", |r| r.write(CPU, READ_MOSTLY, 5)),
    ("a1 reads it", |r| r.read(A1, READ_MOSTLY)),
    ("the cpu reads it", |r| r.read(CPU, READ_MOSTLY)),
    ("b reads it", |r| r.read(B, READ_MOSTLY)),
    ("the cpu writes the pinned page", |r| r.write(CPU, PINNED, 6)),
    ("pin", |r| r.pin(PINNED)),
    ("the cpu writes it where it is", |r| r.write(CPU, PINNED, 7)),
    ("b reads a copy", |r| r.read(B, PINNED)),
    ("a1 writes it", |r| r.write(A1, PINNED, 8)),
    ("a1 writes a plain page, evicts", |r| r.write(A1, PLAIN, 9)),
    ("a2 writes the next", |r| r.write(A2, PLAIN + 1, 10)),
    ("the cpu fetches the preferred page back", |r| r.read(CPU, PREFERRED)),
    ("the cpu reads the remote page", |r| r.read(CPU, REMOTE)),
    ("a1 takes it", |r| r.write(A1, REMOTE, 11)),
    ("the cpu maps it", |r| r.write(CPU, REMOTE, 12)),
    ("b takes it away", |r| r.write(B, REMOTE, 13)),
    ("the cpu maps it there", |r| r.write(CPU, REMOTE, 14)),
    ("the cpu writes the read-mostly page again", |r| r.write(CPU, READ_MOSTLY, 15)),
    ("a1 reads it again", |r| r.read(A1, READ_MOSTLY)),
    ("the cpu reads it again", |r| r.read(CPU, READ_MOSTLY)),
    ("protect", |r| r.protect(Protection::ReadOnly)),
    ("the cpu reads a protected page", |r| r.read(CPU, READ_MOSTLY)),
    ("the cpu reads a remote one", |r| r.read(CPU, REMOTE)),
    ("unprotect", |r| r.protect(Protection::ReadWrite)),
    ("a1 writes the read-mostly page", |r| r.write(A1, READ_MOSTLY, 16)),
    ("the cpu reads a copy of it", |r| r.read(CPU, READ_MOSTLY)),
    ("the cpu drops the copy itself", |r| r.drop_behind_the_core(READ_MOSTLY)),
    ("the cpu reads it once more", |r| r.read(CPU, READ_MOSTLY)),
    ("prefetch of the remote page", |r| r.prefetch(REMOTE, 0)),
    ("a1 writes the page that came", |r| r.write(A1, REMOTE, 17)),
    ("the cpu writes it, remotely", |r| r.write(CPU, REMOTE, 18)),
    ("a hold by the cpu", |r| r.hold(CPU, REMOTE)),
    ("a hold by a1", |r| r.hold(A1, REMOTE)),
    ("the cpu writes beside it", |r| r.write(CPU, REMOTE, 19)),
    ("discard", |r| r.discard(REMOTE)),
    ("a2 writes it anew", |r| r.write(A2, REMOTE, 20)),
    ("the cpu reads it anew", |r| r.read(CPU, REMOTE)),
    ("unpin", |r| r.unpin(PINNED)),
    ("b writes what was pinned", |r| r.write(B, PINNED, 21)),
    ("pin at home", |r| r.pin_at_home(PLAIN)),
    ("the cpu drops it itself", |r| r.drop_behind_the_core(PLAIN)),
    ("a1 reads what is pinned at home", |r| r.read(A1, PLAIN)),
    ("munmap of remote, preferred and read-mostly pages", |r| r.munmap(3)),
];

struct Run {
    world: World,
    range: PageRange,
    pages: BTreeMap<PageNr, [u64; FRAME_WORDS]>,
}

fn done<T>(result: Result<T, gmm_core::Error>) -> Result<(), String> {
    result.map(drop).map_err(|e| e.to_string())
}

impl Run {
    fn new(completion: Completion) -> Self {
        let can = Capabilities::COHERENT_LINK | Capabilities::READ_ONLY_REPLICAS;
        let world = World::builder(14)
            .host(|host| host.with(can).completing(completion))
            .xpu(DeviceOptions::xpu("a", 3).completing(completion), 2)
            .xpu(DeviceOptions::xpu("b", 3).completing(completion), 1)
            .build();
        let range = world.mmap(6);
        let advise = |page: u64, attribute| {
            let addr = range.start.plus(page).start();
            world.space.set_attribute(addr, 1, attribute).expect("a mapped page");
        };
        advise(REMOTE, Attribute::AccessedBy(NodeId::HOST, true));
        advise(PREFERRED, Attribute::Preferred(Some(NODE_A)));
        advise(READ_MOSTLY, Attribute::ReadMostly(true));
        let pages = range.pages().map(|page| (page, [0; FRAME_WORDS])).collect();
        Self { world, range, pages }
    }

    fn page(&self, page: u64) -> PageNr {
        self.range.start.plus(page)
    }

    fn write(&mut self, who: usize, page: u64, seed: u64) -> Result<(), String> {
        let page = self.page(page);
        for at in 0..FRAME_WORDS as u64 {
            let value = seed << 8 | at;
            let store = |r: &Self| r.world.processors[who].store(word(page, at), value);
            self.healed(who, page, store).map_err(|e| e.to_string())?;
            self.pages.get_mut(&page).expect("mapped")[at as usize] = value;
        }
        Ok(())
    }

    fn read(&mut self, who: usize, page: u64) -> Result<(), String> {
        let page = self.page(page);
        for at in 0..FRAME_WORDS as u64 {
            let load = |r: &Self| r.world.processors[who].load(word(page, at));
            let seen = self.healed(who, page, load).map_err(|e| e.to_string())?;
            assert_eq!(seen, self.pages[&page][at as usize], "word {at} of {page:?} seen by {who}");
        }
        Ok(())
    }

    /// An access; if the page was poisoned by a fault that failed, as after a repair: it is
    /// fetched to where it is.
    fn healed<T>(
        &self,
        who: usize,
        page: PageNr,
        access: impl Fn(&Self) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        match access(self) {
            Err(AccessError::Poisoned) => {
                let copies = self.world.space.inspect(page.start()).expect("mapped").copies;
                let node = copies.first().map_or(self.world.node(who), |copy| copy.node);
                self.world.space.prefetch(page.start(), 8, node)?;
                access(self)
            }
            result => result,
        }
    }

    fn drop_behind_the_core(&mut self, page: u64) -> Result<(), String> {
        let page = self.page(page);
        let info = self.world.space.inspect(page.start()).expect("mapped");
        let context = &self.world.cpu().context;
        if context.maps(page) {
            context.discard_behind_the_core(page);
            // Of a replica nothing is lost.
            if info.copies.len() == 1 && !info.writable.is_empty() {
                self.pages.get_mut(&page).expect("mapped").fill(0);
            }
        }
        Ok(())
    }

    fn pin(&mut self, page: u64) -> Result<(), String> {
        done(self.world.space.pin(self.page(page).start(), 1, NODE_A))
    }

    fn pin_at_home(&mut self, page: u64) -> Result<(), String> {
        let addr = self.page(page).start();
        done(self.world.space.prefetch(addr, 1, NodeId::HOST))?;
        done(self.world.space.pin(addr, 1, NodeId::HOST))
    }

    fn unpin(&mut self, page: u64) -> Result<(), String> {
        done(self.world.space.unpin(self.page(page).start(), 1, NODE_A))
    }

    fn protect(&mut self, to: Protection) -> Result<(), String> {
        done(self.world.space.protect(self.range.start.start(), 4 * PAGE_SIZE, to))
    }

    fn prefetch(&mut self, page: u64, node: u8) -> Result<(), String> {
        done(self.world.space.prefetch(self.page(page).start(), 1, NodeId(node)))
    }

    fn hold(&mut self, who: usize, page: u64) -> Result<(), String> {
        let range = PageRange { start: self.page(page), nr_pages: 1 };
        let processor = self.world.processors[who].processor.clone();
        done(self.world.space.hold(&processor, &[range], Access::Write))
    }

    fn discard(&mut self, page: u64) -> Result<(), String> {
        let page = self.page(page);
        done(self.world.space.discard(page.start(), PAGE_SIZE))?;
        self.pages.get_mut(&page).expect("mapped").fill(0);
        Ok(())
    }

    fn munmap(&mut self, nr_pages: u64) -> Result<(), String> {
        let range = PageRange { nr_pages, ..self.range };
        done(self.world.space.munmap(range.start.start(), range.len_bytes()))?;
        self.pages.retain(|&page, _| !range.contains(page));
        Ok(())
    }
}

/// Runs the script with a trigger; says how many calls failed.
fn play(mut run: Run, trigger: Option<Trigger>) -> u64 {
    run.world.machine.inject(trigger);
    for (name, step) in SCRIPT {
        let mut failures = 0;
        while let Err(what) = step(&mut run) {
            let at = format!("{trigger:?}, step {name:?}: {what}");
            assert!(run.world.machine.injected().0 > 0, "{at}, and nothing was made to fail");
            run.world.assert_sound(&at);
            failures += 1;
            assert!(failures <= trigger.map_or(0, |t| t.times), "{at}, for the {failures}th time");
        }
        run.world.assert_sound((name, trigger));
    }
    let (hits, _) = run.world.machine.injected();
    run.world.machine.inject(None);
    for page in 3..6 {
        run.read(CPU, page).expect("the CPU reads every page once nothing fails any more");
    }
    run.world.assert_sound(("end", trigger));
    done(run.world.space.munmap(run.page(3).start(), 3 * PAGE_SIZE)).expect("munmap at the end");
    run.world.assert_sound(("unmapped", trigger));
    let is_hang = trigger.is_some_and(|t| t.failure == Failure::Hang);
    for node in run.world.space.snapshot().nodes {
        assert_eq!((node.resident_frames, node.pinned_frames), (0, 0), "node {}", node.node);
        assert!(node.lost_frames <= if is_hang { hits as u32 } else { 0 }, "node {}", node.node);
    }
    hits
}

fn every_position(failure: Failure, times: u64, completion: Completion) {
    let mut positions = 0;
    loop {
        let trigger = Trigger { call: None, first: positions, times, failure };
        if play(Run::new(completion), Some(trigger)) == 0 {
            break;
        }
        positions += 1;
    }
    assert!(positions > 100, "only {positions} driver calls in the script");
}

#[test]
fn the_script_works() {
    play(Run::new(Completion::Halves), None);
}

#[test]
fn one_error_at_every_position() {
    every_position(Failure::Error(DriverError::Busy), 1, Completion::Inline);
    every_position(Failure::Error(DriverError::NoMemory), 1, Completion::Halves);
}

#[test]
fn three_errors_in_a_row_at_every_position() {
    every_position(Failure::Error(DriverError::NoMemory), 3, Completion::AtWait);
}

#[test]
fn a_hang_at_every_position() {
    every_position(Failure::Hang, 1, Completion::Halves);
}
