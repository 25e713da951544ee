//! What each setting of the caching allocator changes.

mod common;

use common::MIB;
use gmm_alloc::{Allocation, Allocator, Caching, CachingConfig, PureBackend, StreamId};

const STREAM: StreamId = StreamId(0);

fn allocator(conf: &str, capacity_mib: u64) -> Caching<PureBackend> {
    let config: CachingConfig = conf.parse().unwrap();
    Caching::with_config(PureBackend::new(capacity_mib / 2), config)
}

fn allocate(allocator: &mut Caching<PureBackend>, mib: u64) -> Allocation {
    allocator.allocate(mib * MIB, STREAM).unwrap()
}

fn reserved_mib(allocator: &Caching<PureBackend>) -> u64 {
    allocator.stats().reserved_bytes / MIB
}

#[test]
fn blocks_of_the_size_limit_are_neither_split_nor_given_to_smaller_requests() {
    let mut limited = allocator("max_split_size_mb:40", 1024);
    let large = allocate(&mut limited, 60);
    limited.free(large.block, STREAM).unwrap();
    let small = allocate(&mut limited, 12);
    assert_ne!(small.addr, large.addr);
    assert_eq!(reserved_mib(&limited), 72);
    // One that is smaller by 20 MiB or more does not get it either; another gets all of it.
    let other = allocate(&mut limited, 40);
    assert_ne!(other.addr, large.addr);
    let fitting = allocate(&mut limited, 42);
    assert_eq!((fitting.addr, fitting.usable_bytes), (large.addr, 60 * MIB));
    assert_eq!(reserved_mib(&limited), 112);

    let mut unlimited = allocator("", 1024);
    let large = allocate(&mut unlimited, 60);
    unlimited.free(large.block, STREAM).unwrap();
    assert_eq!(allocate(&mut unlimited, 12).addr, large.addr);
    assert_eq!(allocate(&mut unlimited, 42).usable_bytes, 42 * MIB);
    assert_eq!(reserved_mib(&unlimited), 60);
}

#[test]
fn how_much_larger_an_unsplit_block_may_be_can_be_set() {
    let mut limited = allocator("max_split_size_mb:40,max_non_split_rounding_mb:30", 1024);
    let large = allocate(&mut limited, 70);
    limited.free(large.block, STREAM).unwrap();
    assert_ne!(allocate(&mut limited, 40).addr, large.addr);
    assert_eq!(allocate(&mut limited, 42).addr, large.addr);
}

#[test]
fn when_memory_runs_out_unsplit_blocks_go_first() {
    let mut limited = allocator("max_split_size_mb:40", 200);
    let [large, kept] = [60, 30].map(|mib| allocate(&mut limited, mib));
    limited.free(large.block, STREAM).unwrap();
    limited.free(kept.block, STREAM).unwrap();
    let middle = allocate(&mut limited, 100);
    assert_eq!(reserved_mib(&limited), 190);
    // Larger by less than 20: it serves the request.
    allocate(&mut limited, 41);
    assert_eq!(reserved_mib(&limited), 190);
    // The one of 100 goes for one of 80; the cached 30 stay.
    limited.free(middle.block, STREAM).unwrap();
    allocate(&mut limited, 79);
    assert_eq!(reserved_mib(&limited), 170);
    assert_eq!(allocate(&mut limited, 30).addr, kept.addr);
}

#[test]
fn garbage_is_what_has_been_idle_for_longer_than_the_mean() {
    let mut collecting = allocator("garbage_collection_threshold:0.5", 400);
    let old = allocate(&mut collecting, 60);
    collecting.free(old.block, STREAM).unwrap();
    let live = allocate(&mut collecting, 100);
    let young = allocate(&mut collecting, 80);
    collecting.free(young.block, STREAM).unwrap();
    // 240 are held, 200 are the threshold: 60 are the oldest and enough.
    allocate(&mut collecting, 90);
    assert_eq!(reserved_mib(&collecting), 270);
    assert_eq!(allocate(&mut collecting, 80).addr, young.addr);
    collecting.free(live.block, STREAM).unwrap();

    let mut keeping = allocator("", 400);
    let [old, _live, young] = [60, 100, 80].map(|mib| allocate(&mut keeping, mib));
    keeping.free(old.block, STREAM).unwrap();
    keeping.free(young.block, STREAM).unwrap();
    allocate(&mut keeping, 90);
    assert_eq!(reserved_mib(&keeping), 330);
}

#[test]
fn requests_are_rounded_up_to_divisions() {
    let mut rounding = allocator("roundup_power2_divisions:[32:2,64:4]", 1024);
    assert_eq!(allocate(&mut rounding, 33).usable_bytes, 48 * MIB);
    assert_eq!(allocate(&mut rounding, 65).usable_bytes, 80 * MIB);
    assert_eq!(allocate(&mut rounding, 130).usable_bytes, 130 * MIB);
}

#[test]
fn what_another_stream_uses_is_free_when_its_work_has_ended() {
    let other = StreamId(7);
    for (lag, is_reused) in [(0, true), (u64::MAX, false)] {
        let mut caching = Caching::new(PureBackend::new(64).with_lag(lag));
        let first = caching.allocate(12 * MIB, STREAM).unwrap();
        caching.record_use(first.block, other).unwrap();
        caching.free(first.block, STREAM).unwrap();
        let second = caching.allocate(12 * MIB, STREAM).unwrap();
        assert_eq!(second.addr == first.addr, is_reused);
        // When memory runs out the allocator waits for it.
        caching.free(second.block, STREAM).unwrap();
        assert!(caching.allocate(128 * MIB, STREAM).is_ok());
    }
}

/// Work of one stream that does not end holds up nothing that other streams used.
#[test]
fn streams_are_waited_for_one_by_one() {
    let mut caching = Caching::new(PureBackend::new(512).with_lag(3));
    let [first, second] = [12, 12].map(|mib| caching.allocate(mib * MIB, STREAM).unwrap());
    // The first waits for two streams, one of which has only just been given its work.
    caching.record_use(first.block, StreamId(1)).unwrap();
    caching.record_use(first.block, StreamId(2)).unwrap();
    caching.record_use(second.block, StreamId(1)).unwrap();
    caching.free(second.block, STREAM).unwrap();
    caching.free(first.block, STREAM).unwrap();
    let third = caching.allocate(12 * MIB, STREAM).unwrap();
    assert!(third.addr != first.addr && third.addr != second.addr, "nothing has ended");
    caching.record_use(third.block, StreamId(3)).unwrap();
    caching.free(third.block, STREAM).unwrap();
    // The second's work has ended now, three pieces of work later.
    assert_eq!(caching.allocate(12 * MIB, STREAM).unwrap().addr, second.addr);
}
