//! The rules. Each has a name that does not change, and one sentence.

mod context;
mod copy;
mod fault;
mod finality;
mod map;
mod memory;
mod part;
mod remote;
mod reservation;

use super::env::{Check, Env};

/// A rule and how it is checked.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) statement: &'static str,
    pub(super) check: fn(&Env) -> Check,
}

/// Every rule, in the order in which a driver is best got right.
pub(super) fn all() -> impl Iterator<Item = Rule> {
    let groups = [
        memory::RULES,
        copy::RULES,
        part::RULES,
        reservation::RULES,
        map::RULES,
        remote::RULES,
        finality::RULES,
        context::RULES,
        fault::RULES,
    ];
    groups.into_iter().flatten().copied()
}
