//! Copies of parts of frames.

use gmm_core::driver::{Op, Place};
use gmm_core::{Frame, PAGE_SIZE};

use super::Rule;
use crate::kit::env::{Check, Env, Stop, must, pattern};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "part-is-exact",
        statement: "a copy of a part moves every byte of it, at any alignment, and no other",
        check: part_is_exact,
    },
    Rule {
        name: "part-from-any-memory",
        statement: "the host's end of a copy of a part may start at any address",
        check: part_from_any_memory,
    },
    Rule {
        name: "parts-of-one-batch",
        statement: "the operations of one batch may copy different parts of one frame",
        check: parts_of_one_batch,
    },
];

/// A range to copy: where from, where to, how long.
#[derive(Clone, Copy)]
struct Part {
    from: u64,
    to: u64,
    len: u64,
}

const fn part(from: u64, to: u64, len: u64) -> Part {
    Part { from, to, len }
}

const PARTS: [Part; 8] = [
    part(0, 0, 1),
    part(3, 8, 20),
    part(17, 2, 11),
    part(PAGE_SIZE - 29, PAGE_SIZE - 21, 21),
    part(PAGE_SIZE - 1, PAGE_SIZE - 1, 1),
    part(5, 5, PAGE_SIZE - 10),
    part(0, 1, PAGE_SIZE - 1),
    part(8, 0, PAGE_SIZE - 8),
];

/// The words that are looked at: those of the device, and the ends of the frame, without gaps.
fn offsets(env: &Env) -> Vec<u64> {
    let ends = (0..4).flat_map(|word| [word * 8, PAGE_SIZE - 8 - word * 8]);
    let mut offsets: Vec<u64> = env.offsets.iter().copied().chain(ends).collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

/// Frames of host memory that the rules use, and the kit's own to look at frames.
const FROM: usize = 0;
const TO: usize = 1;
const LOOK: usize = 2;

fn op(from: Place, to: Place, part: Part) -> Op {
    Op::CopyPart { from, from_offset: part.from, to, to_offset: part.to, len: part.len }
}

fn fill_host(env: &Env, frame: usize, seed: u64) {
    offsets(env).iter().for_each(|&o| env.host.write(frame, o, pattern(seed, o)));
}

fn fill(env: &Env, frame: Frame, seed: u64) -> Check {
    fill_host(env, LOOK, seed);
    let from = Place::Host(env.host_addr(LOOK));
    env.transfer(&[Op::Copy { from, to: Place::Frame(frame) }])
}

/// The bytes that are looked at, of host memory.
fn host_bytes(env: &Env, frame: usize) -> Vec<(u64, u8)> {
    let bytes = |o: u64| (o..).zip(env.host.read(frame, o).to_le_bytes());
    offsets(env).into_iter().flat_map(bytes).collect()
}

/// The bytes that are looked at, of a frame.
fn bytes(env: &Env, frame: Frame) -> Result<Vec<(u64, u8)>, Stop> {
    fill_host(env, LOOK, 77);
    let to = Place::Host(env.host_addr(LOOK));
    env.transfer(&[Op::Copy { from: Place::Frame(frame), to }])?;
    Ok(host_bytes(env, LOOK))
}

/// What the target holds after a copy of `part` from a pattern to a pattern, where that is known.
fn expected(known: &[u64], offset: u64, part: Part, [from_seed, to_seed]: [u64; 2]) -> Option<u8> {
    let byte = |seed, offset: u64| pattern(seed, offset & !7).to_le_bytes()[offset as usize % 8];
    let Some(within) = offset.checked_sub(part.to).filter(|&within| within < part.len) else {
        return Some(byte(to_seed, offset));
    };
    let from = part.from + within;
    known.binary_search(&(from & !7)).ok().map(|_| byte(from_seed, from))
}

fn compare(env: &Env, what: &str, found: &[(u64, u8)], part: Part, seeds: [u64; 2]) -> Check {
    let known = offsets(env);
    for &(offset, byte) in found {
        let Some(wanted) = expected(&known, offset, part, seeds) else { continue };
        let Part { from, to, len } = part;
        must!(
            byte == wanted,
            "{what}, {len} bytes from offset {from} to offset {to}: {byte:#x} at offset \
             {offset}, not {wanted:#x}"
        );
    }
    Ok(())
}

fn part_is_exact(env: &Env) -> Check {
    let frames = env.frames(2)?;
    let (from, to) = (Place::Frame(frames[0]), Place::Frame(frames[1]));
    let (host_from, host_to) = (env.host_addr(FROM), env.host_addr(TO));
    for part in PARTS {
        fill_host(env, FROM, 1);
        fill(env, frames[1], 2)?;
        env.transfer(&[op(Place::Host(host_from), to, part)])?;
        compare(env, "from host memory", &bytes(env, frames[1])?, part, [1, 2])?;

        fill(env, frames[0], 3)?;
        fill_host(env, TO, 4);
        env.transfer(&[op(from, Place::Host(host_to), part)])?;
        compare(env, "to host memory", &host_bytes(env, TO), part, [3, 4])?;

        fill(env, frames[1], 5)?;
        env.transfer(&[op(from, to, part)])?;
        compare(env, "between frames", &bytes(env, frames[1])?, part, [3, 5])?;
        let apart = part.from + part.len <= part.to || part.to + part.len <= part.from;
        if apart {
            env.transfer(&[op(from, from, part)])?;
            compare(env, "within a frame", &bytes(env, frames[0])?, part, [3, 3])?;
        }
    }
    fill(env, frames[0], 6)?;
    let across = part(1, PAGE_SIZE - 30, 29);
    env.transfer(&[op(from, from, across)])?;
    compare(env, "within a frame", &bytes(env, frames[0])?, across, [6, 6])
}

/// The same bytes, counted from an address in the middle of host memory.
fn part_from_any_memory(env: &Env) -> Check {
    let frames = env.frames(1)?;
    for skip in [1, 8, 13] {
        fill_host(env, FROM, 1);
        fill(env, frames[0], 2)?;
        let addr = gmm_core::HostAddr(env.host_addr(FROM).0 + skip);
        let counted = part(2, 9, 10);
        env.transfer(&[op(Place::Host(addr), Place::Frame(frames[0]), counted)])?;
        let real = Part { from: skip + 2, ..counted };
        compare(env, "from host memory", &bytes(env, frames[0])?, real, [1, 2])?;
    }
    Ok(())
}

fn parts_of_one_batch(env: &Env) -> Check {
    let frames = env.frames(1)?;
    let to = Place::Frame(frames[0]);
    fill_host(env, FROM, 1);
    fill(env, frames[0], 2)?;
    let from = Place::Host(env.host_addr(FROM));
    let parts = [part(0, 0, 5), part(6, 5, 8), part(PAGE_SIZE - 9, PAGE_SIZE - 9, 9)];
    env.transfer(&parts.map(|part| op(from, to, part)))?;
    let known = offsets(env);
    for (offset, byte) in bytes(env, frames[0])? {
        let of = parts.iter().find(|p| (p.to..p.to + p.len).contains(&offset));
        let wanted = expected(&known, offset, *of.unwrap_or(&parts[0]), [1, 2]);
        must!(wanted.is_none_or(|w| w == byte), "{byte:#x} at offset {offset}, not {wanted:x?}");
    }
    Ok(())
}
