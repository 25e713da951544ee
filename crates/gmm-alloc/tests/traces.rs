//! Whole programs: generated ones, and the real ones where they are at hand. The stitching
//! allocator runs them on little more than their peak of live bytes.

mod common;

use common::trace::{Event, Trace, real_traces};
use gmm_alloc::{Allocator, Caching, PureBackend, Stitching, StreamId, smallest_capacity};
use gmm_core::PAGE_SIZE;

fn runs_on(trace: &Trace, capacity_bytes: f64) -> bool {
    let frames = (capacity_bytes / PAGE_SIZE as f64) as u64;
    trace.fits(&mut Stitching::new(PureBackend::new(frames)))
}

/// How many times the peak of live bytes is enough, two frames apart. The NPU's trace is 19,000
/// mostly small tensors.
fn goal(name: &str) -> f64 {
    if name.starts_with("npu-") { 1.01 } else { 1.005 }
}

#[test]
fn stitching_runs_the_real_traces_on_hardly_more_than_their_peak() {
    for trace in real_traces() {
        let peak = trace.peak_live_bytes() as f64;
        let capacity = peak * goal(&trace.name) + 2.0 * PAGE_SIZE as f64;
        assert!(runs_on(&trace, capacity), "{} needs more than {capacity} bytes", trace.name);
    }
}

/// A training loop: activations of several sizes live until they are used in reverse order,
/// weights and small tensors stay; sizes change a little from step to step.
fn training(steps: u64, layers: u64) -> Trace {
    let mut events = Vec::new();
    let mut next = 0;
    let mut allocate = |events: &mut Vec<Event>, size_bytes: u64| {
        next += 1;
        events.push(Event::Allocate { id: next, size_bytes, stream: StreamId(0) });
        next
    };
    for layer in 0..layers {
        allocate(&mut events, (8 << 20) + layer * 1024);
        allocate(&mut events, 4096);
    }
    for step in 0..steps {
        let batch = 16 + step % 5;
        let mut activations = Vec::new();
        for layer in 0..layers {
            let size = batch * ((1 << 20) + layer * 37_120);
            activations.push(allocate(&mut events, size));
            let scratch = allocate(&mut events, 2 * size);
            activations.push(allocate(&mut events, 512 * batch));
            events.push(Event::Free { id: scratch });
        }
        while let Some(id) = activations.pop() {
            let gradient = allocate(&mut events, batch << 20);
            events.push(Event::Free { id });
            events.push(Event::Free { id: gradient });
        }
    }
    Trace { name: format!("training of {layers} layers"), events }
}

/// The smallest capacity in frames on which a trace runs.
fn least(trace: &Trace, make: fn(PureBackend) -> Box<dyn Allocator>) -> u64 {
    let fits = |capacity| trace.fits(&mut *make(PureBackend::new(capacity / PAGE_SIZE)));
    smallest_capacity(trace.peak_live_bytes(), 1 << 40, fits).unwrap() / PAGE_SIZE
}

#[test]
fn stitching_needs_less_for_a_training_loop_than_the_caching_policy() {
    for layers in [3, 12, 40] {
        let trace = training(30, layers);
        let stitching = least(&trace, |backend| Box::new(Stitching::new(backend)));
        let caching = least(&trace, |backend| Box::new(Caching::new(backend)));
        let peak = trace.peak_live_bytes().div_ceil(PAGE_SIZE);
        println!("{}: peak {peak}, stitching {stitching}, caching {caching}", trace.name);
        assert!(stitching <= caching, "{}: {stitching} and {caching} frames", trace.name);
        assert!(stitching <= peak + peak / 20 + 4, "{}: {stitching} for {peak}", trace.name);
    }
}
