//! Programs that allocate and free at random, and the snapshots that PyTorch would take of them.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;

use proptest::prelude::*;

use super::common::Operation;
use super::pickler::{Object, Shared, dict, int, list, text};

/// Each segment has room for one block, and lies at its own place.
const SLOT_BYTES: u64 = 4 << 20;
const NR_SLOTS: u64 = 12;
pub(crate) const NR_SITES: usize = 5;

/// What the program does next with a slot, if that is possible there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Allocate { slot: u64, size_bytes: u64, stream: u64 },
    RequestFree { slot: u64 },
    CompleteFree { slot: u64 },
    ReleaseSegment { slot: u64 },
    RunOut { size_bytes: u64 },
    TakeSnapshot,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..NR_SLOTS;
    // Streams are numbers of pointers, some with the highest bit set.
    let stream = prop_oneof![Just(0), Just(7), Just(94_412_325_376), Just(u64::MAX - 5)];
    let step = prop_oneof![
        6 => (slot.clone(), 0..=SLOT_BYTES, stream).prop_map(|(slot, size_bytes, stream)| {
            Step::Allocate { slot, size_bytes, stream }
        }),
        3 => slot.clone().prop_map(|slot| Step::RequestFree { slot }),
        4 => slot.clone().prop_map(|slot| Step::CompleteFree { slot }),
        2 => slot.prop_map(|slot| Step::ReleaseSegment { slot }),
        1 => any::<u64>().prop_map(|size_bytes| Step::RunOut { size_bytes }),
        1 => Just(Step::TakeSnapshot),
    ];
    proptest::collection::vec(step, 0..120)
}

/// An event as PyTorch records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) action: &'static str,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) stream: u64,
    pub(crate) site: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    size_bytes: u64,
    stream: u64,
    requested: bool,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// The stream of each segment.
    segments: HashMap<u64, u64>,
    /// The block at each address.
    blocks: HashMap<u64, Held>,
}

/// A run on one device: its events, and what was alive before some of them.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) events: Vec<Made>,
    /// How many of the first events the recording has lost.
    pub(crate) lost: usize,
    at_start: State,
    at_end: State,
}

impl Run {
    /// Runs the steps; a share of the events, in 256ths, is lost.
    pub(crate) fn new(steps: &[Step], lost: u8) -> Self {
        let mut events = Vec::new();
        let mut states = vec![State::default()];
        let mut state = State::default();
        for step in steps {
            for event in Self::step(step, &mut state, events.len()) {
                apply(&event, &mut state);
                events.push(event);
                states.push(state.clone());
            }
        }
        let lost = events.len() * usize::from(lost) / 256;
        Self { events, lost, at_start: states[lost].clone(), at_end: state }
    }

    fn step(step: &Step, state: &mut State, nr_events: usize) -> Vec<Made> {
        let make = |action, address, size_bytes, stream| {
            let site = nr_events % NR_SITES;
            Made { action, address, size_bytes, stream, site }
        };
        let address = |slot| (slot + 1) * SLOT_BYTES;
        let held = |slot| state.blocks.get(&address(slot)).copied();
        match *step {
            Step::Allocate { slot, size_bytes, stream } => {
                let at = address(slot);
                match (held(slot), state.segments.get(&at)) {
                    (Some(_), _) => vec![],
                    (None, Some(&stream)) => vec![make("alloc", at, size_bytes, stream)],
                    (None, None) => vec![
                        make("segment_alloc", at, SLOT_BYTES, stream),
                        make("alloc", at, size_bytes, stream),
                    ],
                }
            }
            Step::RequestFree { slot } => match held(slot) {
                Some(held) if !held.requested => {
                    vec![make("free_requested", address(slot), held.size_bytes, held.stream)]
                }
                _ => vec![],
            },
            Step::CompleteFree { slot } => match held(slot) {
                Some(held) => {
                    let event = |action| make(action, address(slot), held.size_bytes, held.stream);
                    let both = [event("free_requested"), event("free_completed")];
                    both[usize::from(held.requested)..].to_vec()
                }
                None => vec![],
            },
            Step::ReleaseSegment { slot } => match state.segments.get(&address(slot)) {
                Some(&stream) if held(slot).is_none() => {
                    vec![make("segment_free", address(slot), SLOT_BYTES, stream)]
                }
                _ => vec![],
            },
            Step::RunOut { size_bytes } => vec![make("oom", 12_345_678, size_bytes, 0)],
            Step::TakeSnapshot => vec![make("snapshot", 0, 4096, 0)],
        }
    }

    /// What was held when the recording began, and when it ended.
    pub(crate) fn reserved_bytes(&self) -> (u64, u64) {
        [&self.at_start, &self.at_end].map(|state| state.segments.len() as u64 * SLOT_BYTES).into()
    }

