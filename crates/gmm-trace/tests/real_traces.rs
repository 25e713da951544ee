//! Recordings of real programs, where they can be found.

mod common;

use std::fs;
use std::path::Path;

use common::{Operation, operations, read_bytes, real};
use gmm_trace::{Event, Format, Gaps, Recording, Trace, read_file};

fn load(path: &Path) -> Trace {
    read_file(path, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap()
}

/// Peak live MiB, as a table beside the recordings says, computed by PyTorch's own code.
const PEAK_LIVE_MIB: [(&str, u64); 16] = [
    ("calibration-cache-flush", 4149),
    ("federated-opt-clean-start", 1701),
    ("finetune-expandable", 8064),
    ("finetune-oom", 80169),
    ("lm-fullstep-ctx128", 52263),
    ("lm-fullstep-ctx512", 52326),
    ("lm-small-forward", 981),
    ("lm-train-ctx1024", 23085),
    ("lora-finetune", 5603),
    ("npu-pangu-2.6b", 5470),
    ("octree-nca-small", 5428),
    ("octree-nca-train", 18660),
    ("octree-nca-wide", 15395),
    ("offload-inference", 2297),
    ("offload-inference-10-streams", 19838),
    ("transformer-step", 13278),
];

#[test]
fn event_lists_have_the_peaks_that_are_known_of_them() {
    for path in real("events", "txt") {
        let trace = load(&path);
        assert_eq!(trace.format, Format::EventList);
        let recording = &trace.recordings[0];
        assert_eq!(recording.gaps(), Gaps::default());
        let known = PEAK_LIVE_MIB.iter().find(|(name, _)| *name == stem(&path));
        let Some((name, peak_mib)) = known else { continue };
        assert_eq!(recording.peak_live_bytes() >> 20, *peak_mib, "{name}");
    }
}

#[test]
fn event_lists_are_written_as_they_were_read() {
    for path in real("events", "txt") {
        let trace = load(&path);
        let mut written = Vec::new();
        gmm_trace::write_event_list(&trace.recordings[0], &mut written).unwrap();
        let again = read_bytes(&written).unwrap();
        assert_eq!(operations(&again.recordings[0]), operations(&trace.recordings[0]));
    }
}

/// The event lists that were made from a device of a snapshot: list, snapshot, device.
const SAME_RUN: [(&str, &str, usize); 6] = [
    ("octree-nca-small", "octree-nca-small", 0),
    ("calibration-cache-flush", "calibration-cache-flush", 0),
    ("federated-opt-clean-start", "federated-opt-clean-start", 0),
    ("offload-inference-10-streams", "offload-inference-10-streams", 0),
    ("finetune-expandable", "finetune-3-gpus-expandable-oom", 0),
    ("finetune-oom", "finetune-3-gpus-expandable-oom", 1),
];

#[test]
fn snapshots_hold_what_the_event_lists_of_the_same_runs_say() {
    let (lists, snapshots) = (real("events", "txt"), real("snapshots", "pickle"));
    let mut nr_compared = 0;
    for (list, snapshot, device) in SAME_RUN {
        let Some(list) = lists.iter().find(|path| stem(path) == list) else { continue };
        let Some(path) = snapshots.iter().find(|path| stem(path) == snapshot) else { continue };
        let (list, snapshot) = (load(list), load(path));
        let (list, snapshot) = (&list.recordings[0], &snapshot.recordings[device]);
        let (list, snapshot) = (operations(list), operations_in_list_order(snapshot));
        assert_eq!(list.len(), snapshot.len(), "{}", path.display());
        for (at, (list, snapshot)) in list.iter().zip(&snapshot).enumerate() {
            assert_eq!(list, snapshot, "{} at {at}", path.display());
        }
        nr_compared += 1;
    }
    eprintln!("{nr_compared} of {} runs compared", SAME_RUN.len());
}

/// The operations as whoever made the lists wrote them: of the blocks that were alive at the
/// beginning first those that are freed, in the order of their frees, then the others in address
/// order.
fn operations_in_list_order(recording: &Recording) -> Vec<Operation> {
    let nr_at_start = recording.blocks_at_start().len();
    let mut freed_at = vec![usize::MAX; nr_at_start];
    for (at, event) in recording.events().iter().enumerate() {
        if let Event::FreeCompleted(block) = event
            && let Some(freed_at) = freed_at.get_mut(block.index())
        {
            *freed_at = at;
        }
    }
    let mut order: Vec<usize> = (0..nr_at_start).collect();
    order.sort_by_key(|&index| freed_at[index]);
    let ours = operations(recording);
    let mut theirs: Vec<_> = order.iter().map(|&index| ours[index]).collect();
    theirs.extend(ours[nr_at_start..].iter().map(|operation| match *operation {
        Operation::Free(index) if index < nr_at_start => {
            Operation::Free(order.iter().position(|&at| at == index).unwrap())
        }
        other => other,
    }));
    theirs
}

/// Sums `total_size` of the segments from the outside: with Python, if it is there.
fn python(script: &str, arguments: &[&Path]) -> Option<String> {
    let run = std::process::Command::new("python3").arg("-c").arg(script).args(arguments).output();
    let output = match run {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: what Python reads, since python3 can't be run: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn reserved_memory_at_the_end_is_what_the_segments_hold() {
    const SUM: &str = "
import collections, pickle, sys
held = collections.Counter()
for segment in pickle.load(open(sys.argv[1], 'rb'))['segments']:
    held[segment['device']] += segment['total_size']
print(*(f'{device}:{held[device]}' for device in sorted(held)))";
    for path in real("snapshots", "pickle") {
        let trace = load(&path);
        let held = trace.recordings.iter().map(|recording| {
            format!("{}:{}", recording.device(), recording.reserved_at_end_bytes())
        });
        let held = held.collect::<Vec<_>>().join(" ");
        if let Some(expected) = python(SUM, &[&path]) {
            assert_eq!(held, expected.trim(), "{}", path.display());
        }
    }
}

/// Goes through the events and holds the invariants that `Recording` states.
fn check(recording: &Recording) {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum State {
        Before,
        Alive,
        Requested,
        Freed,
    }
    let nr_at_start = recording.blocks_at_start().len();
    let mut states = vec![State::Before; recording.blocks().len()];
    states[..nr_at_start].fill(State::Alive);
    let mut change = |block: gmm_trace::BlockId, from, to| {
        assert_eq!(states[block.index()], from, "{block:?}");
        states[block.index()] = to;
    };
    for event in recording.events() {
        match *event {
            Event::Allocate(block) => change(block, State::Before, State::Alive),
            Event::FreeRequested(block) => change(block, State::Alive, State::Requested),
            Event::FreeCompleted(block) => change(block, State::Requested, State::Freed),
            _ => {}
        }
    }
    assert!(!states.contains(&State::Before));
    assert!(recording.blocks_at_start().is_sorted_by_key(|block| block.address));
}

#[test]
fn snapshots_fit_together() {
    for path in real("snapshots", "pickle") {
        let trace = load(&path);
        assert_eq!(trace.format, Format::Snapshot);
        for recording in &trace.recordings {
            check(recording);
            let at_start = recording.reserved_at_start_bytes();
            eprintln!(
                "{} device {}: {} events, {} blocks ({} at the start), {} sites, reserved {:?} \
                 at the start and {} at the end, {:?}",
                stem(&path),
                recording.device(),
                recording.events().len(),
                recording.blocks().len(),
                recording.blocks_at_start().len(),
                trace.sites.len(),
                at_start,
                recording.reserved_at_end_bytes(),
                recording.gaps()
            );
            assert_eq!(recording.gaps(), Gaps::default(), "{}", path.display());
            assert!(at_start.is_some(), "{}: fewer than no bytes", path.display());
            if stem(&path) == "federated-opt-clean-start" {
                assert_eq!(at_start, Some(0));
                assert!(recording.blocks_at_start().is_empty());
            }
        }
    }
}

#[test]
fn the_failure_of_a_run_that_ran_out_is_told() {
    for path in real("snapshots", "pickle") {
        if stem(&path) != "finetune-3-gpus-expandable-oom" {
            continue;
        }
        let trace = load(&path);
        let devices: Vec<_> = trace.recordings.iter().map(Recording::device).collect();
        assert_eq!(devices, [0, 1, 2]);
        let failed = trace.recordings[1].out_of_memory();
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].size_bytes, 5_308_694_528);
        assert_eq!(failed[0].device_free_bytes, Some(95_682_560));
        let settings = trace.settings.unwrap();
        assert!(settings.expandable_segments);
        assert_eq!(settings.conf, "expandable_segments:True");
        assert_eq!(settings.max_split_size_bytes, None);
    }
}

