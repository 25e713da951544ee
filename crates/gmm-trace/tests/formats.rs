//! What each format's lines and objects become.

mod common;
mod pickler;

use common::{Operation, operations, read_bytes};
use gmm_trace::{BlockState, Error, Event, Format, Gaps, Recording, SegmentKind, Trace};
use pickler::{Object, Shared, Style, dict, int, list, pickle, text};

const STYLE: Style = Style { protocol: 4, wide: false };

fn allocate(size_bytes: u64, stream: u64) -> Operation {
    Operation::Allocate { size_bytes, stream }
}

fn one(file: &[u8]) -> Recording {
    let mut trace = read_bytes(file).unwrap();
    assert_eq!(trace.recordings.len(), 1);
    trace.recordings.remove(0)
}

/// The number of the line that is refused, where it begins, and why.
fn refused(file: &str) -> (u64, u64, &'static str) {
    match read_bytes(file.as_bytes()) {
        Err(Error::Line { line, offset, problem }) => (line, offset, problem),
        other => panic!("{file:?}: {:?}", other.map(|_| ())),
    }
}

#[test]
fn an_event_list() {
    let file = "# made by hand\n\n  a 5 4096 7\r\na 18446744073709551615 0 0\nf 5\na 5 1 2\nu 5 9";
    let trace = read_bytes(file.as_bytes()).unwrap();
    assert_eq!(trace.format, Format::EventList);
    let recording = &trace.recordings[0];
    let expected = [allocate(4096, 7), allocate(0, 0), Operation::Free(0), allocate(1, 2)];
    assert_eq!(operations(recording), expected);
    assert!(matches!(recording.events().last(), Some(Event::Use(0))));
    assert_eq!((recording.uses()[0].block.index(), recording.uses()[0].stream), (2, 9));
    assert_eq!(recording.peak_live_bytes(), 4096);
    assert!(!recording.has_addresses());
    assert_eq!(recording.time_us(0), None);
}

#[test]
fn event_lists_that_are_wrong() {
    let wrong = [
        ("a 1 2 3\nf 2\n", (2, 8, "the ID is not alive")),
        ("a 1 2 3\nf 1\nf 1", (3, 12, "the ID is not alive")),
        ("a 1 2 3\na 1 2 3\n", (2, 8, "allocates an ID that is alive")),
        ("a 1 2 3\n\nu 4 5\n", (3, 9, "the ID is not alive")),
        ("a 1 2 3\na 2 2\n", (2, 8, "too few numbers")),
        ("a 1 2 3\nf 1 1\n", (2, 8, "too many numbers")),
        ("a 1 2 3\na 2 -1 0\n", (2, 8, "not a number from 0 to 2^64 - 1")),
        ("a 1 281474976710657 3\n", (1, 0, "a size of more than 2^48 bytes")),
    ];
    for (file, expected) in wrong {
        assert_eq!(refused(file), expected);
    }
    let (line, offset, _) = refused("a 1 2 3\nx 1\n");
    assert_eq!((line, offset), (2, 8));
}

#[test]
fn an_interval_table() {
    let file = "size,id,upper,lower,comment\n100,a,10,0,x\n50,b,20,10,\n7,c,11,-3,\n1,d,10,5,\n";
    let trace = read_bytes(file.as_bytes()).unwrap();
    assert_eq!(trace.format, Format::Intervals);
    let expected = [
        allocate(7, 0),
        allocate(100, 0),
        allocate(1, 0),
        // At 10 two end before one begins.
        Operation::Free(1),
        Operation::Free(2),
        allocate(50, 0),
        Operation::Free(0),
        Operation::Free(3),
    ];
    assert_eq!(operations(&trace.recordings[0]), expected);
    assert_eq!(trace.recordings[0].peak_live_bytes(), 108);
}

