//! Random programs, pickled as PyTorch would, read, written and read again.

mod common;
mod pickler;
mod program;

use common::{Operation, operations, read_bytes};
use gmm_trace::{Event, Gaps, Trace, write_event_list, write_snapshot};
use pickler::{Style, pickle};
use program::{Run, snapshot, steps};
use proptest::prelude::*;

fn style() -> impl Strategy<Value = Style> {
    (2u8..=5, any::<bool>()).prop_map(|(protocol, wide)| Style { protocol, wide })
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let run = (steps(), any::<u8>()).prop_map(|(steps, lost)| Run::new(&steps, lost));
    proptest::collection::vec(run, 1..4)
}

/// The devices that anything is known of.
fn known(runs: &[Run]) -> Vec<(u32, &Run)> {
    let known = |run: &Run| {
        let mut events = run.events[run.lost..].iter();
        events.any(|event| event.action != "snapshot") || run.reserved_bytes().1 > 0
    };
    (0..).zip(runs).filter(|(_, run)| known(run)).collect()
}

proptest! {
    #[test]
    fn a_snapshot_is_read_as_it_was_made(runs in runs(), style in style()) {
        let trace = read_bytes(&pickle(&snapshot(&runs), style)).unwrap();
        let known = known(&runs);
        prop_assert_eq!(trace.recordings.len(), known.len());
        for (recording, (device, run)) in trace.recordings.iter().zip(known) {
            prop_assert_eq!(recording.device(), device);
            prop_assert_eq!(operations(recording), run.operations());
            prop_assert_eq!(recording.gaps(), Gaps::default());
            let (at_start, at_end) = run.reserved_bytes();
            prop_assert_eq!(recording.reserved_at_start_bytes(), Some(at_start));
            prop_assert_eq!(recording.reserved_at_end_bytes(), at_end);
            compare_events(&trace, recording, run)?;
        }
        let settings = trace.settings.unwrap();
        prop_assert_eq!(settings.max_split_size_bytes, Some(128 << 20));
        prop_assert_eq!(settings.garbage_collection_threshold, 0.8);
        prop_assert_eq!(settings.roundup_power2_divisions, [(64, 0), (256, 1), (1024, 4)]);
    }

    #[test]
    fn a_snapshot_is_written_as_it_was_read(runs in runs(), style in style()) {
        let first = read_bytes(&pickle(&snapshot(&runs), style)).unwrap();
        let mut written = Vec::new();
        write_snapshot(&first, &mut written).unwrap();
        let second = read_bytes(&written).unwrap();
        prop_assert_eq!(&second.recordings, &first.recordings);
        prop_assert_eq!(second.settings, first.settings);
        for (first_id, second_id) in first.sites.ids().zip(second.sites.ids()) {
            prop_assert!(first.sites.frames(first_id).eq(second.sites.frames(second_id)));
        }
    }

    #[test]
    fn an_event_list_says_the_same(runs in runs(), style in style()) {
        let trace = read_bytes(&pickle(&snapshot(&runs), style)).unwrap();
        for recording in &trace.recordings {
            let mut list = Vec::new();
            write_event_list(recording, &mut list).unwrap();
            let expected = operations(recording);
            if expected.is_empty() {
                continue;
            }
            let listed = read_bytes(&list).unwrap();
            prop_assert_eq!(operations(&listed.recordings[0]), expected.clone());
            prop_assert_eq!(listed.recordings[0].peak_live_bytes(), recording.peak_live_bytes());
            // And from there, without addresses and segments, as a snapshot again.
            let mut written = Vec::new();
            write_snapshot(&listed, &mut written).unwrap();
            let again = read_bytes(&written).unwrap();
            prop_assert_eq!(operations(&again.recordings[0]), expected);
            prop_assert_eq!(again.recordings[0].gaps(), Gaps::default());
        }
    }
}

