//! What is advised about ranges: read back, split by later advice and by `munmap`, never
//! inherited by whoever maps the addresses next.
#![cfg(not(shuttle))]

use gmm_core::{Attribute, Attributes, Error, NodeId, PAGE_SIZE, PageRange, VirtAddr};
use gmm_driver_tests::World;
use gmm_driver_tests::array::DeviceOptions;

fn world() -> World {
    World::builder(16).xpu(DeviceOptions::xpu("a", 4), 1).build()
}

fn advise(world: &World, range: PageRange, attribute: Attribute) {
    world.space.set_attribute(range.start.start(), range.len_bytes(), attribute).unwrap();
}

fn part(range: PageRange, first: u64, nr_pages: u64) -> PageRange {
    PageRange { start: range.start.plus(first), nr_pages }
}

fn read_mostly(world: &World, range: PageRange) -> Vec<PageRange> {
    let all = world.space.attributes(range).unwrap();
    all.into_iter().filter(|(_, a)| a.read_mostly).map(|(range, _)| range).collect()
}

#[test]
fn what_was_advised_can_be_read_back() {
    let world = world();
    let range = world.mmap(8);
    assert_eq!(world.space.attributes(range), Ok(vec![]));
    advise(&world, part(range, 1, 4), Attribute::ReadMostly(true));
    advise(&world, part(range, 3, 4), Attribute::Preferred(Some(NodeId(1))));
    advise(&world, part(range, 6, 1), Attribute::AccessedBy(NodeId::HOST, true));
    world.space.pin(range.start.plus(7).start(), 1, NodeId(1)).unwrap();
    let told = world.space.attributes(range).unwrap();
    let ranges: Vec<_> =
        told.iter().map(|(r, _)| (r.start.0 - range.start.0, r.nr_pages)).collect();
    assert_eq!(ranges, [(1, 2), (3, 2), (5, 1), (6, 1), (7, 1)]);
    let of = |page: usize| told[page].1;
    assert!(of(0).read_mostly && of(0).preferred.is_none());
    assert!(of(1).read_mostly && of(1).preferred == Some(NodeId(1)));
    assert!(!of(2).read_mostly && of(2).accessed_by.is_empty());
    assert!(of(3).accessed_by.contains(NodeId::HOST) && !of(3).accessed_by.contains(NodeId(1)));
    assert_eq!(of(4).pinned, Some((NodeId(1), 1)));
    world.assert_sound("advised");
    for undo in [
        Attribute::ReadMostly(false),
        Attribute::Preferred(None),
        Attribute::AccessedBy(NodeId::HOST, false),
    ] {
        advise(&world, range, undo);
    }
    world.space.unpin(range.start.plus(7).start(), 1, NodeId(1)).unwrap();
    assert_eq!(world.space.attributes(range), Ok(vec![]));
    world.assert_sound("undone");
}

#[test]
fn attributes_go_with_munmap_and_only_there() {
    let world = world();
    let range = world.mmap(6);
    advise(&world, range, Attribute::ReadMostly(true));
    let hole = part(range, 2, 2);
    world.space.munmap(hole.start.start(), hole.len_bytes()).unwrap();
    world.assert_sound("a hole");
    assert_eq!(read_mostly(&world, part(range, 0, 2)), [part(range, 0, 2)]);
    assert_eq!(read_mostly(&world, part(range, 4, 2)), [part(range, 4, 2)]);
    // Addresses are used again late, but they are.
    let rest = world.space.config().window.nr_pages - 6;
    let all = world.mmap(rest);
    let again = world.mmap(2);
    assert_eq!(again, hole);
    assert_eq!(world.space.attributes(again), Ok(vec![]));
    assert_eq!(world.space.attributes(all), Ok(vec![]));
    world.assert_sound("mapped again");
}

/// Neighbouring regions may be advised by one call; a range with a gap is an error and nothing
/// changes.
#[test]
fn a_range_is_mapped_whole_or_nothing_happens() {
    let world = world();
    let (one, two) = (world.mmap(2), world.mmap(2));
    let both = PageRange { start: one.start, nr_pages: 4 };
    assert_eq!(two.start, one.end());
    advise(&world, both, Attribute::ReadMostly(true));
    assert_eq!(read_mostly(&world, both), [both]);
    let far = PageRange { start: one.start, nr_pages: 5 };
    let off = Attribute::ReadMostly(false);
    let told = world.space.set_attribute(far.start.start(), far.len_bytes(), off);
    assert_eq!(told, Err(Error::NotMapped { addr: both.end().start() }));
    assert_eq!(read_mostly(&world, both), [both]);
    let addr = one.start.start();
    assert_eq!(world.space.set_attribute(addr, 0, off), Err(Error::ZeroLength));
    let nowhere = Attribute::Preferred(Some(NodeId(9)));
    let told = world.space.set_attribute(addr, PAGE_SIZE, nowhere);
    assert_eq!(told, Err(Error::UnknownNode { node: NodeId(9), last: NodeId(1) }));
    let end = VirtAddr(u64::MAX);
    let told = world.space.set_attribute(end, 2, off);
    assert_eq!(told, Err(Error::AddressOverflow { addr: end, len: 2 }));
    let attributes = world.space.attributes(far);
    assert_eq!(attributes, Err(Error::NotMapped { addr: both.end().start() }));
}

/// Advice about part of a page is about the page, as `WILLNEED` is.
#[test]
fn advice_rounds_outward() {
    let world = world();
    let range = world.mmap(3);
    let on = Attribute::ReadMostly(true);
    world.space.set_attribute(VirtAddr(range.start.plus(1).start().0 - 1), 2, on).unwrap();
    assert_eq!(read_mostly(&world, range), [part(range, 0, 2)]);
    let default = Attributes::default();
    assert!(!default.read_mostly && default.pinned.is_none() && default.preferred.is_none());
}