#[test]
fn interval_tables_that_are_wrong() {
    let header = "id,lower,upper,size\n";
    for (row, problem) in [
        ("1,5,5,1", "`lower` is not below `upper`"),
        ("1,x,5,1", "`lower` is not an integer"),
        ("1,1,,1", "`upper` is not an integer"),
        ("1,1,5,-1", "`size` is not a size of up to 2^48 bytes"),
        ("1,1,5", "too short"),
    ] {
        assert_eq!(refused(&format!("{header}{row}\n")), (2, 20, problem));
    }
}

#[test]
fn an_rmm_log() {
    let file = "Thread,Time,Action,Pointer,Size,Stream
7,23:59:59.999990,free,0x500,77,0
7,23:59:59.999999,allocate,0x1000,1024,0x2
8,00:00:00.000001,allocate,0x2000,512,0
7,00:00:00:000002,allocate failure,(nil),99999,0x2
7,00:00:00.000003,free,0x1000,1024,0x3
7,00:00:00.000003,allocate_more,0x1000,1024,0x3
7,00:00:00.000004,allocate,0x2000,256,0
";
    let trace = read_bytes(file.as_bytes()).unwrap();
    assert_eq!(trace.format, Format::Rmm);
    let recording = &trace.recordings[0];
    // The first block was there before; one is allocated where one is alive.
    let expected = [
        allocate(77, 0),
        Operation::Free(0),
        allocate(1024, 2),
        allocate(512, 0),
        Operation::Free(1),
        Operation::Free(2),
        allocate(256, 0),
    ];
    assert_eq!(operations(recording), expected);
    let gaps = Gaps { allocated_over: 1, unknown_events: 1, ..Gaps::default() };
    assert_eq!(recording.gaps(), gaps);
    assert_eq!(recording.blocks()[0].address, 0x500);
    // Another stream frees a block: it has used it.
    assert_eq!((recording.uses()[0].block.index(), recording.uses()[0].stream), (1, 3));
    let failed = recording.out_of_memory();
    assert_eq!((failed[0].size_bytes, failed[0].device_free_bytes), (99_999, None));
    let times: Vec<_> = (0..recording.events().len()).map(|at| recording.time_us(at)).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(times[2], Some(86_399_999_999));
    assert_eq!(times[3], Some(86_400_000_001));
}

#[test]
fn rmm_logs_that_are_wrong() {
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    for (row, problem) in [
        ("1,now,free,0x1,1,0", "not a time"),
        ("1,1.0,free,1x,1,0", "not a pointer"),
        ("1,1.0,free,0x1,1,s", "not a stream"),
        ("1,1.0,free,0x1,281474976710657,0", "not a size of up to 2^48 bytes"),
        ("1,1.0,free", "too short"),
    ] {
        assert_eq!(refused(&format!("{header}{row}\n")), (2, 39, problem));
    }
}

/// An event of a snapshot.
fn event(action: &str, addr: u64, size: u64) -> Shared {
    let fields = [("action", text(action)), ("addr", int(addr)), ("size", int(size))];
    dict(fields.into_iter().chain([("stream", int(3))]))
}

fn block(address: u64, size: u64, state: &str) -> Shared {
    let fields = [("address", int(address)), ("size", int(size)), ("state", text(state))];
    dict(fields.into_iter().chain([("requested_size", int(size - 1))]))
}

fn segment(address: u64, size: u64, blocks: impl IntoIterator<Item = Shared>) -> Shared {
    let fields = [("address", int(address)), ("total_size", int(size)), ("stream", int(3))];
    dict(fields.into_iter().chain([("blocks", list(blocks))]))
}

fn snapshot(
    segments: impl IntoIterator<Item = Shared>,
    events: impl IntoIterator<Item = Shared>,
) -> Trace {
    let traces = list([list(events)]);
    let object = dict([("segments", list(segments)), ("device_traces", traces)]);
    read_bytes(&pickle(&object, STYLE)).unwrap()
}

