//! Reserving ranges of addresses.

use gmm_core::driver::{Examine, Protection};
use gmm_core::{PageNr, PageRange};

use super::Rule;
use crate::kit::env::{Check, Env, broken, enter, must};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "reserve-release-reserve",
        statement: "a range that was released, whole or in parts, can be reserved again",
        check: reserve_release_reserve,
    },
    Rule {
        name: "release-unmaps",
        statement: "after va_release nothing is mapped in the range",
        check: release_unmaps,
    },
    Rule {
        name: "release-in-part",
        statement: "va_release of part of a range leaves the rest as it was",
        check: release_in_part,
    },
    Rule {
        name: "release-of-unknown-range",
        statement: "va_release of a range that was never reserved changes nothing",
        check: release_of_unknown_range,
    },
];

fn reserve_release_reserve(env: &Env) -> Check {
    let context = env.bare_context();
    let mmu = context.mmu();
    let range = env.reserve(&*mmu, 4)?;
    for round in 1..=3 {
        let half = |start: PageNr| PageRange { start, nr_pages: 2 };
        if round == 2 {
            mmu.va_release(half(range.start));
            mmu.va_release(half(range.start.plus(2)));
        } else {
            mmu.va_release(range);
        }
        let answer = mmu.va_examine(range).map_err(broken("va_examine"))?;
        must!(answer == Examine::Reserved, "{range} was released and then {answer:?}");
    }
    Ok(())
}

fn release_unmaps(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(1)?;
    let mmu = context.mmu();
    env.fill(frames[0], 1)?;
    enter(&*mmu, range.start, frames[0], Protection::ReadWrite)?;
    env.expect_page("a page that was entered", &*context, range.start, 1)?;
    mmu.va_release(range);
    let seen = context.load(range.start.start());
    must!(
        seen.is_err(),
        "a core read {:#x} through a mapping in a range released",
        seen.unwrap_or(0)
    );
    Ok(())
}

fn release_in_part(env: &Env) -> Check {
    let frames = env.frames(3)?;
    let (context, range) = env.context(3)?;
    let mmu = context.mmu();
    for (i, &frame) in frames.iter().enumerate() {
        env.fill(frame, 1 + i as u64)?;
        enter(&*mmu, range.start.plus(i as u64), frame, Protection::ReadWrite)?;
    }
    mmu.va_release(PageRange { start: range.start.plus(1), nr_pages: 1 });
    env.expect_page("the page before the part released", &*context, range.start, 1)?;
    env.expect_page("the page after the part released", &*context, range.start.plus(2), 3)?;
    let middle = context.load(range.start.plus(1).start());
    must!(middle.is_err(), "a core still reads the page in the part released");
    Ok(())
}

fn release_of_unknown_range(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let (context, range) = env.context(2)?;
    let mmu = context.mmu();
    env.fill(frames[0], 1)?;
    enter(&*mmu, range.start, frames[0], Protection::ReadWrite)?;
    mmu.va_release(PageRange { start: range.end(), nr_pages: 4 });
    env.expect_page("a page beside a range released", &*context, range.start, 1)
}
