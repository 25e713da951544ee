//! Contexts come and go, thousands of times, and leave nothing: no frame, no processor, no
//! reservation, nobody in the way of those who stay. `GMM_SOAK_CYCLES` says how many.
#![cfg(not(shuttle))]

use gmm_core::driver::Mmu;
use gmm_core::{MAX_PROCESSORS, NodeId, ProcessorSet};
use gmm_driver_tests::array::DeviceOptions;
use gmm_driver_tests::{World, word};
use std::sync::Arc;

#[test]
fn contexts_attach_use_memory_and_leave() {
    let world = World::builder(12)
        .xpu(DeviceOptions::xpu("a", 3), 1)
        .xpu(DeviceOptions::xpu("b", 3), 0)
        .build();
    let range = world.mmap(5);
    let nodes = [NodeId(1), NodeId(2)];
    let asked = std::env::var("GMM_SOAK_CYCLES").ok();
    // A machine of arrays remembers each: ten thousand take a minute.
    let cycles = asked.map_or(1_500, |n| n.parse().expect("GMM_SOAK_CYCLES is a number"));
    for n in 0..cycles {
        let at = (n % 2) as usize;
        let context = world.xpus[at].context(0);
        let mmu = context.clone() as Arc<dyn Mmu>;
        let attached = world.space.attach(nodes[at], mmu).expect("others have left");
        assert!(attached.refused.is_empty());
        assert!(usize::from(attached.processor.id().0) < MAX_PROCESSORS);
        let (space, processor) = (world.space.clone(), attached.processor.clone());
        context.serve(Some(Arc::new(move |addr, access| space.fault(&processor, addr, access))));
        let addr = word(range.start.plus(n % 5), 0);
        assert_eq!(context.add(addr, 1), Ok(n / 5));
        // Some die before they are detached, and some say goodbye twice.
        if n % 3 == 0 {
            context.kill();
        }
        context.serve(None);
        world.space.detach(&attached.processor);
        if n % 7 == 0 {
            world.space.detach(&attached.processor);
        }
        let info = world.space.inspect(addr).expect("a page");
        assert_eq!(info.mapped, ProcessorSet::EMPTY, "after {n} contexts");
        if n % 100 == 0 {
            world.assert_sound(("after contexts", n));
        }
    }
    for page in 0..5 {
        let addr = word(range.start.plus(page), 0);
        let wanted = (0..cycles).filter(|n| n % 5 == page).count() as u64;
        assert_eq!(world.processors[1].load(addr), Ok(wanted), "page {page}");
    }
    world.assert_sound("after all");
    world.space.munmap(range.start.start(), range.len_bytes()).expect("nobody holds it");
    for node in world.space.snapshot().nodes {
        assert_eq!((node.resident_frames, node.in_transit_frames), (0, 0), "{node:?}");
    }
}
