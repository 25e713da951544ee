//! Pages that a processor maps where they are, on another node: by advice, and back.
#![cfg(not(shuttle))]

use gmm_core::driver::{Access, Capabilities, Protection};
use gmm_core::{Attribute, Error, Frame, NodeId, PAGE_SIZE, PageNr, PageRange, PageState};
use gmm_driver_tests::array::{AccessError, DeviceOptions};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;
const B: usize = 2;
const NODE_A: NodeId = NodeId(1);
const NODE_B: NodeId = NodeId(2);

/// A host whose CPU has a coherent link, an XPU of four frames, and one without a link.
fn world() -> World {
    World::builder(16)
        .host(|host| host.with(Capabilities::COHERENT_LINK))
        .xpu(DeviceOptions::xpu("a", 4), 1)
        .xpu(DeviceOptions::xpu("b", 4), 1)
        .build()
}

fn advise(world: &World, range: PageRange, attribute: Attribute) {
    world.space.set_attribute(range.start.start(), range.len_bytes(), attribute).unwrap();
}

fn accessed_by_host(world: &World, nr_pages: u64) -> PageRange {
    let range = world.mmap(nr_pages);
    advise(world, range, Attribute::AccessedBy(NodeId::HOST, true));
    range
}

fn copies(world: &World, page: PageNr) -> Vec<Frame> {
    world.space.inspect(page.start()).unwrap().copies
}

fn is_on(world: &World, page: PageNr, node: NodeId) -> bool {
    copies(world, page).iter().any(|c| c.node == node)
}

/// Everything leaves the processor's node that can.
fn press(world: &World, who: usize) {
    world.space.evict(world.node(who), 16).unwrap();
}

fn nr_copied(world: &World) -> u64 {
    world.space.snapshot().migrated_bytes.iter().map(|m| m.2 / PAGE_SIZE).sum()
}

#[test]
fn accessed_by_maps_a_page_where_it_is() {
    let world = world();
    let range = accessed_by_host(&world, 1);
    let at = |w| word(range.start, w);
    world.processors[A].store(at(0), 1).unwrap();
    let home = copies(&world, range.start);
    assert_eq!(world.processors[CPU].load(at(0)), Ok(1));
    // Both at once, for writing too, in one frame.
    for round in 2..6 {
        world.processors[CPU].store(at(0), round).unwrap();
        assert_eq!(world.processors[A].load(at(0)), Ok(round));
        world.processors[A].store(at(1), round).unwrap();
        assert_eq!(world.processors[CPU].load(at(1)), Ok(round));
    }
    let info = world.space.inspect(at(0)).unwrap();
    assert_eq!((info.copies, info.state), (home, PageState::Exclusive(NODE_A)));
    assert_eq!((info.mapped.len(), info.writable.len()), (2, 2));
    assert_eq!(nr_copied(&world), 0);
    world.assert_sound("mapped by both");
}

#[test]
fn without_advice_or_link_or_handle_the_page_moves() {
    for (advised, link, handles) in [(false, true, true), (true, false, true), (true, true, false)]
    {
        let link = if link { Capabilities::COHERENT_LINK } else { Capabilities::empty() };
        let a = DeviceOptions { handles, ..DeviceOptions::xpu("a", 4) };
        let world = World::builder(16).host(|host| host.with(link)).xpu(a, 1).build();
        let range = world.mmap(1);
        advise(&world, range, Attribute::AccessedBy(NodeId::HOST, advised));
        world.processors[A].store(word(range.start, 0), 3).unwrap();
        assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(3));
        assert!(!is_on(&world, range.start, NODE_A));
        world.assert_sound((advised, link, handles));
    }
}

/// A page that is first touched by the accessor, or waits in its memory, is not sent away.
#[test]
fn accessed_by_moves_nothing_to_the_other_node() {
    let world = world();
    let range = accessed_by_host(&world, 1);
    world.processors[CPU].store(word(range.start, 0), 3).unwrap();
    assert!(is_on(&world, range.start, NodeId::HOST));
    world.processors[A].store(word(range.start, 0), 4).unwrap();
    press(&world, A);
    assert!(is_on(&world, range.start, NodeId::HOST));
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(4));
    world.assert_sound("at home");
}

/// Of several copies the accessor's own goes: else the next write would move the page back.
#[test]
fn a_shared_page_is_mapped_on_the_other_node() {
    let world = world();
    let range = accessed_by_host(&world, 1);
    let at = word(range.start, 0);
    world.processors[CPU].store(at, 1).unwrap();
    assert_eq!(world.processors[A].load(at), Ok(1));
    assert_eq!(copies(&world, range.start).len(), 2);
    world.processors[CPU].store(at, 2).unwrap();
    assert_eq!(copies(&world, range.start).len(), 1);
    assert!(is_on(&world, range.start, NODE_A));
    assert_eq!(world.processors[A].load(at), Ok(2));
    world.assert_sound("one copy");
}