/// Goes through the events one by one: kinds, sizes, times and stacks.
fn compare_events(
    trace: &Trace,
    recording: &gmm_trace::Recording,
    run: &Run,
) -> Result<(), TestCaseError> {
    let made = run.events[run.lost..].iter().enumerate();
    let made: Vec<_> = made.filter(|(_, event)| event.action != "snapshot").collect();
    // A free that completes, but was requested before the recording, is requested too.
    let mut requested_before = 0;
    let mut events = recording.events().iter().enumerate().peekable();
    for (time, made) in made {
        let (mut at, mut event) = events.next().unwrap();
        if let ("free_completed", Event::FreeRequested(_)) = (made.action, event) {
            requested_before += 1;
            (at, event) = events.next().unwrap();
        }
        let change = |at: u32| recording.segment_changes()[at as usize];
        let (action, address, size) = match *event {
            Event::Allocate(block) => {
                ("alloc", block_address(recording, block), size(recording, block))
            }
            Event::FreeRequested(block) => {
                ("free_requested", block_address(recording, block), size(recording, block))
            }
            Event::FreeCompleted(block) => {
                ("free_completed", block_address(recording, block), size(recording, block))
            }
            Event::SegmentAlloc(at) => ("segment_alloc", change(at).address, change(at).size_bytes),
            Event::SegmentFree(at) => ("segment_free", change(at).address, change(at).size_bytes),
            Event::OutOfMemory(at) => {
                let failed = recording.out_of_memory()[at as usize];
                ("oom", failed.device_free_bytes.unwrap(), failed.size_bytes)
            }
            ref other => panic!("{other:?}"),
        };
        prop_assert_eq!((action, address, size), (made.action, made.address, made.size_bytes));
        prop_assert_eq!(recording.time_us(at), Some(1_763_324_225_770_003 + time as u64));
        let nr_frames = recording.site(at).map_or(0, |site| trace.sites.frames(site).len());
        prop_assert_eq!(nr_frames, made.site);
    }
    prop_assert!(events.next().is_none());
    prop_assert!(requested_before <= recording.blocks_at_start().len());
    Ok(())
}

fn block_address(recording: &gmm_trace::Recording, block: gmm_trace::BlockId) -> u64 {
    recording.block(block).address
}

fn size(recording: &gmm_trace::Recording, block: gmm_trace::BlockId) -> u64 {
    recording.block(block).size_bytes
}

/// What is no event of a snapshot is in an event list.
#[test]
fn uses_by_other_streams_stay_in_event_lists() {
    let list = b"a 0 4096 7\nu 0 9\nf 0\n";
    let trace = read_bytes(list).unwrap();
    let mut again = Vec::new();
    write_event_list(&trace.recordings[0], &mut again).unwrap();
    assert_eq!(again, list);
    let mut snapshot = Vec::new();
    write_snapshot(&trace, &mut snapshot).unwrap();
    let expected = [Operation::Allocate { size_bytes: 4096, stream: 7 }, Operation::Free(0)];
    assert_eq!(operations(&read_bytes(&snapshot).unwrap().recordings[0]), expected);
}

/// Python reads what we write, and we what it writes, in each protocol.
#[test]
fn python_and_we_read_each_other() {
    const REPICKLE: &str = "
import pickle, sys
snapshot = pickle.load(sys.stdin.buffer)
assert len({id(event['frames']) for event in snapshot['device_traces'][0]}) == 5
sys.stdout.buffer.write(pickle.dumps(snapshot, protocol=int(sys.argv[1])))";
    let mut steps = Vec::new();
    for at in 0..1500 {
        let slot = at * 7 % 12;
        steps.push(program::Step::CompleteFree { slot });
        steps.push(program::Step::Allocate { slot, size_bytes: at * 1000, stream: u64::MAX - 5 });
    }
    let run = Run::new(&steps, 100);
    let ours = read_bytes(&pickle(&snapshot(&[run]), Style { protocol: 4, wide: false })).unwrap();
    let mut file = Vec::new();
    write_snapshot(&ours, &mut file).unwrap();
    for protocol in 2..=5 {
        let Some(theirs) = python(REPICKLE, protocol, &file) else { return };
        assert_eq!(theirs[..2], [0x80, protocol]);
        assert_eq!(read_bytes(&theirs).unwrap().recordings, ours.recordings);
    }
}

fn python(script: &str, protocol: u8, input: &[u8]) -> Option<Vec<u8>> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let run = Command::new("python3")
        .args(["-c", script, &protocol.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match run {
        Ok(child) => child,
        Err(error) => {
            eprintln!("SKIPPED: what Python reads and writes; python3 can't be run: {error}");
            return None;
        }
    };
    // It reads all before it writes, so the pipe needs no thread; dropping it ends the input.
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "python3 says {}", output.status);
    Some(output.stdout)
}
