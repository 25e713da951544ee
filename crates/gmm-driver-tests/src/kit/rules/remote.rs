//! Mappings across nodes, and replicas.

use gmm_core::driver::{Capabilities, Clear, Enter, Mmu, Protection};
use gmm_core::driver::{MappingKind, RemoteHandle};
use gmm_core::{Frame, PageNr};

use super::Rule;
use crate::kit::env::{Check, Env, Stop, at, broken, enter, must, skip};
use crate::kit::{FarFrame, TestContext};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "handle-is-the-frame",
        statement: "a frame's remote_handle is where its bytes are; all frames of a node have one, \
                    or none has",
        check: handle_is_the_frame,
    },
    Rule {
        name: "remote-is-the-frame",
        statement: "through a remote mapping cores read and write the other node's frame itself",
        check: remote_is_the_frame,
    },
    Rule {
        name: "remote-clear-removes",
        statement: "once pmap_clear of a remote mapping has returned no access goes through it, and \
                    a frame of the own node can be entered",
        check: remote_clear_removes,
    },
    Rule {
        name: "remote-release-removes",
        statement: "once va_release has returned no access goes through a remote mapping",
        check: remote_release_removes,
    },
    Rule {
        name: "replica-is-equal",
        statement: "through a replica cores read the frame's bytes, and the frame stays in reach of \
                    copies",
        check: replica_is_equal,
    },
    Rule {
        name: "replica-stops-writes",
        statement: "a write through a replica does not go on, and reaches neither the frame nor the \
                    replica",
        check: replica_stops_writes,
    },
    Rule {
        name: "replica-clear-removes",
        statement: "once pmap_clear of a replica has returned no access goes through it, and the \
                    frame itself can be entered",
        check: replica_clear_removes,
    },
];

fn handle_is_the_frame(env: &Env) -> Check {
    let frames = env.frames(2)?;
    let handles = frames.iter().map(|&f| env.device.remote_handle(f)).collect::<Vec<_>>();
    if handles.iter().all(Option::is_none) {
        return Err(skip("the device gives no handles"));
    }
    for (i, (&frame, handle)) in frames.iter().zip(handles).enumerate() {
        let Some(handle) = handle else {
            return Err(Stop::Broken(format!("{frame:?} has no handle, and others have")));
        };
        let RemoteHandle { offset_bytes, .. } = handle;
        must!(
            offset_bytes % gmm_core::PAGE_SIZE == 0,
            "the handle of {frame:?} is at {offset_bytes}, not a multiple of the page size"
        );
        env.fill(frame, 1 + i as u64)?;
        let words: Option<Vec<u64>> =
            env.offsets.iter().map(|&o| env.bench.read_handle(handle, o)).collect();
        let Some(words) = words else {
            return Err(Stop::Broken(format!("nothing can be read at {handle:?}")));
        };
        env.compare("a frame read at its handle", &words, 1 + i as u64)?;
    }
    Ok(())
}

/// What a rule about remote mappings works with: a context, a page, and a frame of another node.
struct Far {
    context: Box<dyn TestContext>,
    page: PageNr,
    frame: Box<dyn FarFrame>,
}

impl Far {
    fn new(env: &Env) -> Result<Self, Stop> {
        env.needs(Capabilities::COHERENT_LINK)?;
        let (context, range) = env.context(1)?;
        let Some(frame) = env.bench.far_frame() else {
            return Err(skip("there is no device whose frames could be mapped"));
        };
        Ok(Self { context, page: range.start, frame })
    }

    fn mmu(&self) -> std::sync::Arc<dyn Mmu> {
        self.context.mmu()
    }

    fn enter(&self, protection: Protection) -> Check {
        let (frame, handle) = (self.frame.frame(), self.frame.handle());
        let (page, kind) = (self.page, MappingKind::Remote(handle));
        let mapping = Enter { page, frame, protection, kind };
        self.mmu().pmap_enter(&[mapping]).map_err(broken("pmap_enter of a frame of another node"))
    }

    fn clear(&self) -> Check {
        clear_any(&*self.mmu(), self.page, self.frame.frame())
    }

    fn expect_refused(&self, what: &str) -> Check {
        must!(self.context.load(self.page.start()).is_err(), "{what} returned, then a core read");
        must!(
            self.context.store(self.page.start(), 9).is_err(),
            "{what} returned, then a core wrote"
        );
        Ok(())
    }
}

/// A dropped part of what is no frame of the own node is no loss: `was_empty` stays false.
fn clear_any(mmu: &dyn Mmu, page: PageNr, frame: Frame) -> Check {
    let mut batch = [Clear { page, frame, was_empty: false }];
    mmu.pmap_clear(&mut batch).map_err(broken("pmap_clear"))?;
    must!(!batch[0].was_empty, "pmap_clear says that a page nobody discarded was empty");
    Ok(())
}