#[test]
fn an_eviction_clears_remote_mappings() {
    let world = world();
    let range = accessed_by_host(&world, 3);
    for page in range.pages() {
        world.processors[A].store(word(page, 0), page.0).unwrap();
        world.processors[CPU].store(word(page, 1), page.0 + 1).unwrap();
    }
    press(&world, A);
    world.assert_sound("evicted");
    for page in range.pages() {
        assert!(!is_on(&world, page, NODE_A));
        assert_eq!(world.processors[CPU].load(word(page, 0)), Ok(page.0));
        assert_eq!(world.processors[A].load(word(page, 1)), Ok(page.0 + 1));
    }
    world.assert_sound("again");
}

/// Every way in which the frame can go: whoever maps it from afar is cleared first.
#[test]
fn whatever_moves_the_page_clears_remote_mappings() {
    type Step = fn(&World, PageRange);
    let steps: [(&str, Step); 9] = [
        ("a write on b", |w, r| w.processors[B].store(word(r.start, 2), 5).unwrap()),
        ("a read on b", |w, r| assert_eq!(w.processors[B].load(word(r.start, 0)), Ok(1))),
        ("prefetch to b", |w, r| _ = w.space.prefetch(r.start.start(), 1, NODE_B).unwrap()),
        ("prefetch to the host", |w, r| {
            _ = w.space.prefetch(r.start.start(), 1, NodeId::HOST).unwrap();
        }),
        ("a hold by the cpu", |w, r| {
            let cpu = w.cpu().processor.clone();
            drop(w.space.hold(&cpu, &[r], Access::Write).unwrap());
        }),
        ("a pin on b", |w, r| {
            w.space.pin(r.start.start(), 1, NODE_B).unwrap();
            w.space.unpin(r.start.start(), 1, NODE_B).unwrap();
        }),
        ("the end of a", |w, _| w.space.detach(&w.processors[A].processor)),
        ("the death of a", |w, _| {
            w.processors[A].context.kill();
            w.space.detach(&w.processors[A].processor);
        }),
        ("eviction", |w, _| assert!(w.space.evict(NODE_A, 4).unwrap() > 0)),
    ];
    for (name, step) in steps {
        let world = world();
        let range = accessed_by_host(&world, 1);
        let at = |w| word(range.start, w);
        world.processors[A].store(at(0), 1).unwrap();
        world.processors[CPU].store(at(1), 2).unwrap();
        step(&world, range);
        world.assert_sound(name);
        assert_eq!(world.processors[CPU].load(at(0)), Ok(1), "{name}");
        assert_eq!(world.processors[B].load(at(1)), Ok(2), "{name}");
        world.processors[CPU].store(at(0), 9).unwrap();
        assert_eq!(world.processors[B].load(at(0)), Ok(9), "{name}");
        world.assert_sound((name, "and on"));
    }
}

#[test]
fn remote_mappings_end_with_munmap_discard_and_protection() {
    let world = world();
    let range = accessed_by_host(&world, 3);
    for page in range.pages() {
        world.processors[A].store(word(page, 0), 1).unwrap();
        world.processors[CPU].store(word(page, 1), 2).unwrap();
    }
    let page = |n: u64| range.start.plus(n);
    world.space.discard(page(0).start(), PAGE_SIZE).unwrap();
    assert_eq!(world.processors[CPU].load(word(page(0), 1)), Ok(0));
    world.space.protect(page(1).start(), 1, Protection::ReadOnly).unwrap();
    assert_eq!(world.processors[CPU].load(word(page(1), 0)), Ok(1));
    let addr = word(page(1), 0);
    let refused = AccessError::Fault(Error::Protection { addr, access: Access::Write });
    assert_eq!(world.processors[A].store(addr, 9), Err(refused));
    world.space.protect(page(1).start(), 1, Protection::ReadWrite).unwrap();
    world.processors[CPU].store(addr, 4).unwrap();
    assert_eq!(world.processors[A].load(addr), Ok(4));
    assert!(is_on(&world, page(1), NODE_A), "it has not moved");
    world.space.munmap(page(2).start(), 1).unwrap();
    assert!(!world.cpu().context.maps(page(2)));
    world.assert_sound("all three");
}

