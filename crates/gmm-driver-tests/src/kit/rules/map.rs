//! Entering and clearing.

use gmm_core::driver::{Capabilities, Clear, Enter, Partial, Protection};
use gmm_core::{Frame, PageRange};

use super::Rule;
use crate::kit::TestContext;
use crate::kit::env::{Check, Env, Stop, at, broken, clear, enter, must, pattern, skip};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "enter-makes-visible",
        statement: "after pmap_enter cores read and write the frame at the page",
        check: enter_makes_visible,
    },
    Rule {
        name: "unmapped-is-refused",
        statement: "an access to a page that is not entered does not go on",
        check: unmapped_is_refused,
    },
    Rule {
        name: "clear-removes",
        statement: "after pmap_clear no access to the page goes on, and another frame can be entered",
        check: clear_removes,
    },
    Rule {
        name: "read-only-stops-writes",
        statement: "through a read-only mapping cores read and do not write",
        check: read_only_stops_writes,
    },
    Rule {
        name: "enter-again-changes-protection",
        statement: "entering a page with the frame that it maps changes its protection, both ways",
        check: enter_again_changes_protection,
    },
    Rule {
        name: "batch-of-16",
        statement: "all of a batch of 16 enters and 16 clears happen, each for its page",
        check: batch_of_16,
    },
    Rule {
        name: "partial-is-true",
        statement: "a batch that stops part way did exactly the elements it says, in order",
        check: partial_is_true,
    },
];