#[test]
fn what_was_alive_before_the_first_event_is_found() {
    let trace = snapshot(
        [segment(
            0x1000,
            0x4000,
            [
                block(0x1000, 0x1000, "active_allocated"),
                block(0x2000, 0x1000, "active_awaiting_free"),
                block(0x3000, 0x1000, "inactive"),
                block(0x4000, 0x1000, "active_allocated"),
            ],
        )],
        [
            event("free_completed", 0x9000, 90),
            event("alloc", 0x4000, 0xfff),
            event("free_requested", 0x8000, 80),
            event("alloc", 0x9000, 91),
            event("free_completed", 0x8000, 80),
            event("free_requested", 0x9000, 91),
            event("free_completed", 0x9000, 91),
        ],
    );
    let recording = &trace.recordings[0];
    let at_start: Vec<_> =
        recording.blocks_at_start().iter().map(|block| (block.address, block.size_bytes)).collect();
    assert_eq!(at_start, [(0x1000, 0xfff), (0x2000, 0xfff), (0x8000, 80), (0x9000, 90)]);
    let expected = [
        allocate(0xfff, 3),
        allocate(0xfff, 3),
        allocate(80, 3),
        allocate(90, 3),
        Operation::Free(3),
        allocate(0xfff, 3),
        allocate(91, 3),
        Operation::Free(2),
        Operation::Free(5),
    ];
    assert_eq!(operations(recording), expected);
    assert_eq!(recording.gaps(), Gaps::default());
}

#[test]
fn what_does_not_fit_together_is_counted() {
    let trace = snapshot(
        [segment(
            0x1000,
            0x2000,
            [block(0x1000, 0x1000, "active_allocated"), block(0x2000, 0x1000, "inactive")],
        )],
        [
            event("alloc", 0x1000, 10),
            event("alloc", 0x1000, 11),
            event("free_completed", 0x1000, 11),
            event("free_completed", 0x1000, 11),
            event("free_requested", 0x1000, 11),
            event("alloc", 0x2000, 12),
            event("something_new", 0x2000, 12),
        ],
    );
    let recording = &trace.recordings[0];
    let gaps = Gaps {
        allocated_over: 1,
        freed_again: 2,
        alive_after_free: 1,
        missing_at_end: 1,
        unknown_events: 1,
    };
    assert_eq!(recording.gaps(), gaps);
    let expected =
        [allocate(10, 3), Operation::Free(0), allocate(11, 3), Operation::Free(1), allocate(12, 3)];
    assert_eq!(operations(recording), expected);
}

#[test]
fn reserved_memory_follows_segments() {
    let events = [
        event("segment_map", 0x1000, 500),
        event("segment_alloc", 0x9000, 70),
        event("segment_unmap", 0x1000, 200),
        event("segment_free", 0x7000, 30),
    ];
    let trace = snapshot([segment(0x1000, 1000, [])], events);
    let recording = &trace.recordings[0];
    assert_eq!(recording.reserved_at_end_bytes(), 1000);
    assert_eq!(recording.reserved_at_start_bytes(), Some(1000 - 500 - 70 + 200 + 30));
    let kinds = [
        Event::SegmentMap(0),
        Event::SegmentAlloc(1),
        Event::SegmentUnmap(2),
        Event::SegmentFree(3),
    ];
    assert_eq!(recording.events(), kinds);
    // More was taken than is there.
    let trace = snapshot([], [event("segment_map", 0x1000, 500)]);
    assert_eq!(trace.recordings[0].reserved_at_start_bytes(), None);
}