/// What the application drops of a frame that lies on another node is not lost.
#[test]
fn a_page_mapped_remotely_survives_the_applications_own_discard() {
    let world = world();
    let range = accessed_by_host(&world, 1);
    world.processors[A].store(word(range.start, 0), 1).unwrap();
    world.processors[CPU].store(word(range.start, 1), 2).unwrap();
    world.cpu().context.discard_behind_the_core(range.start);
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(1));
    press(&world, A);
    assert_eq!(world.processors[CPU].load(word(range.start, 1)), Ok(2));
    world.assert_sound("dropped");
}

#[test]
fn a_preferred_node_gets_first_touches_and_evicted_pages() {
    let world = world();
    let range = world.mmap(2);
    advise(&world, range, Attribute::Preferred(Some(NODE_A)));
    for page in range.pages() {
        world.processors[CPU].store(word(page, 0), page.0).unwrap();
        assert!(is_on(&world, page, NODE_A), "first touch");
    }
    assert_eq!(nr_copied(&world), 0);
    press(&world, A);
    assert!(!is_on(&world, range.start, NODE_A));
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(range.start.0));
    assert!(is_on(&world, range.start, NODE_A), "fetched back");
    assert_eq!(copies(&world, range.start).len(), 1);
    // It has no link: it gets the page as usual.
    world.processors[B].store(word(range.start, 0), 5).unwrap();
    assert!(is_on(&world, range.start, NODE_B));
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(5));
    assert!(is_on(&world, range.start, NODE_A), "fetched back from b");
    world.assert_sound("preferred");
}

#[test]
fn a_preferred_node_without_room_is_passed_over() {
    let world = world();
    world.space.set_pin_limit(NODE_A, 4).unwrap();
    let full = world.mmap(4);
    world.space.pin(full.start.start(), full.len_bytes(), NODE_A).unwrap();
    let range = world.mmap(1);
    advise(&world, range, Attribute::Preferred(Some(NODE_A)));
    world.processors[CPU].store(word(range.start, 0), 6).unwrap();
    assert!(is_on(&world, range.start, NodeId::HOST));
    world.space.unpin(full.start.start(), full.len_bytes(), NODE_A).unwrap();
    world.assert_sound("passed over");
}

/// A launch on another node waits neither for remote mappings nor they for it.
#[test]
fn a_page_that_a_launch_holds_is_mapped_remotely_beside_it() {
    let world = world();
    let range = accessed_by_host(&world, 1);
    let a = world.processors[A].processor.clone();
    let hold = world.space.hold(&a, &[range], Access::Write).unwrap();
    world.processors[CPU].store(word(range.start, 0), 8).unwrap();
    assert_eq!(world.processors[A].load(word(range.start, 0)), Ok(8));
    drop(hold);
    world.assert_sound("held");
}

/// Nobody is told that a page with a remote mapping is usable for a hold where it is not.
#[test]
fn a_hold_brings_a_page_that_is_mapped_remotely() {
    let world = world();
    let range = accessed_by_host(&world, 1);
    world.processors[A].store(word(range.start, 0), 8).unwrap();
    world.processors[CPU].store(word(range.start, 0), 9).unwrap();
    let cpu = world.cpu().processor.clone();
    let hold = world.space.hold(&cpu, &[range], Access::Read).unwrap();
    assert!(is_on(&world, range.start, NodeId::HOST));
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(9));
    drop(hold);
    world.assert_sound("held");
}

/// XPUs map each other's frames too, and a device whose host frames stay offers those.
#[test]
fn xpus_with_links_map_each_other_and_a_host_that_stays() {
    let xpu = |name| DeviceOptions::xpu(name, 4).with(Capabilities::COHERENT_LINK);
    let stays = |host: DeviceOptions| {
        host.without(Capabilities::MOVABLE_FRAMES).with(Capabilities::READ_ONLY_MAPPINGS)
    };
    let world = World::builder(16).host(stays).xpu(xpu("a"), 2).xpu(xpu("b"), 1).build();
    let range = world.mmap(2);
    for node in [NODE_A, NODE_B] {
        advise(&world, range, Attribute::AccessedBy(node, true));
    }
    let (first, second) = (range.start, range.start.plus(1));
    world.processors[3].store(word(first, 0), 1).unwrap();
    world.processors[CPU].store(word(second, 0), 1).unwrap();
    for round in 0..3 {
        for who in [1, 2, 3] {
            for page in [first, second] {
                world.processors[who].add(word(page, 0), 1).unwrap();
            }
        }
        assert_eq!(world.processors[1].load(word(first, 0)), Ok(4 + 3 * round));
        assert_eq!(world.processors[CPU].load(word(second, 0)), Ok(4 + 3 * round));
    }
    assert_eq!(world.space.inspect(first.start()).unwrap().mapped.len(), 3);
    assert_eq!(world.space.inspect(second.start()).unwrap().mapped.len(), 4);
    assert_eq!(nr_copied(&world), 0);
    world.assert_sound("links");
}
