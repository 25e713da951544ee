//! However a file is made, reading it takes no more memory than is promised for its size.

mod common;
mod counting;
mod pickler;

use common::real;
use counting::{peak, read_within_bound};
use gmm_trace::{Error, read};

/// The length of the files, in bytes, about: enough that buffers do not count.
const LEN: usize = 4 << 20;

/// How many events or rows, where tables have just grown: vectors double when a power of two is
/// full, hash maps at seven eighths of one.
const COUNTS: [usize; 4] = [(1 << 17) + 1, (7 << 14) + 1, (1 << 16) + 1, (7 << 15) + 1];

/// Reads, holds the bound, and tells how close it came.
fn measure(name: &str, file: &[u8]) -> Result<(), Error> {
    let (peak, result) = peak(|| read_within_bound(file, file.len()).map(drop));
    eprintln!(
        "{name}: {:.1} bytes a byte, {}",
        peak as f64 / file.len() as f64,
        match &result {
            Ok(()) => "read".to_owned(),
            Err(error) => error.to_string(),
        }
    );
    result
}

/// A pickle of `beginning` and then `repeated`, up to the length.
fn repeat(beginning: &[u8], repeated: &[u8]) -> Vec<u8> {
    let mut file = [b"\x80\x04", beginning].concat();
    while file.len() < LEN {
        file.extend(repeated);
    }
    file.push(b'.');
    file
}

