//! Files that are cut off, damaged, or made to do harm.

mod common;
mod counting;
mod pickler;
mod program;

use std::io::Write;

use counting::read_within_bound;
use gmm_trace::{Error, Expected, Trace, read};
use pickler::{Object, Shared, Style, dict, int, list, pickle, text};
use program::{Run, Step, snapshot, steps};
use proptest::prelude::*;

const STYLE: Style = Style { protocol: 4, wide: false };

fn read_plain(file: &[u8]) -> Result<Trace, Error> {
    read_within_bound(file, file.len())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A file of each kind.
fn files(steps: &[Step]) -> Vec<Vec<u8>> {
    let object = snapshot(&[Run::new(steps, 50), Run::new(steps, 0)]);
    let mut files: Vec<_> = (2..=5)
        .map(|protocol| pickle(&object, Style { protocol, wide: protocol % 2 == 0 }))
        .collect();
    files.push(b"a 0 4096 7\na 1 512 0\nu 0 9\nf 0\na 0 77 1\nf 1\n# end\n".to_vec());
    files.push(b"id,lower,upper,size\n0,0,5,1024\n1,2,4,10\n2,-5,0,7\n".to_vec());
    files.push(
        b"Thread,Time,Action,Pointer,Size,Stream\n1,15:47:02.841961,allocate,0x1000,1024,0\n\
          1,15:47:03:000001,free,0x1000,1024,0x2\n1,7.5,allocate failure,(nil),99,0\n"
            .to_vec(),
    );
    files
}

/// A way to damage a file: where, as a share of its length, and what to do there.
#[derive(Clone, Debug)]
enum Damage {
    Set(u8),
    Flip(u8),
    Insert(Vec<u8>),
    Remove(usize),
    /// Puts a piece of the file itself there.
    Copy(u16, usize),
    Cut,
}

fn damages() -> impl Strategy<Value = Vec<(u16, Damage)>> {
    let damage = prop_oneof![
        4 => any::<u8>().prop_map(Damage::Set),
        4 => (0u8..8).prop_map(|bit| Damage::Flip(1 << bit)),
        2 => proptest::collection::vec(any::<u8>(), 1..10).prop_map(Damage::Insert),
        2 => (1usize..20).prop_map(Damage::Remove),
        3 => (any::<u16>(), 1usize..300).prop_map(|(from, len)| Damage::Copy(from, len)),
        1 => Just(Damage::Cut),
    ];
    proptest::collection::vec((any::<u16>(), damage), 1..8)
}

fn damage(file: &mut Vec<u8>, damages: &[(u16, Damage)]) {
    for (place, damage) in damages {
        let at = |share: u16| usize::from(share) * file.len() / (1 << 16);
        let place = at(*place);
        if file.is_empty() {
            return;
        }
        match damage {
            Damage::Set(byte) => file[place] = *byte,
            Damage::Flip(bits) => file[place] ^= bits,
            Damage::Insert(bytes) => drop(file.splice(place..place, bytes.iter().copied())),
            Damage::Remove(len) => drop(file.drain(place..(place + len).min(file.len()))),
            Damage::Copy(from, len) => {
                let from = at(*from);
                let piece = file[from..(from + len).min(file.len())].to_vec();
                file.splice(place..place, piece);
            }
            Damage::Cut => file.truncate(place),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_files_are_read_or_refused(steps in steps(), kind in 0usize..7, damages in damages()) {
        let mut file = files(&steps).swap_remove(kind);
        damage(&mut file, &damages);
        let _ = read_plain(&file);
        let packed = gzip(&file);
        let _ = read_within_bound(&packed, file.len());
    }

    #[test]
    fn damaged_compressed_files_are_read_or_refused(steps in steps(), damages in damages()) {
        let file = files(&steps).swap_remove(0);
        let mut packed = gzip(&file);
        damage(&mut packed, &damages);
        // What comes out may be longer than what went in: the free megabyte, at most.
        let _ = read_within_bound(&packed, file.len() + (1 << 20));
    }

    #[test]
    fn no_bytes_are_too_strange(mut file: Vec<u8>, kind in 0usize..4) {
        let beginnings: [&[u8]; 4] = [b"", b"\x80\x04", b"\x1f\x8b\x08\x00", b"a 1 1 1\n"];
        file.splice(0..0, beginnings[kind].iter().copied());
        let _ = read_within_bound(&file, file.len() + (1 << 20));
    }
}

#[test]
fn a_snapshot_cut_off_anywhere_says_so() {
    let steps: Vec<_> = (0..40)
        .map(|at| Step::Allocate { slot: at % 12, size_bytes: at * 512, stream: 0 })
        .collect();
    let file = pickle(&snapshot(&[Run::new(&steps, 0)]), STYLE);
    for len in 2..file.len() {
        match read_plain(&file[..len]) {
            Err(Error::Truncated { offset, .. }) => assert_eq!(offset, len as u64),
            other => panic!("{len}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn lengths_that_a_file_does_not_have_take_no_memory() {
    let lengths: [&[u8]; 6] = [
        b"X\xff\xff\xff\xff",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"B\xff\xff\xff\xff",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    for length in lengths {
        let file = [b"\x80\x05", length, b"abc"].concat();
        let result = read_plain(&file);
        let refused = matches!(result, Err(Error::Truncated { .. } | Error::UnknownOpcode { .. }));
        // After a frame's length come opcodes as everywhere; `a` is one, with nothing to add to.
        let wrong = matches!(result, Err(Error::Pickle { offset: 11, .. }));
        assert!(refused || wrong, "{length:?}: {:?}", result.map(|_| ()));
    }
    let long = read_plain(b"\x80\x02\x8b\xff\xff\xff\x7f");
    assert!(matches!(long, Err(Error::Pickle { offset: 2, .. })));
}

#[test]
fn bombs_of_compression_are_refused() {
    let file = gzip(&vec![b'N'; 64 << 20]);
    let bomb = [&gzip(b"\x80\x04")[..], &file].concat();
    // It grows by a thousand; a hundredth of the way in it is over.
    let result = read_within_bound(&bomb, 8 << 20);
    assert!(matches!(result, Err(Error::Expansion { offset }) if offset < 8 << 20));
    let twice = gzip(&gzip(b"a 1 1 0\n"));
    assert!(matches!(read(&twice[..], &mut |_| {}), Err(Error::UnknownFormat { .. })));
}

fn alloc(more: impl IntoIterator<Item = (&'static str, Shared)>) -> Shared {
    let event = [("action", text("alloc")), ("addr", int(512)), ("size", int(4))];
    dict(event.into_iter().chain([("stream", int(0))]).chain(more))
}

fn with_traces(traces: Shared) -> Vec<u8> {
    pickle(&dict([("segments", list([])), ("device_traces", traces)]), STYLE)
}

fn used_twice(file: &[u8]) -> &'static str {
    match read_plain(file) {
        Err(Error::UsedTwice { object, .. }) => object,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn what_is_repeated_by_reference_is_refused() {
    let trace = list([alloc([])]);
    assert_eq!(used_twice(&with_traces(list(vec![trace; 500]))), "trace");
    let event = alloc([]);
    assert_eq!(used_twice(&with_traces(list([list(vec![event; 500])]))), "event");

    let block = dict([("size", int(512)), ("state", text("inactive"))]);
    let segment = |blocks| {
        let fields = [("address", int(0)), ("total_size", int(512)), ("stream", int(0))];
        dict(fields.into_iter().chain([("blocks", blocks)]))
    };
    let snapshot = |segments| pickle(&dict([("segments", list(segments))]), STYLE);
    let once = segment(list([block.clone()]));
    assert_eq!(used_twice(&snapshot(vec![once; 500])), "segment");
    let blocks = list([block.clone()]);
    let sharing = (0..500).map(|_| segment(blocks.clone())).collect();
    assert_eq!(used_twice(&snapshot(sharing)), "list of blocks");
    let repeating = segment(list(vec![block; 500]));
    assert_eq!(used_twice(&snapshot(vec![repeating])), "block");
}

/// What has nothing in it may be shared, and so may stacks.
#[test]
fn empty_lists_and_stacks_may_be_shared() {
    let empty = list([]);
    let frame = dict([("name", text("f")), ("filename", text("m.py")), ("line", int(1))]);
    let stack = list(vec![frame; 3]);
    let event = || alloc([("frames", stack.clone())]);
    let traces = list([empty.clone(), list([event(), event()]), empty.clone()]);
    let object = dict([("segments", empty), ("device_traces", traces)]);
    let trace = read_plain(&pickle(&object, STYLE)).unwrap();
    assert_eq!(trace.sites.len(), 1);
    assert_eq!(trace.recordings[0].device(), 1);
    // The second is allocated over the first, which so is freed: three events, one of them a gap.
    assert_eq!(trace.recordings[0].gaps().allocated_over, 1);
}

/// Lists that contain themselves: as a stack, a frame, a segment, and each of these as another.
#[test]
fn circles_end() {
    let beginnings: [&[u8]; 3] = [
        // The list of segments is its own segment.
        b"\x80\x02}X\x08\x00\x00\x00segments]q\x00h\x00as.",
        // The snapshot is its own segment.
        b"\x80\x02}q\x00X\x08\x00\x00\x00segments]h\x00as.",
        // The list of traces is its own trace.
        b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]q\x00h\x00au.",
    ];
    for file in beginnings {
        let result = read_plain(file);
        let refused = matches!(result, Err(Error::Field { .. } | Error::UsedTwice { .. }));
        assert!(refused, "{:?}", result.map(|_| ()));
    }
    // A stack that is its own frame.
    let mut file =
        b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]]}(".to_vec();
    file.extend(b"X\x06\x00\x00\x00actionX\x05\x00\x00\x00alloc");
    file.extend(b"X\x06\x00\x00\x00frames]q\x00h\x00auaau.");
    let result = read_plain(&file);
    let expected = Expected::Dictionary;
    assert!(matches!(result, Err(Error::Field { expected: found, .. }) if found == expected));
}

#[test]
fn depth_is_no_danger() {
    let mut file = b"\x80\x02N".to_vec();
    file.extend(vec![0x85; 1 << 20]);
    file.push(b'.');
    assert!(matches!(read_plain(&file), Err(Error::Field { .. })));
}

#[test]
fn fields_that_are_wrong_are_named_with_their_object_and_place() {
    let wrong = |event: Shared| {
        let file = with_traces(list([list([event])]));
        match read_plain(&file) {
            Err(Error::Field { offset, object: "event", field, expected }) => {
                assert_eq!(file[offset as usize], b'}');
                (field, expected)
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    assert_eq!(wrong(dict([("addr", int(0))])), ("action", Expected::Text));
    assert_eq!(wrong(alloc([("addr", text("x"))])), ("addr", Expected::Integer));
    assert_eq!(wrong(alloc([("size", int(-1))])), ("size", Expected::Size));
    assert_eq!(wrong(alloc([("size", int((1i64 << 48) + 1))])), ("size", Expected::Size));
    let truth = Shared::new(Object::Truth(true));
    assert_eq!(wrong(alloc([("stream", truth)])), ("stream", Expected::Integer));
    assert_eq!(wrong(alloc([("frames", int(3))])), ("frames", Expected::List));
    assert_eq!(wrong(alloc([("time_us", text("now"))])), ("time_us", Expected::Integer));
}

#[test]
fn a_first_event_that_is_wrong_is_named() {
    for file in ["a 1 -5 0\n", "# a list\na 1 2\n", "u 1 2 3\n", "f 1 2\n"] {
        let error = read(file.as_bytes(), &mut |_| {}).map(|_| ()).unwrap_err().to_string();
        let line = file.lines().count();
        assert!(error.contains(&format!("line {line}")), "{file:?}: {error}");
    }
}

#[test]
fn what_is_no_recording_is_shown() {
    for file in ["", "\n\n"] {
        assert!(matches!(read(file.as_bytes(), &mut |_| {}), Err(Error::Empty)), "{file:?}");
    }
    for file in ["# nothing\n", "PK\u{3}\u{4}data", "{\"segments\": []}", "hello\n"] {
        match read(file.as_bytes(), &mut |_| {}) {
            Err(Error::UnknownFormat { beginning }) => assert!(file.starts_with(&beginning)),
            other => panic!("{file:?}: {:?}", other.map(|_| ())),
        }
    }
}
