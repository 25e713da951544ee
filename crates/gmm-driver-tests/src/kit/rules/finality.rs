//! When `pmap_clear` has returned, it is over: the rule on which coherence rests.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use gmm_core::driver::Protection;

use super::Rule;
use crate::kit::env::{Check, Env, at, broken, clear, enter, must};

pub(super) const RULES: &[Rule] = &[Rule {
    name: "clear-is-final",
    statement: "once pmap_clear has returned, no access goes through the old mapping and no write \
                of an earlier one lands",
    check: clear_is_final,
}];

const CORES: usize = 4;
const ROUNDS: usize = 12;

fn clear_is_final(env: &Env) -> Check {
    one_store(env)?;
    hammered(env)
}

/// Nothing races: a store, a clear, and a store that is refused.
fn one_store(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    env.fill(frames[0], 1)?;
    enter(&*context.mmu(), range.start, frames[0], Protection::ReadWrite)?;
    context.store(range.start.start(), 2).map_err(broken("a store"))?;
    clear(&*context.mmu(), range.start, frames[0])?;
    let before = env.words(frames[0])?;
    let wrote = context.store(range.start.start(), 3);
    must!(wrote.is_err(), "`pmap_clear` returned, then a core wrote through the old mapping");
    let after = env.words(frames[0])?;
    must!(before == after, "`pmap_clear` returned, then a store of before it landed");
    must!(after[0] == 2, "the store before pmap_clear is lost: {:#x}", after[0]);
    context.mmu().va_release(range);
    let extent = gmm_core::driver::Extent { start: frames[0].nr, nr_frames: 1 };
    env.device.release(env.first, &[extent]);
    Ok(())
}

/// Cores store without pause while their page is cleared.
fn hammered(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    let mmu = context.mmu();
    let offset = |core: usize| env.offsets[core % env.offsets.len()];
    for round in 0..ROUNDS {
        env.fill(frames[0], 1)?;
        enter(&*mmu, range.start, frames[0], Protection::ReadWrite)?;
        let (cleared, started) = (AtomicBool::new(false), AtomicU64::new(0));
        let hammer = |core: usize| -> Check {
            let mut value = 0;
            loop {
                let late = cleared.load(Ordering::SeqCst);
                value += 1;
                if context.store(at(range.start, offset(core)), value).is_err() {
                    return Ok(());
                }
                must!(
                    !late,
                    "`pmap_clear` returned, then core {core} wrote through the old mapping"
                );
                if value == 1 {
                    started.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        thread::scope(|s| {
            let hammer = &hammer;
            let cores: Vec<_> = (0..CORES).map(|core| s.spawn(move || hammer(core))).collect();
            while started.load(Ordering::SeqCst) < CORES as u64
                && !cores.iter().any(|c| c.is_finished())
            {
                thread::yield_now();
            }
            let done = clear(&*mmu, range.start, frames[0]);
            cleared.store(true, Ordering::SeqCst);
            done?;
            let before = env.words(frames[0])?;
            for core in cores {
                core.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            let after = env.words(frames[0])?;
            let moved =
                env.offsets.iter().zip(before.iter().zip(&after)).find(|(_, (b, a))| b != a);
            match moved {
                Some((offset, (b, a))) => Err(crate::kit::env::Stop::Broken(format!(
                    "`pmap_clear` returned, then the word at offset {offset} changed from {b} to \
                     {a}, in round {round}"
                ))),
                None => Ok(()),
            }
        })?;
    }
    Ok(())
}