#[test]
fn snapshots_are_written_as_python_would_have_read_them() {
    // Notes that a snapshot was taken are left out, as are compile contexts and the settings that
    // change nothing. Empty stacks are written where there was none.
    const COMPARE: &str = "
import pickle, sys
ours, theirs = (pickle.load(open(path, 'rb')) for path in sys.argv[1:])
for trace in theirs['device_traces']:
    trace[:] = [event for event in trace if event['action'] != 'snapshot']
    for event in trace:
        event.pop('compile_context', None)
        event.setdefault('frames', [])
while not theirs['device_traces'][-1]:
    theirs['device_traces'].pop()
by_device = lambda segment: segment['device']
theirs['segments'].sort(key=by_device)
assert ours['segments'] == theirs['segments'], 'segments'
assert ours['device_traces'] == theirs['device_traces'], 'device_traces'
for key, setting in (ours.get('allocator_settings') or {}).items():
    assert setting == theirs['allocator_settings'][key], key
print('same')";
    for path in real("snapshots", "pickle") {
        let trace = load(&path);
        let name = format!("gmm-trace-{}-{}.pickle", std::process::id(), stem(&path));
        let ours = std::env::temp_dir().join(name);
        gmm_trace::write_snapshot(&trace, fs::File::create(&ours).unwrap()).unwrap();
        let said = python(COMPARE, &[&ours, &path]);
        fs::remove_file(&ours).unwrap();
        if let Some(said) = said {
            assert_eq!(said.trim(), "same", "{}", path.display());
        }
    }
}

#[test]
fn a_compressed_snapshot_is_the_same() {
    use std::io::Write;
    let Some(path) = real("snapshots", "pickle").into_iter().next() else { return };
    let plain = fs::read(path).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&plain).unwrap();
    let (packed, plain) = (read_bytes(&encoder.finish().unwrap()), read_bytes(&plain));
    let (packed, plain) = (packed.unwrap(), plain.unwrap());
    let operations: [Vec<Operation>; 2] =
        [packed, plain].map(|trace| operations(&trace.recordings[0]));
    assert_eq!(operations[0], operations[1]);
}
