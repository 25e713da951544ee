//! Nodes and frames.

use std::collections::BTreeSet;

use gmm_core::driver::{Capabilities, Extent};

use super::Rule;
use crate::kit::env::{Check, Env, must, skip};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "device-describes-itself",
        statement: "name, capabilities and nodes are sensible and do not change",
        check: device_describes_itself,
    },
    Rule {
        name: "import-within-request",
        statement: "import hands over at most as many frames as asked for, numbered below the capacity",
        check: import_within_request,
    },
    Rule {
        name: "import-no-frame-twice",
        statement: "import never hands over a frame that the core holds",
        check: import_no_frame_twice,
    },
    Rule {
        name: "released-frames-come-back",
        statement: "frames that were released can be imported again",
        check: released_frames_come_back,
    },
    Rule {
        name: "zero-zeroes",
        statement: "zero makes every word of the frame zero",
        check: zero_zeroes,
    },
];

/// Enough to see imports of several batches, few enough for a device with real memory.
const MANY: usize = 48;

fn device_describes_itself(env: &Env) -> Check {
    let device = &env.device;
    must!(!device.name().is_empty(), "the device has no name");
    must!(device.capabilities() == device.capabilities(), "the capabilities change");
    must!(device.nodes() == device.nodes(), "the nodes change");
    let own = env.has(Capabilities::OWN_MEMORY);
    let nr_nodes = device.nodes().len();
    must!(own == (nr_nodes > 0), "OWN_MEMORY is {own} and there are {nr_nodes} nodes");
    for (i, node) in device.nodes().iter().enumerate() {
        must!(node.capacity_frames > 0, "node {i} has no frames");
    }
    let peer = env.has(Capabilities::PEER_COPY);
    must!(!peer || device.fabric().is_some(), "PEER_COPY is declared and there is no fabric");
    Ok(())
}

fn import_within_request(env: &Env) -> Check {
    let capacity = match env.device.nodes().first() {
        Some(node) => node.capacity_frames,
        None => return Err(skip("the device has no memory of its own")),
    };
    let mut total = 0;
    for wanted in [1, 3, 16, 2, 16] {
        let got = env.import_once(wanted)?;
        must!(got.len() <= wanted as usize, "{} frames came for {wanted} asked", got.len());
        for frame in &got {
            must!(frame.nr.0 < capacity, "{frame:?} came from a node of {capacity} frames");
        }
        total += got.len();
    }
    must!(total > 0, "no frame came in five requests to a fresh device");
    Ok(())
}

fn import_no_frame_twice(env: &Env) -> Check {
    let mut held = BTreeSet::new();
    for frame in env.import_up_to(MANY)? {
        must!(held.insert(frame.nr), "frame {} was handed over twice", frame.nr.0);
    }
    Ok(())
}

fn released_frames_come_back(env: &Env) -> Check {
    let first = env.import_up_to(MANY)?;
    for round in 1..=3 {
        let extents: Vec<Extent> =
            first.iter().map(|f| Extent { start: f.nr, nr_frames: 1 }).collect();
        extents.chunks(16).for_each(|chunk| env.device.release(env.first, chunk));
        let again = env.import_up_to(first.len())?;
        let (n, m) = (first.len(), again.len());
        must!(m == n, "{n} frames were released and {m} came back, in round {round}");
    }
    Ok(())
}

fn zero_zeroes(env: &Env) -> Check {
    let frames = env.frames(2)?;
    for &frame in &frames {
        env.fill(frame, 1)?;
    }
    env.transfer(&[gmm_core::driver::Op::Zero(frames[0])])?;
    env.expect_frame("a frame that was zeroed", frames[0], 0)?;
    env.expect_frame("the frame beside one that was zeroed", frames[1], 1)
}
