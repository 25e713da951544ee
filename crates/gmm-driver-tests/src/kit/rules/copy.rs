//! Copies and fences.

use std::thread;

use gmm_core::driver::{Op, Place};

use super::Rule;
use crate::kit::env::{Check, Env, HOST_FRAMES, broken, copy, must};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "copy-is-exact",
        statement: "a copy between host memory and a frame moves every word and changes nothing else",
        check: copy_is_exact,
    },
    Rule {
        name: "copy-between-frames",
        statement: "a copy from one frame of the device to another moves every word",
        check: copy_between_frames,
    },
    Rule {
        name: "batch-all-happen",
        statement: "every operation of a batch happens",
        check: batch_all_happen,
    },
    Rule {
        name: "poll-agrees",
        statement: "poll says that a batch is complete once it is, and then its effects are there",
        check: poll_agrees,
    },
    Rule {
        name: "fence-is-final",
        statement: "once wait has returned, the batch writes nothing any more",
        check: fence_is_final,
    },
    Rule {
        name: "batches-by-many-threads",
        statement: "batches submitted by several threads do not disturb one another",
        check: batches_by_many_threads,
    },
];

fn copy_is_exact(env: &Env) -> Check {
    let frames = env.frames(3)?;
    for (seed, &frame) in (1..).zip(&frames) {
        env.fill(frame, seed)?;
    }
    env.fill_host(0, 7);
    env.transfer(&[copy(Place::Host(env.host_addr(0)), Place::Frame(frames[1]))])?;
    env.expect_frame("the frame before the one copied to", frames[0], 1)?;
    env.expect_frame("the frame copied to", frames[1], 7)?;
    env.expect_frame("the frame after the one copied to", frames[2], 3)?;
    let words: Vec<u64> = env.offsets.iter().map(|&o| env.host.read(0, o)).collect();
    env.compare("host memory that was copied from", &words, 7)
}

fn copy_between_frames(env: &Env) -> Check {
    let frames = env.frames(2)?;
    env.fill(frames[0], 1)?;
    env.fill(frames[1], 2)?;
    env.transfer(&[copy(Place::Frame(frames[0]), Place::Frame(frames[1]))])?;
    env.expect_frame("the frame copied to", frames[1], 1)?;
    env.expect_frame("the frame copied from", frames[0], 1)
}

fn batch_all_happen(env: &Env) -> Check {
    let limit = env.device.nodes().first().map_or(0, |n| n.capacity_frames.min(16)) as usize;
    let frames = env.frames(limit)?;
    for &frame in &frames {
        env.fill(frame, 99)?;
    }
    let ops: Vec<Op> = (0..)
        .zip(&frames)
        .map(|(i, &frame)| match i % 3 {
            0 => Op::Zero(frame),
            1 => copy(Place::Host(env.host_addr(i)), Place::Frame(frame)),
            _ => copy(Place::Frame(frame), Place::Host(env.host_addr(i))),
        })
        .collect();
    (0..HOST_FRAMES - 1).for_each(|i| env.fill_host(i, 10 + i as u64));
    env.transfer(&ops)?;
    for (i, &frame) in frames.iter().enumerate() {
        let (what, seed) = match i % 3 {
            0 => ("zeroed", 0),
            1 => ("copied to", 10 + i as u64),
            _ => ("copied from", 99),
        };
        let what = format!("operation {i} of {}, the frame {what}", frames.len());
        env.expect_frame(&what, frame, seed)?;
        if i % 3 == 2 {
            let words: Vec<u64> = env.offsets.iter().map(|&o| env.host.read(i, o)).collect();
            env.compare(&format!("operation {i}, host memory copied to"), &words, 99)?;
        }
    }
    Ok(())
}

fn poll_agrees(env: &Env) -> Check {
    let frames = env.frames(1)?;
    env.fill_host(0, 5);
    let op = copy(Place::Host(env.host_addr(0)), Place::Frame(frames[0]));
    let fence = env.device.submit(&[op]).map_err(broken("submit"))?;
    // Ends by the rule's deadline if poll never agrees.
    while !env.device.poll(fence) {
        thread::yield_now();
    }
    must!(env.device.poll(fence), "poll said that a batch was complete and took it back");
    env.wait(fence)?;
    env.expect_frame("a frame after poll said complete", frames[0], 5)
}

fn fence_is_final(env: &Env) -> Check {
    let frames = env.frames(2)?;
    env.fill(frames[0], 1)?;
    env.fill(frames[1], 2)?;
    env.transfer(&[copy(Place::Frame(frames[0]), Place::Host(env.host_addr(0)))])?;
    let words: Vec<u64> = env.offsets.iter().map(|&o| env.host.read(0, o)).collect();
    env.compare("host memory when wait returned", &words, 1)?;
    env.fill_host(0, 3);
    env.transfer(&[copy(Place::Frame(frames[1]), Place::Host(env.host_addr(1)))])?;
    let words: Vec<u64> = env.offsets.iter().map(|&o| env.host.read(0, o)).collect();
    env.compare("host memory written after its fence completed", &words, 3)
}

fn batches_by_many_threads(env: &Env) -> Check {
    const THREADS: usize = 4;
    let frames = env.frames(THREADS)?;
    let round_trips = |i: usize| -> Check {
        for round in 1..=8 {
            let seed = (i * 100 + round) as u64;
            env.fill_host(i, seed);
            env.transfer(&[copy(Place::Host(env.host_addr(i)), Place::Frame(frames[i]))])?;
            let back = THREADS + i;
            env.transfer(&[copy(Place::Frame(frames[i]), Place::Host(env.host_addr(back)))])?;
            let words: Vec<u64> = env.offsets.iter().map(|&o| env.host.read(back, o)).collect();
            env.compare(&format!("thread {i}, round {round}"), &words, seed)?;
        }
        Ok(())
    };
    thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS).map(|i| s.spawn(move || round_trips(i))).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })
}