fn remote_is_the_frame(env: &Env) -> Check {
    let far = Far::new(env)?;
    for (round, &offset) in env.offsets.iter().enumerate() {
        far.frame.write(offset, 1 + round as u64);
    }
    far.enter(Protection::ReadWrite)?;
    for (round, &offset) in env.offsets.iter().enumerate() {
        let (addr, first) = (at(far.page, offset), 1 + round as u64);
        let read = far.context.load(addr).map_err(broken("a load of a remote page"))?;
        must!(read == first, "a core reads {read} at {offset} of a frame that holds {first}");
        far.context.store(addr, first + 1000).map_err(broken("a store to a remote page"))?;
        let there = far.frame.read(offset);
        must!(
            there == first + 1000,
            "a core wrote {} at {offset}, the frame has {there}",
            first + 1000
        );
        far.frame.write(offset, first + 2000);
        let read = far.context.load(addr).map_err(broken("a load of a remote page"))?;
        must!(read == first + 2000, "a core reads {read}, the frame was written {}", first + 2000);
    }
    far.clear()
}

fn remote_clear_removes(env: &Env) -> Check {
    let far = Far::new(env)?;
    let own = env.frames(1)?[0];
    for round in 1..4 {
        far.frame.write(0, round);
        far.enter(Protection::ReadWrite)?;
        let read = far.context.load(far.page.start()).map_err(broken("a load of a remote page"))?;
        must!(read == round, "a core reads {read} of a frame that holds {round}");
        far.clear()?;
        far.expect_refused("`pmap_clear` of a remote mapping")?;
        must!(far.frame.read(0) == round, "a write after the clear has reached the other node");
        env.fill(own, round)?;
        enter(&*far.mmu(), far.page, own, Protection::ReadWrite)?;
        env.expect_page("a page that was mapped remotely before", &*far.context, far.page, round)?;
        clear_any(&*far.mmu(), far.page, own)?;
        env.expect_frame("the frame of such a page", own, round)?;
    }
    Ok(())
}

fn remote_release_removes(env: &Env) -> Check {
    let far = Far::new(env)?;
    far.frame.write(0, 5);
    far.enter(Protection::ReadWrite)?;
    far.context.load(far.page.start()).map_err(broken("a load of a remote page"))?;
    let range = gmm_core::PageRange { start: far.page, nr_pages: 1 };
    far.mmu().va_release(range);
    far.expect_refused("`va_release`")?;
    must!(far.frame.read(0) == 5, "the other node's frame was changed by va_release");
    Ok(())
}

/// A context with a page of which `frame`, filled from `seed`, is mapped as a replica.
fn replica(env: &Env, seed: u64) -> Result<(Box<dyn TestContext>, PageNr, Frame), Stop> {
    env.needs(Capabilities::READ_ONLY_REPLICAS)?;
    let frame = env.frames(1)?[0];
    let (context, range) = env.context(1)?;
    env.fill(frame, seed)?;
    enter_replica(&*context.mmu(), range.start, frame)?;
    Ok((context, range.start, frame))
}

fn enter_replica(mmu: &dyn Mmu, page: PageNr, frame: Frame) -> Check {
    let (protection, kind) = (Protection::ReadWrite, MappingKind::Replica);
    let mapping = Enter { page, frame, protection, kind };
    mmu.pmap_enter(&[mapping]).map_err(broken("pmap_enter of a replica"))
}

fn replica_is_equal(env: &Env) -> Check {
    let (context, page, frame) = replica(env, 3)?;
    for _ in 0..2 {
        env.expect_page("a page mapped as a replica", &*context, page, 3)?;
        env.expect_frame("the frame under a replica", frame, 3)?;
    }
    clear_any(&*context.mmu(), page, frame)
}

fn replica_stops_writes(env: &Env) -> Check {
    let (context, page, frame) = replica(env, 3)?;
    for &offset in &env.offsets {
        must!(
            context.store(at(page, offset), 9).is_err(),
            "a core wrote at offset {offset} through a replica"
        );
    }
    clear_any(&*context.mmu(), page, frame)?;
    env.expect_frame("the frame under a replica", frame, 3)
}

fn replica_clear_removes(env: &Env) -> Check {
    let (context, page, frame) = replica(env, 3)?;
    let mmu = context.mmu();
    env.expect_page("a page mapped as a replica", &*context, page, 3)?;
    for seed in 4..7 {
        clear_any(&*mmu, page, frame)?;
        let read = context.load(page.start());
        must!(read.is_err(), "`pmap_clear` of a replica returned, then a core read");
        enter(&*mmu, page, frame, Protection::ReadWrite)?;
        env.expect_page("a frame entered after its replica", &*context, page, seed - 1)?;
        env.write_page(&*context, page, seed)?;
        clear_any(&*mmu, page, frame)?;
        env.expect_frame("a frame that a core wrote", frame, seed)?;
        enter_replica(&*mmu, page, frame)?;
        env.expect_page("a second replica", &*context, page, seed)?;
    }
    clear_any(&*mmu, page, frame)
}
