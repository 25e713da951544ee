//! A small allocation that stays fences the tail while large ones of slowly growing size come and
//! go: the case in which a caching allocator with `max_split_size` keeps one segment for each size.

mod common;

use common::{Device, MIB};
use gmm_alloc::{Allocator, Caching, CachingConfig, PureBackend, Stitching, StreamId};

const STREAM: StreamId = StreamId(0);

#[test]
fn growing_blocks_beside_a_small_one_do_not_grow_what_stitching_reserves() {
    let mut allocator = Stitching::new(Device::new(8192, 0));
    let first = allocator.allocate(100 * MIB, STREAM).unwrap();
    let _fence = allocator.allocate(256, STREAM).unwrap();
    allocator.free(first.block, STREAM).unwrap();
    let mut largest = 0;
    for round in 0..200 {
        largest = (100 + round) * MIB + 512 * round;
        let large = allocator.allocate(largest, STREAM).unwrap();
        allocator.free(large.block, STREAM).unwrap();
        // What the fence cuts off is used in the next round, or as soon as the device is full.
        let stats = allocator.stats();
        assert!(stats.reserved_bytes <= 2 * largest + 4 * MIB, "{stats:?}");
    }
    // On a device that the largest block hardly fits on it runs as well.
    let frames = (largest + 4 * MIB) / (2 * MIB);
    let mut allocator = Stitching::new(Device::new(frames, 0));
    let first = allocator.allocate(100 * MIB, STREAM).unwrap();
    let _fence = allocator.allocate(256, STREAM).unwrap();
    allocator.free(first.block, STREAM).unwrap();
    for round in 0..200 {
        let large = allocator.allocate((100 + round) * MIB + 512 * round, STREAM).unwrap();
        allocator.free(large.block, STREAM).unwrap();
    }
}

/// The documented weakness: each size gets a segment of its own, until the device is full of them.
#[test]
fn growing_blocks_fill_the_device_with_segments_of_the_caching_policy() {
    let peak_mib = |conf: &str| {
        let config: CachingConfig = conf.parse().unwrap();
        let mut allocator = Caching::with_config(PureBackend::new(8192), config);
        let first = allocator.allocate(100 * MIB, STREAM).unwrap();
        let _fence = allocator.allocate(256, STREAM).unwrap();
        allocator.free(first.block, STREAM).unwrap();
        for round in 0..200 {
            let large = allocator.allocate((100 + round) * MIB + 512 * round, STREAM).unwrap();
            allocator.free(large.block, STREAM).unwrap();
        }
        allocator.stats().peak_reserved_bytes / MIB
    };
    let (limited, expandable) =
        (peak_mib("max_split_size_mb:20"), peak_mib("expandable_segments:True"));
    println!("of at most 300 MiB: {limited} MiB held, {expandable} with expandable segments");
    assert!(limited > 16_000, "{limited}");
    assert!(expandable <= 300 + 22, "{expandable}");
}
