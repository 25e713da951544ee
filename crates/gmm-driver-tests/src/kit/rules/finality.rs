//! When `pmap_clear` or `va_release` has returned, it is over: the rules on which coherence rests.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use gmm_core::driver::{Examine, Mmu, Protection};
use gmm_core::{Frame, PageRange};

use super::Rule;
use crate::kit::TestContext;
use crate::kit::env::{Check, Env, Stop, at, broken, clear, enter, must};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "clear-is-final",
        statement: "once pmap_clear has returned, no access goes through the old mapping and no \
                    write of an earlier one lands",
        check: |env| is_final(env, End::Clear),
    },
    Rule {
        name: "release-is-final",
        statement: "once va_release has returned, no access goes through the old mappings and no \
                    write of an earlier one lands",
        check: |env| is_final(env, End::Release),
    },
];

const CORES: usize = 4;
const ROUNDS: usize = 12;

/// What ends a mapping.
#[derive(Clone, Copy)]
enum End {
    Clear,
    Release,
}

impl End {
    fn call(self) -> &'static str {
        match self {
            Self::Clear => "`pmap_clear`",
            Self::Release => "`va_release`",
        }
    }

    fn end(self, mmu: &dyn Mmu, range: PageRange, frame: Frame) -> Check {
        match self {
            Self::Clear => clear(mmu, range.start, frame),
            Self::Release => {
                mmu.va_release(range);
                Ok(())
            }
        }
    }

    /// The words of the frame, which nobody may write any more. After a release the frame is
    /// somebody else's, who fills it (and a movable one has lost its contents).
    fn settled(self, env: &Env, frame: Frame) -> Result<Vec<u64>, Stop> {
        if let Self::Release = self {
            env.fill(frame, 0xF1)?;
        }
        env.words(frame)
    }

    /// What it was before it ended.
    fn restore(self, mmu: &dyn Mmu, range: PageRange) -> Check {
        if let Self::Release = self {
            let answer = mmu.va_examine(range).map_err(broken("va_examine"))?;
            must!(answer == Examine::Reserved, "{range} was released and then {answer:?}");
        }
        Ok(())
    }
}

fn is_final(env: &Env, end: End) -> Check {
    let frame = env.frames(1)?[0];
    let (context, range) = env.context(1)?;
    one_store(env, end, &*context, range, frame)?;
    for round in 0..ROUNDS {
        end.restore(&*context.mmu(), range)?;
        hammered(env, end, &*context, range, frame).map_err(|stop| in_round(stop, round))?;
    }
    Ok(())
}

fn in_round(stop: Stop, round: usize) -> Stop {
    match stop {
        Stop::Broken(seen) => Stop::Broken(format!("{seen}, in round {round}")),
        stop => stop,
    }
}

/// Nothing races: a store, the end, and a store that is refused.
fn one_store(
    env: &Env,
    end: End,
    context: &dyn TestContext,
    range: PageRange,
    frame: Frame,
) -> Check {
    let (mmu, call, addr) = (context.mmu(), end.call(), range.start.start());
    env.fill(frame, 1)?;
    enter(&*mmu, range.start, frame, Protection::ReadWrite)?;
    context.store(addr, 2).map_err(broken("a store"))?;
    end.end(&*mmu, range, frame)?;
    let before = end.settled(env, frame)?;
    let wrote = context.store(addr, 3);
    must!(wrote.is_err(), "{call} returned, then a core wrote through the old mapping");
    let after = env.words(frame)?;
    must!(before == after, "{call} returned, then a store of before it landed");
    if let End::Clear = end {
        must!(after[0] == 2, "the store before {call} is lost: {:#x}", after[0]);
    }
    Ok(())
}

/// Cores store without pause while their page goes.
fn hammered(
    env: &Env,
    end: End,
    context: &dyn TestContext,
    range: PageRange,
    frame: Frame,
) -> Check {
    let (mmu, call) = (context.mmu(), end.call());
    env.fill(frame, 1)?;
    enter(&*mmu, range.start, frame, Protection::ReadWrite)?;
    let (ended, started) = (AtomicBool::new(false), AtomicU64::new(0));
    let hammer = |core: usize| -> Check {
        let addr = at(range.start, env.offsets[core % env.offsets.len()]);
        for value in 1.. {
            let late = ended.load(Ordering::SeqCst);
            if context.store(addr, value).is_err() {
                break;
            }
            must!(!late, "{call} returned, then core {core} wrote through the old mapping");
            if value == 1 {
                started.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(())
    };
    thread::scope(|s| {
        let hammer = &hammer;
        let cores: Vec<_> = (0..CORES).map(|core| s.spawn(move || hammer(core))).collect();
        while started.load(Ordering::SeqCst) < CORES as u64
            && !cores.iter().any(|c| c.is_finished())
        {
            thread::yield_now();
        }
        let done = end.end(&*mmu, range, frame);
        ended.store(true, Ordering::SeqCst);
        done?;
        let before = end.settled(env, frame)?;
        for core in cores {
            core.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let after = env.words(frame)?;
        for (offset, (b, a)) in env.offsets.iter().zip(before.iter().zip(&after)) {
            must!(
                b == a,
                "{call} returned, then the word at offset {offset} changed from {b} to {a}"
            );
        }
        Ok(())
    })
}
