//! A page that is held while it is being chosen for eviction is not evicted.
#![cfg(not(shuttle))]

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gmm_core::driver::Access;
use gmm_core::{EvictionPolicy, Hold, NodeId, PageRange, PageState};
use gmm_driver_tests::array::{Call, DeviceOptions};
use gmm_driver_tests::{World, word};

const A1: usize = 1;
const A2: usize = 2;

/// Reclaim takes a list of the coldest pages, and looks at each again under its entry's lock. Here
/// the second is held after the list was made: while reclaim gets a host frame for the first.
#[test]
fn a_page_held_after_it_was_chosen_is_spared() {
    const FRAMES: u32 = 16;
    let world = World::builder(4)
        .xpu(DeviceOptions::xpu("a", FRAMES), 2)
        .config(|c| {
            c.policy = EvictionPolicy::Lru;
            c.evict_batch = 2;
            c.import_batch = 1;
        })
        .build();
    let range = world.mmap(u64::from(FRAMES) + 1);
    let (first, second, last) =
        (range.start, range.start.plus(1), range.start.plus(u64::from(FRAMES)));
    for page in range.pages().take(FRAMES as usize) {
        world.processors[A1].store(word(page, 0), page.0).expect("a store");
    }
    let held: Arc<Mutex<Option<Hold>>> = Arc::default();
    let (space, holder) = (world.space.clone(), world.processors[A2].processor.clone());
    let result = held.clone();
    world.machine.set_hook(Some(Arc::new(move |call| {
        if call != Call::Import {
            return;
        }
        let mut held = result.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return;
        }
        // The first page's entry is locked by this thread; the second's by nobody.
        let (space, holder) = (space.clone(), holder.clone());
        let pages = [PageRange { start: second, nr_pages: 1 }];
        let hold = thread::spawn(move || space.hold(&holder, &pages, Access::Write)).join();
        *held = Some(hold.expect("no panic").expect("the page is resident"));
    })));
    world.processors[A1].store(word(last, 0), last.0).expect("a frame can be had");
    world.machine.set_hook(None);
    let hold = held.lock().unwrap_or_else(PoisonError::into_inner).take();
    assert!(hold.is_some(), "reclaim asked for no host frame");

    let state = |page| world.space.inspect(word(page, 0)).expect("a page").state;
    assert_eq!(state(first), PageState::Exclusive(NodeId::HOST));
    assert_eq!(state(second), PageState::Exclusive(world.node(A1)), "it was held and evicted");
    assert!(world.processors[A2].context.maps(second), "it was held and unmapped");
    assert_eq!(world.space.snapshot().nodes[1].pinned_frames, 1);
    world.assert_sound("held");
    drop(hold);
    assert_eq!(world.space.snapshot().nodes[1].pinned_frames, 0);
    for page in range.pages() {
        assert_eq!(world.processors[A2].load(word(page, 0)), Ok(page.0));
    }
    world.assert_sound("released");
}