#[test]
fn opcodes_that_make_much_of_little() {
    let cases: [(&str, &[u8], &[u8]); 19] = [
        ("None", b"", b"N"),
        ("marks", b"", b"("),
        ("lists", b"", b"]"),
        ("dictionaries", b"", b"}"),
        ("sets", b"", b"\x8f"),
        ("tuples within each other", b"N", b"\x85"),
        ("lists within each other", b"]q\x00", b"]h\x00aq\x00"),
        ("a list in itself", b"]q\x00", b"h\x00a"),
        ("two lists that grow in turn", b"]q\x00]q\x01", b"h\x00Na0h\x01Na0"),
        ("one-item lists", b"", b"]Na"),
        ("one-entry dictionaries", b"", b"}NNs"),
        ("put aside", b"N", b"\x94"),
        ("lists, put aside", b"", b"]\x94"),
        ("doubled", b"N", b"2"),
        ("empty texts", b"", b"\x8c\x00"),
        ("empty texts, put aside", b"", b"\x8c\x00\x94"),
        ("floats", b"", b"G\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("integers", b"", b"\x8a\x05\x00\x00\x00\x00\x01"),
        ("tuples", b"", b"(NN\x86"),
    ];
    for (name, beginning, repeated) in cases {
        let _ = measure(name, &repeat(beginning, repeated));
    }
}

#[test]
fn things_put_aside_under_scattered_numbers() {
    let mut file = b"\x80\x02N".to_vec();
    for number in 0..LEN as u32 / 5 {
        file.push(b'r');
        file.extend((u32::MAX - number * 3).to_le_bytes());
    }
    assert!(measure("put aside, scattered", &file).is_err());
}

/// The texts and numbers that snapshots need, put aside under these numbers.
const WORDS: [&str; 15] = [
    "action",
    "alloc",
    "addr",
    "size",
    "stream",
    "segments",
    "device_traces",
    "frames",
    "name",
    "filename",
    "line",
    "address",
    "total_size",
    "blocks",
    "state",
];
const ZERO: u8 = 15;
const FREED: u8 = 16;
const INACTIVE: u8 = 17;
const ACTIVE: u8 = 18;
const ONE: u8 = 19;

fn words() -> Vec<u8> {
    let mut file = b"\x80\x04".to_vec();
    for (at, word) in WORDS.iter().enumerate() {
        file.extend([0x8c, word.len() as u8]);
        file.extend(word.as_bytes());
        file.extend([b'q', at as u8, b'0']);
    }
    file.extend([b'K', 0, b'q', ZERO, b'0']);
    file.extend(b"\x8c\x0efree_completedq");
    file.extend([FREED, b'0']);
    file.extend(b"\x8c\x08inactiveq");
    file.extend([INACTIVE, b'0']);
    file.extend(b"\x8c\x10active_allocatedq");
    file.extend([ACTIVE, b'0']);
    file.extend([b'K', 1, b'q', ONE, b'0']);
    file
}

fn word(word: &str) -> [u8; 2] {
    [b'h', WORDS.iter().position(|other| *other == word).unwrap() as u8]
}

fn number(number: usize) -> [u8; 5] {
    let bytes = (number as u32 >> 1).to_le_bytes();
    [b'J', bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// Measures snapshots whose one device has the events that `event` writes.
fn measure_events(name: &str, event: impl Fn(usize) -> Vec<u8>) {
    for count in COUNTS {
        measure(name, &snapshot_of(count, &event)).unwrap();
    }
}

fn snapshot_of(count: usize, event: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut file = words();
    file.extend(b"}(");
    file.extend(word("segments"));
    file.extend(b"]");
    file.extend(word("device_traces"));
    file.extend(b"](](");
    for at in 0..count {
        file.extend(event(at));
    }
    file.extend(b"eeu.");
    file
}

fn event(action: [u8; 2], address: usize, more: &[u8]) -> Vec<u8> {
    let mut event = b"}(".to_vec();
    for (key, value) in [("action", &action[..]), ("addr", &number(address * 2))] {
        event.extend(word(key));
        event.extend(value);
    }
    for key in ["size", "stream"] {
        event.extend(word(key));
        event.extend([b'h', ZERO]);
    }
    event.extend(more);
    event.push(b'u');
    event
}

#[test]
fn snapshots_of_the_shortest_events() {
    let alloc = |at| event(word("alloc"), at, b"");
    measure_events("allocations", alloc);
    let freed = |at: usize| event([b'h', FREED], at, b"");
    measure_events("frees", freed);
    let again = |_| event(word("alloc"), 1, b"");
    measure_events("allocations over each other", again);
    // Each has a stack of its own, of one frame of its own.
    let with_frames = |at| {
        let mut frames = word("frames").to_vec();
        frames.extend(b"]}(");
        for (key, value) in [("name", &word("name")[..]), ("filename", &word("name"))] {
            frames.extend(word(key));
            frames.extend(value);
        }
        frames.extend(word("line"));
        frames.extend(number(at * 2));
        frames.extend(b"ua");
        event(word("alloc"), at, &frames)
    };
    measure_events("allocations with stacks", with_frames);
}

#[test]
fn snapshots_of_the_shortest_segments() {
    let mut file = words();
    file.extend(b"}");
    file.extend(word("segments"));
    file.extend(b"](");
    let mut at = 0;
    while file.len() < LEN {
        at += 1;
        file.extend(b"}(");
        for key in ["address", "total_size", "stream"] {
            file.extend(word(key));
            file.extend([b'h', ZERO]);
        }
        file.extend(word("blocks"));
        file.extend(b"]");
        // Now and then one with blocks.
        if at % 4 == 0 {
            file.extend(b"(");
            for _ in 0..at % 3 {
                file.extend(b"}(");
                for (key, value) in [("size", ZERO), ("state", INACTIVE)] {
                    file.extend(word(key));
                    file.extend([b'h', value]);
                }
                file.extend(b"u");
            }
            file.extend(b"e");
        }
        file.extend(b"u");
    }
    file.extend(b"es.");
    measure("segments", &file).unwrap();
}

/// A stack of one frame many times, and one that lies in many places.
#[test]
fn snapshots_of_shared_frames() {
    for count in COUNTS {
        let mut frames = word("frames").to_vec();
        frames.extend(b"](}(");
        for (key, value) in [("name", word("name")), ("filename", word("name"))] {
            frames.extend(word(key));
            frames.extend(value);
        }
        frames.extend(word("line"));
        frames.extend([b'h', ZERO, b'u', b'q', 20]);
        frames.extend([b'h', 20].repeat(count));
        frames.extend(b"e");
        let one = snapshot_of(1, |at| event(word("alloc"), at, &frames));
        measure("a long stack", &one).unwrap();
    }
}

/// Blocks without addresses lie behind each other: each was alive at the beginning.
#[test]
fn snapshots_of_the_shortest_blocks() {
    for count in COUNTS {
        let mut file = words();
        file.extend(b"}");
        file.extend(word("segments"));
        file.extend(b"]}(");
        for key in ["address", "total_size", "stream"] {
            file.extend(word(key));
            file.extend([b'h', ZERO]);
        }
        file.extend(word("blocks"));
        file.extend(b"](");
        for _ in 0..count {
            file.extend(b"}(");
            for (key, value) in [("size", ONE), ("state", ACTIVE)] {
                file.extend(word(key));
                file.extend([b'h', value]);
            }
            file.extend(b"u");
        }
        file.extend(b"euas.");
        measure("blocks", &file).unwrap();
    }
}

#[test]
fn texts_of_the_shortest_lines() {
    let measure_lines = |name: &str, header: &str, line: &dyn Fn(usize) -> String| {
        for count in COUNTS {
            let lines: String = (0..count).map(line).collect();
            measure(name, format!("{header}{lines}").as_bytes()).unwrap();
        }
    };
    measure_lines("event list: allocations", "", &|at| format!("a {at} 1 0\n"));
    measure_lines("event list: in turn", "", &|_| "a 1 1 0\nf 1\n".to_owned());
    measure_lines("event list: uses", "a 1 1 0\n", &|_| "u 1 0\n".to_owned());
    measure_lines("intervals", "id,lower,upper,size\n", &|_| ",0,1,1\n".to_owned());
    measure_lines("intervals, apart", "id,lower,upper,size\n", &|at| {
        format!(",{at},{},1\n", at + 1)
    });
    let header = "Time,Action,Pointer,Size,Stream\n";
    measure_lines("log", header, &|at| format!("0,allocate,{at},1,0\n"));
    measure_lines("log: frees", header, &|at| format!("0,free,{at},1,0\n"));
    assert!(measure("empty lines", &vec![b'\n'; LEN]).is_err());
    assert!(measure("one line", &[b"a 1 1 0\n", &vec![b'7'; LEN][..]].concat()).is_err());
}

/// The bound is about files that are made to reach it. Real ones stay well below.
#[test]
fn real_snapshots_take_less() {
    for path in real("snapshots", "pickle") {
        let file = std::fs::read(&path).unwrap();
        measure(&path.display().to_string(), &file).unwrap();
        let (peak, _) = peak(|| read(&file[..], &mut |_| {}));
        let bytes_a_byte = peak as f64 / file.len() as f64;
        assert!(bytes_a_byte < 6.0, "{}: {bytes_a_byte}", path.display());
    }
}