    /// What a reader should find: what was alive first, in address order, then the events.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        let mut at_start: Vec<_> = self.at_start.blocks.iter().collect();
        at_start.sort_by_key(|(address, _)| **address);
        let allocate = |size_bytes, stream| Operation::Allocate { size_bytes, stream };
        let mut operations = Vec::new();
        let mut numbers = HashMap::new();
        for (address, held) in at_start {
            numbers.insert(*address, numbers.len());
            operations.push(allocate(held.size_bytes, held.stream));
        }
        let mut nr_blocks = numbers.len();
        for event in &self.events[self.lost..] {
            match event.action {
                "alloc" => {
                    numbers.insert(event.address, nr_blocks);
                    nr_blocks += 1;
                    operations.push(allocate(event.size_bytes, event.stream));
                }
                "free_completed" => operations.push(Operation::Free(numbers[&event.address])),
                _ => {}
            }
        }
        operations
    }
}

fn apply(event: &Made, state: &mut State) {
    let Made { address, size_bytes, stream, .. } = *event;
    match event.action {
        "alloc" => {
            state.blocks.insert(address, Held { size_bytes, stream, requested: false });
        }
        "free_requested" => {
            if let Some(held) = state.blocks.get_mut(&address) {
                held.requested = true;
            }
        }
        "free_completed" => {
            state.blocks.remove(&address);
        }
        "segment_alloc" => {
            state.segments.insert(address, stream);
        }
        "segment_free" => {
            state.segments.remove(&address);
        }
        _ => {}
    }
}

/// The stacks of frames of the program, which share frames. The first is empty.
pub(crate) fn sites() -> Vec<Shared> {
    let frames: Vec<_> = (0..NR_SITES)
        .map(|at| {
            dict([
                ("name", text(["forward", "backward"][at % 2])),
                ("filename", text(&format!("src/módulo_{}.py", at / 2))),
                ("line", int(at as u64 * 100)),
            ])
        })
        .collect();
    (0..NR_SITES).map(|len| list(frames[..len].iter().rev().cloned())).collect()
}

/// A stream as PyTorch's Python bindings write it: as a signed number.
fn signed(stream: u64) -> Shared {
    int(stream as i64)
}

/// The snapshot of a program that ran so on each device.
pub(crate) fn snapshot(runs: &[Run]) -> Shared {
    let sites = sites();
    let segments = runs.iter().enumerate().flat_map(|(device, run)| {
        let mut segments: Vec<_> = run.at_end.segments.iter().collect();
        segments.sort();
        let sites = &sites;
        segments.into_iter().map(move |(&address, &stream)| {
            let held = run.at_end.blocks.get(&address).copied();
            segment(device, address, stream, held, sites)
        })
    });
    let traces = runs.iter().map(|run| {
        let events = run.events[run.lost..].iter().enumerate();
        list(events.map(|(at, event)| {
            let address = if event.action == "oom" { "device_free" } else { "addr" };
            dict([
                ("action", text(event.action)),
                (address, int(event.address)),
                ("size", int(event.size_bytes)),
                ("stream", signed(event.stream)),
                ("time_us", int(1_763_324_225_770_003 + at as u64)),
                ("compile_context", text("N/A")),
                ("frames", sites[event.site].clone()),
            ])
        }))
    });
    dict([
        ("segments", list(segments)),
        ("device_traces", list(traces.collect::<Vec<_>>())),
        ("allocator_settings", settings()),
        ("external_annotations", list([])),
    ])
}

fn segment(
    device: usize,
    address: u64,
    stream: u64,
    held: Option<Held>,
    sites: &[Shared],
) -> Shared {
    let state = match held {
        Some(held) if held.requested => "active_awaiting_free",
        Some(_) => "active_allocated",
        None => "inactive",
    };
    let pool = Shared::new(Object::Tuple(vec![int(0), int(0)]));
    dict([
        ("device", int(device as u64)),
        ("address", int(address)),
        ("total_size", int(SLOT_BYTES)),
        ("stream", signed(stream)),
        ("segment_type", text("large")),
        ("segment_pool_id", pool),
        ("is_expandable", Shared::new(Object::Truth(false))),
        ("frames", sites[1].clone()),
        (
            "blocks",
            list([dict([
                ("address", int(address)),
                ("size", int(SLOT_BYTES)),
                ("requested_size", int(held.map_or(0, |held| held.size_bytes))),
                ("state", text(state)),
                ("frames", sites[2].clone()),
            ])]),
        ),
    ])
}

fn settings() -> Shared {
    dict([
        ("PYTORCH_CUDA_ALLOC_CONF", text("max_split_size_mb:128")),
        ("max_split_size", int(128 << 20)),
        ("garbage_collection_threshold", Shared::new(Object::Float(0.8))),
        ("expandable_segments", Shared::new(Object::Truth(false))),
        ("roundup_power2_divisions", dict([("256", int(1)), ("1024", int(4)), ("64", int(0))])),
        ("pinned_num_register_threads", int(1)),
    ])
}
