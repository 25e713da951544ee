//! Faults that replay: the kit plays the core, then the core itself serves.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gmm_core::driver::{Access, Capabilities, Enter, Mmu, Place, Protection};
use gmm_core::{Config, Frame, PageNr, Processor, Space, VirtAddr};

use super::Rule;
use crate::WallClock;
use crate::kit::env::{Check, Env, at, broken, clear, copy, enter, must, pattern, skip};
use crate::kit::{Serve, TestContext};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "fault-replays",
        statement: "an access that faults waits, and goes on when the page has been entered",
        check: fault_replays,
    },
    Rule {
        name: "fault-says-write",
        statement: "a write through a read-only mapping faults, and is reported as a write",
        check: fault_says_write,
    },
    Rule {
        name: "unserved-fault-fails",
        statement: "an access whose fault can't be served fails and does not hang",
        check: unserved_fault_fails,
    },
    Rule {
        name: "counting-while-moving",
        statement: "no increment is lost while the page moves from frame to frame under the cores",
        check: counting_while_moving,
    },
    Rule {
        name: "counting-in-a-space",
        statement: "no increment is lost while the CPU and cores of two contexts share pages in a space",
        check: counting_in_a_space,
    },
];

const CORES: u64 = 4;

fn fault_replays(env: &Env) -> Check {
    env.needs(Capabilities::REPLAYABLE_FAULTS)?;
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    let (mmu, frame, page) = (context.mmu(), frames[0], range.start);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (theirs, theirs_mmu) = (seen.clone(), mmu.clone());
    context.serve(Some(Arc::new(move |addr, access| {
        theirs.lock().unwrap_or_else(PoisonError::into_inner).push((addr, access));
        let mapping = Enter::local(page, frame, Protection::ReadWrite);
        theirs_mmu.pmap_enter(&[mapping]).is_ok()
    })));
    let offsets = [env.offsets[0], env.offsets[env.offsets.len() / 2]];
    for (offset, access) in offsets.into_iter().zip([Access::Read, Access::Write]) {
        let addr = at(page, offset);
        let value = match access {
            Access::Read => context.load(addr),
            Access::Write => {
                context.store(addr, pattern(1, offset)).and_then(|()| context.load(addr))
            }
        };
        let value = value.map_err(broken("an access whose fault was served"))?;
        must!(value == pattern(1, offset), "the replayed {access:?} at {offset} saw {value:#x}");
        let faults = core::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        must!(!faults.is_empty(), "a {access:?} of an unmapped page went on without a fault");
        must!(
            faults.iter().all(|&(a, _)| a.page() == page),
            "faults on {addr} were reported as {faults:?}"
        );
        let writes = faults.iter().any(|&(_, a)| a == Access::Write);
        must!(writes || access == Access::Read, "a write was reported as {faults:?}");
        clear(&*mmu, page, frame)?;
    }
    Ok(())
}

fn fault_says_write(env: &Env) -> Check {
    env.needs(Capabilities::REPLAYABLE_FAULTS | Capabilities::READ_ONLY_MAPPINGS)?;
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    let (mmu, frame, page) = (context.mmu(), frames[0], range.start);
    enter(&*mmu, page, frame, Protection::ReadOnly)?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (theirs, theirs_mmu) = (seen.clone(), mmu.clone());
    context.serve(Some(Arc::new(move |_, access| {
        theirs.lock().unwrap_or_else(PoisonError::into_inner).push(access);
        let mapping = Enter::local(page, frame, Protection::ReadWrite);
        theirs_mmu.pmap_enter(&[mapping]).is_ok()
    })));
    context.load(page.start()).map_err(broken("a load of a read-only page"))?;
    context.store(page.start(), 2).map_err(broken("a store whose fault was served"))?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    must!(seen.contains(&Access::Write), "a write to a read-only page was reported as {seen:?}");
    must!(!seen.contains(&Access::Read), "a read of a page mapped read-only faulted");
    let read = context.load(page.start()).map_err(broken("a load"))?;
    must!(read == 2, "the replayed store left {read:#x}");
    Ok(())
}

fn unserved_fault_fails(env: &Env) -> Check {
    let (context, range) = env.context(1)?;
    context.serve(Some(Arc::new(|_, _| false)));
    for _ in 0..3 {
        must!(context.load(range.start.start()).is_err(), "a load went on that nobody served");
        must!(context.store(range.start.start(), 1).is_err(), "a store went on that nobody served");
    }
    Ok(())
}

