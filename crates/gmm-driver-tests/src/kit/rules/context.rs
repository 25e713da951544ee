//! Several contexts of one device, and contexts that die.

use std::thread;

use gmm_core::driver::{Capabilities, DriverError, Enter, Protection};

use super::Rule;
use crate::kit::env::{Check, Env, broken, clear, enter, must, skip};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "contexts-share-frames",
        statement: "contexts of one node that map the same frame see each other's writes",
        check: contexts_share_frames,
    },
    Rule {
        name: "contexts-are-separate",
        statement: "clearing a page in one context leaves the mappings of the others alone",
        check: contexts_are_separate,
    },
    Rule {
        name: "dead-clear-succeeds",
        statement: "pmap_clear on a dead context succeeds, and nothing of it lands later",
        check: dead_clear_succeeds,
    },
    Rule {
        name: "dead-data-survives",
        statement: "the frames that a dead context had mapped keep their bytes",
        check: dead_data_survives,
    },
    Rule {
        name: "dead-enter-fails",
        statement: "pmap_enter on a dead context fails and says that it is dead",
        check: dead_enter_fails,
    },
];

fn contexts_share_frames(env: &Env) -> Check {
    not_movable(env)?;
    let frames = env.frames(1)?;
    let ((one, range), (two, other)) = (env.context(1)?, env.context(1)?);
    env.fill(frames[0], 1)?;
    enter(&*one.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    enter(&*two.mmu(), other.start, frames[0], Protection::ReadWrite)?;
    env.write_page(&*one, range.start, 2)?;
    env.expect_page("a page that another context wrote", &*two, other.start, 2)?;
    env.write_page(&*two, other.start, 3)?;
    env.expect_page("a page that another context wrote", &*one, range.start, 3)
}

fn contexts_are_separate(env: &Env) -> Check {
    not_movable(env)?;
    let frames = env.frames(1)?;
    let ((one, range), (two, other)) = (env.context(1)?, env.context(1)?);
    env.fill(frames[0], 1)?;
    enter(&*one.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    must!(two.load(other.start.start()).is_err(), "a page entered in one context is in another");
    enter(&*two.mmu(), other.start, frames[0], Protection::ReadWrite)?;
    clear(&*one.mmu(), range.start, frames[0])?;
    must!(one.load(range.start.start()).is_err(), "a page cleared is still mapped");
    env.expect_page("a page that another context cleared", &*two, other.start, 1)
}

fn not_movable(env: &Env) -> Check {
    match env.has(Capabilities::MOVABLE_FRAMES) {
        true => Err(skip("frames move into one page table, so none can share them")),
        false => Ok(()),
    }
}

fn dead_clear_succeeds(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    enter(&*context.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    let page = range.start;
    thread::scope(|s| {
        // A core that stores without pause until it dies.
        let core =
            s.spawn(|| (1..).take_while(|&v| context.store(page.start(), v).is_ok()).count());
        // Ends early where the context can't be killed: the clear below stops the core.
        let killed = context.kill();
        clear(&*context.mmu(), page, frames[0])?;
        let before = env.words(frames[0])?;
        let _ = core.join();
        let after = env.words(frames[0])?;
        must!(before == after, "`pmap_clear` of a dead context returned, then a store landed");
        if !killed {
            return Err(skip("the context can't be killed"));
        }
        Ok(())
    })
}

fn dead_data_survives(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    enter(&*context.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    env.write_page(&*context, range.start, 2)?;
    if !context.kill() {
        return Err(skip("the context can't be killed"));
    }
    clear(&*context.mmu(), range.start, frames[0])?;
    env.expect_frame("the frame of a dead context", frames[0], 2)?;
    let (next, range) = env.context(1)?;
    enter(&*next.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    env.expect_page("a page with the frame of a dead context", &*next, range.start, 2)
}

fn dead_enter_fails(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    if !context.kill() {
        return Err(skip("the context can't be killed"));
    }
    let protection = Protection::ReadWrite;
    // A death takes a moment; the rule's deadline bounds the wait.
    while context.load(range.start.start()).is_ok() {
        thread::yield_now();
    }
    clear(&*context.mmu(), range.start, frames[0])?;
    let result = context.mmu().pmap_enter(&[Enter::local(range.start, frames[0], protection)]);
    match result {
        Err(partial) if partial.error == DriverError::Dead && partial.done == 0 => Ok(()),
        Err(partial) => Err(broken("pmap_enter on a dead context, which is to say so,")(partial)),
        Ok(()) => {
            Err(crate::kit::env::Stop::Broken("pmap_enter on a dead context succeeded".into()))
        }
    }
}
