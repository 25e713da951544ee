//! What a program allocates is recorded as an event list, which others' tools and `gmm replay` read.

mod common;

use common::*;
use gmm::alloc::DeviceAllocator;
use gmm::{Error, MIB, PAGE_SIZE};
use gmm_trace::{Event, Format};

#[test]
fn a_run_is_recorded_as_an_event_list() {
    let _turn = turn();
    let gmm = machine(32);
    let before = gmm.mmap::<u8>(3 * PAGE_SIZE as usize).unwrap();
    let path = std::env::temp_dir().join(format!("gmm-recording-{}.txt", std::process::id()));
    let guard = gmm.record_allocations(&path).unwrap();
    assert!(matches!(gmm.record_allocations(&path), Err(Error::RecordingRunning)));

    let xpu = gmm.xpu(1).unwrap();
    let stream = xpu.stream().unwrap();
    let allocator = DeviceAllocator::new(&xpu, 16 * MIB).unwrap();
    let tensor = allocator.allocate(1000, &stream).unwrap();
    let buffer = gmm.mmap::<u64>(1000).unwrap();
    drop(before);
    tensor.free(&stream).unwrap();
    guard.finish().unwrap();
    // Too late to be in it.
    drop(buffer);

    let trace = gmm_trace::read_file(&path, &mut |_| {}).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(trace.format, Format::EventList);
    let recording = &trace.recordings[0];
    let sizes: Vec<_> = recording.blocks().iter().map(|block| block.size_bytes).collect();
    assert_eq!(sizes, [3 * PAGE_SIZE, 1000, 8000]);
    assert_eq!(recording.peak_live_bytes(), 3 * PAGE_SIZE + 9000);
    let is_free = |event: &&Event| matches!(event, Event::FreeCompleted(_));
    assert_eq!(recording.events().iter().filter(is_free).count(), 2);
    // The window of addresses that the allocator works in is no allocation of the program's.
    let of_stream = |stream: u64| recording.blocks().iter().filter(|b| b.stream == stream).count();
    assert_eq!(of_stream(0), 2);
}