fn enter_makes_visible(env: &Env) -> Check {
    let frames = env.frames(2)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    env.fill(frames[1], 2)?;
    enter(&*context.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    env.expect_page("a page that was entered", &*context, range.start, 1)?;
    env.write_page(&*context, range.start, 3)?;
    env.expect_page("a page that a core wrote", &*context, range.start, 3)?;
    clear(&*context.mmu(), range.start, frames[0])?;
    env.expect_frame("the frame of a page that a core wrote", frames[0], 3)?;
    env.expect_frame("the frame beside it", frames[1], 2)
}

fn unmapped_is_refused(env: &Env) -> Check {
    let (context, range) = env.context(2)?;
    for page in range.pages() {
        must!(context.load(page.start()).is_err(), "a core read page {page:?}, never entered");
        must!(context.store(page.start(), 1).is_err(), "a core wrote page {page:?}, never entered");
    }
    Ok(())
}

fn clear_removes(env: &Env) -> Check {
    let frames = env.frames(2)?;
    let (context, range) = env.context(1)?;
    let mmu = context.mmu();
    for round in 0..4 {
        let frame = frames[round % 2];
        let seed = 1 + round as u64;
        env.fill(frame, seed)?;
        enter(&*mmu, range.start, frame, Protection::ReadWrite)?;
        env.expect_page("a page that was entered", &*context, range.start, seed)?;
        clear(&*mmu, range.start, frame)?;
        for &offset in [env.offsets[0], env.offsets[env.offsets.len() - 1]].iter() {
            let (read, wrote) =
                (context.load(at(range.start, offset)), context.store(at(range.start, offset), 9));
            must!(read.is_err(), "`pmap_clear` returned, then a core read at offset {offset}");
            must!(wrote.is_err(), "`pmap_clear` returned, then a core wrote at offset {offset}");
        }
        env.expect_frame("the frame of a page that was cleared", frame, seed)?;
    }
    Ok(())
}

fn read_only_stops_writes(env: &Env) -> Check {
    env.needs(Capabilities::READ_ONLY_MAPPINGS)?;
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    enter(&*context.mmu(), range.start, frames[0], Protection::ReadOnly)?;
    for &offset in &env.offsets {
        let wrote = context.store(at(range.start, offset), 9);
        must!(wrote.is_err(), "a core wrote at offset {offset} through a read-only mapping");
    }
    env.expect_page("a page entered read-only", &*context, range.start, 1)?;
    clear(&*context.mmu(), range.start, frames[0])?;
    env.expect_frame("the frame of a page entered read-only", frames[0], 1)
}

fn enter_again_changes_protection(env: &Env) -> Check {
    env.needs(Capabilities::READ_ONLY_MAPPINGS)?;
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    let (mmu, addr) = (context.mmu(), range.start.start());
    env.fill(frames[0], 1)?;
    for round in 1..=2 {
        enter(&*mmu, range.start, frames[0], Protection::ReadOnly)?;
        must!(context.store(addr, 9).is_err(), "a page entered again read-only is writable");
        enter(&*mmu, range.start, frames[0], Protection::ReadWrite)?;
        let stored = context.store(addr, 100 + round);
        must!(stored.is_ok(), "a page entered again read-write is not writable");
        let read = context.load(addr).map_err(broken("a load"))?;
        must!(read == 100 + round, "a core reads {read} after it wrote {}", 100 + round);
    }
    let last = env.offsets[env.offsets.len() - 1];
    let kept = context.load(at(range.start, last)).map_err(broken("a load"))?;
    must!(kept == pattern(1, last), "entering again changed the frame's bytes");
    clear(&*mmu, range.start, frames[0])
}

fn batch_of_16(env: &Env) -> Check {
    let frames = env.frames(16)?;
    let (context, range) = env.context(16)?;
    let mmu = context.mmu();
    for (i, &frame) in frames.iter().enumerate() {
        env.fill(frame, 1 + i as u64)?;
    }
    mmu.pmap_enter(&enters(range, &frames)).map_err(broken("pmap_enter of 16"))?;
    for (i, page) in range.pages().enumerate() {
        env.expect_page(&format!("page {i} of 16 entered"), &*context, page, 1 + i as u64)?;
    }
    mmu.pmap_clear(&mut clears(range, &frames)).map_err(broken("pmap_clear of 16"))?;
    for (i, page) in range.pages().enumerate() {
        must!(
            context.load(page.start()).is_err(),
            "page {i} of 16 is still mapped after pmap_clear"
        );
    }
    Ok(())
}

fn partial_is_true(env: &Env) -> Check {
    let n = env.device.nodes().first().map_or(0, |d| d.capacity_frames.min(5)) as usize;
    let frames = env.frames(n.max(2))?;
    let (context, range) = env.context(frames.len() as u64)?;
    let mmu = context.mmu();
    for &frame in &frames {
        env.fill(frame, 1)?;
    }
    for stop in 0..frames.len() {
        if !context.stop_next_batch_after(stop) {
            return Err(skip("the driver has no switch that makes a batch stop part way"));
        }
        let entered = claimed(mmu.pmap_enter(&enters(range, &frames)), "pmap_enter", &frames)?;
        expect_first(&*context, range, "pmap_enter", entered)?;
        if !frames[entered..].is_empty() {
            let rest = PageRange {
                start: range.start.plus(entered as u64),
                nr_pages: (frames.len() - entered) as u64,
            };
            let result = mmu.pmap_enter(&enters(rest, &frames[entered..]));
            result.map_err(broken("pmap_enter of the rest"))?;
        }
        context.stop_next_batch_after(stop);
        let result = mmu.pmap_clear(&mut clears(range, &frames));
        let cleared = claimed(result, "pmap_clear", &frames)?;
        for (i, page) in range.pages().enumerate() {
            let mapped = context.load(page.start()).is_ok();
            must!(
                mapped == (i >= cleared),
                "pmap_clear said {cleared} were done; page {i} is mapped: {mapped}"
            );
        }
        let rest = PageRange {
            start: range.start.plus(cleared as u64),
            nr_pages: (frames.len() - cleared) as u64,
        };
        let result = mmu.pmap_clear(&mut clears(rest, &frames[cleared..]));
        result.map_err(broken("pmap_clear of the rest"))?;
    }
    Ok(())
}

/// How many were done as the driver says.
fn claimed(result: Result<(), Partial>, what: &str, frames: &[Frame]) -> Result<usize, Stop> {
    let Err(Partial { done, .. }) = result else { return Ok(frames.len()) };
    let n = frames.len();
    must!(done < n, "{what} of {n} failed and said that {done} were done");
    Ok(done)
}

/// The first `done` pages are mapped and no other.
fn expect_first(context: &dyn TestContext, range: PageRange, what: &str, done: usize) -> Check {
    for (i, page) in range.pages().enumerate() {
        let mapped = context.load(page.start()).is_ok();
        must!(mapped == (i < done), "{what} said {done} were done; page {i} is mapped: {mapped}");
    }
    Ok(())
}

fn enters(range: PageRange, frames: &[Frame]) -> Vec<Enter> {
    let protection = Protection::ReadWrite;
    range.pages().zip(frames).map(|(page, &frame)| Enter::local(page, frame, protection)).collect()
}

fn clears(range: PageRange, frames: &[Frame]) -> Vec<Clear> {
    let clear = |(page, &frame)| Clear { page, frame, was_empty: false };
    range.pages().zip(frames).map(clear).collect()
}