/// The page moves between two frames while cores count on it; faults wait on the kit's lock, as
/// they wait on an entry's.
fn counting_while_moving(env: &Env) -> Check {
    const INCREMENTS: u64 = 200;
    env.needs(Capabilities::REPLAYABLE_FAULTS)?;
    let frames = env.frames(2)?;
    let (context, range) = env.context(1)?;
    let (mmu, page) = (context.mmu(), range.start);
    env.transfer(&frames.iter().map(|&f| gmm_core::driver::Op::Zero(f)).collect::<Vec<_>>())?;
    if !can_count(&*context, &*mmu, page, frames[0])? {
        return Err(skip("the cores have no atomic increment"));
    }
    // The frame that holds the page, and whether it is entered.
    let home = Arc::new(Mutex::new((frames[0], false)));
    let (theirs, theirs_mmu) = (home.clone(), mmu.clone());
    context.serve(Some(Arc::new(move |_, _| {
        let mut home = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = Enter::local(page, home.0, Protection::ReadWrite);
        home.1 = home.1 || theirs_mmu.pmap_enter(&[mapping]).is_ok();
        home.1
    })));
    let count = |core: u64| -> Check {
        for _ in 0..INCREMENTS {
            let addr = at(page, env.offsets[(core % 2) as usize]);
            let done = context.increment(addr).unwrap_or(Err(crate::kit::Refused));
            done.map_err(broken("an increment"))?;
        }
        Ok(())
    };
    let count = &count;
    thread::scope(|s| {
        let cores: Vec<_> = (0..CORES).map(|core| s.spawn(move || count(core))).collect();
        while cores.iter().any(|c| !c.is_finished()) {
            let mut home = home.lock().unwrap_or_else(PoisonError::into_inner);
            if home.1 {
                let next = if home.0 == frames[0] { frames[1] } else { frames[0] };
                clear(&*mmu, page, home.0)?;
                env.transfer(&[copy(Place::Frame(home.0), Place::Frame(next))])?;
                *home = (next, false);
            }
            drop(home);
            thread::yield_now();
        }
        cores
            .into_iter()
            .try_for_each(|c| c.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })?;
    let mut total = 0;
    for &offset in &env.offsets[..2] {
        total += context.load(at(page, offset)).map_err(broken("a load"))?;
    }
    must!(total == CORES * INCREMENTS, "{} increments left {total}", CORES * INCREMENTS);
    Ok(())
}

/// Whether the context's cores can increment; leaves the page unmapped and the word zero.
fn can_count(
    context: &dyn TestContext,
    mmu: &dyn Mmu,
    page: PageNr,
    frame: Frame,
) -> Result<bool, crate::kit::env::Stop> {
    enter(mmu, page, frame, Protection::ReadWrite)?;
    let can = context.increment(page.start()).is_some();
    if can {
        context.store(page.start(), 0).map_err(broken("a store"))?;
    }
    clear(mmu, page, frame)?;
    Ok(can)
}

fn counting_in_a_space(env: &Env) -> Check {
    const INCREMENTS: u64 = 60;
    const PAGES: u64 = 3;
    env.needs(Capabilities::REPLAYABLE_FAULTS)?;
    let Some((host, cpu)) = env.bench.host() else {
        return Err(skip("the subject names no host to share a space with"));
    };
    let is_host = Arc::ptr_eq(&host, &env.device);
    let config = Config { window: env.bench.window(), ..Config::default() };
    let clock = Arc::new(WallClock::default());
    let space = Space::new(config, host, cpu.mmu(), clock).map_err(broken("Space::new"))?;
    cpu.serve(Some(serve(&space, space.cpu())));
    let mut contexts = vec![cpu];
    if !is_host {
        let node = space.add_device(env.device.clone()).map_err(broken("add_device"))?;
        for _ in 0..2 {
            let context = env.bench.context(0);
            let attached = space.attach(node, context.mmu()).map_err(broken("attach"))?;
            context.serve(Some(serve(&space, &attached.processor)));
            contexts.push(context);
        }
    }
    let length = PAGES * gmm_core::PAGE_SIZE;
    let range = space.mmap(length, Protection::ReadWrite, "kit").map_err(broken("mmap"))?;
    let addr = |page: u64| range.start.plus(page).start();
    if contexts.iter().any(|c| c.increment(addr(0)).is_none()) {
        return Err(skip("the cores have no atomic increment"));
    }
    let first: u64 = contexts.len() as u64;
    let count = |context: &dyn TestContext| -> Check {
        for i in 0..INCREMENTS {
            let done = context.increment(addr(i % PAGES)).unwrap_or(Err(crate::kit::Refused));
            done.map_err(broken("an increment"))?;
        }
        Ok(())
    };
    let count = &count;
    thread::scope(|s| {
        let threads = contexts.iter().flat_map(|c| [c, c]);
        let threads: Vec<_> = threads.map(|c| s.spawn(move || count(&**c))).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })?;
    let mut total = 0;
    for page in 0..PAGES {
        total += contexts[0].load(addr(page)).map_err(broken("a load"))?;
    }
    let wanted = first + 2 * first * INCREMENTS;
    must!(total == wanted, "{wanted} increments left {total}");
    space.check().map_err(broken("Space::check"))?;
    space.munmap(addr(0), length).map_err(broken("munmap"))?;
    // A server holds the space, which holds the context's page table.
    contexts.iter().for_each(|c| c.serve(None));
    Ok(())
}

fn serve(space: &Arc<Space>, processor: &Arc<Processor>) -> Serve {
    let (space, processor) = (space.clone(), processor.clone());
    Arc::new(move |addr: VirtAddr, access| space.fault(&processor, addr, access).is_ok())
}