/// Older versions write the size that was asked for, and the stack, into a history, and no
/// addresses of blocks; and there is a form that is a list of segments alone.
#[test]
fn segments_of_older_versions() {
    let frame = dict([("name", text("f")), ("filename", text("m.py")), ("line", int(7))]);
    let latest = dict([("addr", int(0x1000)), ("real_size", int(300)), ("frames", list([frame]))]);
    let history = list([latest, dict([("real_size", int(5))])]);
    let state = |state| ("state", text(state));
    let used = dict([("size", int(512)), state("active_allocated"), ("history", history)]);
    let pending = dict([("size", int(1024)), state("active_pending_free")]);
    let blocks = [used, dict([("size", int(512)), state("inactive")]), pending];
    let pool = Shared::new(Object::Tuple(vec![int(0), int(4)]));
    let segment = dict([
        ("device", int(5)),
        ("address", int(0x1000)),
        ("total_size", int(2048)),
        ("stream", int(0)),
        ("segment_type", text("small")),
        ("segment_pool_id", pool),
        ("is_expandable", Shared::new(Object::Truth(true))),
        ("blocks", list(blocks)),
    ]);
    let trace = read_bytes(&pickle(&list([segment]), STYLE)).unwrap();
    let recording = &trace.recordings[0];
    assert_eq!(recording.device(), 5);
    let segment = &recording.segments()[0];
    assert_eq!((segment.kind, segment.pool), (SegmentKind::Small, (0, 4)));
    assert!(segment.is_expandable);
    let found: Vec<_> =
        segment.blocks.iter().map(|b| (b.address, b.requested_bytes, b.state)).collect();
    let expected = [
        (0x1000, 300, BlockState::Active),
        (0x1200, 512, BlockState::Inactive),
        (0x1400, 1024, BlockState::AwaitingFree),
    ];
    assert_eq!(found, expected);
    let site = segment.blocks[0].site.unwrap();
    let frames: Vec<_> = trace.sites.frames(site).map(|f| (f.name, f.file, f.line)).collect();
    assert_eq!(frames, [("f", "m.py", 7)]);
    assert_eq!(recording.blocks_at_start().len(), 2);
}

#[test]
fn settings_in_all_their_forms() {
    let read = |settings| {
        let object = dict([("segments", list([])), ("allocator_settings", settings)]);
        read_bytes(&pickle(&object, STYLE)).unwrap().settings.unwrap()
    };
    assert_eq!(read(dict([])), Default::default());
    for unlimited in [-1, i128::from(i64::MAX), i128::from(u64::MAX)] {
        let settings = read(dict([("max_split_size", int(unlimited))]));
        assert_eq!(settings.max_split_size_bytes, None, "{unlimited}");
    }
    let conf = text("expandable_segments:True");
    let settings =
        read(dict([("PYTORCH_ALLOC_CONF", conf), ("garbage_collection_threshold", int(1))]));
    assert_eq!(settings.conf, "expandable_segments:True");
    assert_eq!(settings.garbage_collection_threshold, 1.0);
}

/// Devices of which nothing is known are left out; the writer keeps the numbers of the others.
#[test]
fn devices_keep_their_numbers() {
    let noted = list([event("snapshot", 0, 1)]);
    let traces = list([list([]), list([event("alloc", 512, 9)]), noted]);
    let object = dict([("segments", list([])), ("device_traces", traces)]);
    let trace = read_bytes(&pickle(&object, STYLE)).unwrap();
    assert_eq!(trace.recordings.len(), 1);
    let mut file = Vec::new();
    gmm_trace::write_snapshot(&trace, &mut file).unwrap();
    let again = one(&file);
    assert_eq!(again.device(), 1);
    assert_eq!(operations(&again), [allocate(9, 3)]);
    assert_eq!(again.reserved_at_end_bytes(), 512);
}

#[test]
fn a_list_that_fits_no_addresses_is_not_written_as_a_snapshot() {
    let mut list = String::new();
    for id in 0..(1 << 16) {
        list.push_str(&format!("a {id} {} 0\nf {id}\n", 1u64 << 48));
    }
    let trace = read_bytes(list.as_bytes()).unwrap();
    let result = gmm_trace::write_snapshot(&trace, Vec::new());
    assert!(matches!(result, Err(Error::NoAddresses { blocks: 65_535 })));
}
