//! The random operations.

use gmm_core::{Attribute, NodeId, PAGE_SIZE};
use gmm_driver_tests::array::FRAME_WORDS;
use proptest::prelude::*;

use super::policy::Choice;

/// One operation. Indices are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Load {
        who: usize,
        page: usize,
        word: u64,
    },
    Store {
        who: usize,
        page: usize,
        word: u64,
        value: u64,
    },
    Add {
        who: usize,
        page: usize,
        word: u64,
    },
    Mmap {
        nr_pages: u64,
        read_only: bool,
    },
    Munmap {
        page: usize,
        nr_pages: u64,
    },
    Protect {
        page: usize,
        nr_pages: u64,
        read_only: bool,
    },
    Prefetch {
        page: usize,
        nr_pages: u64,
        node: usize,
    },
    /// Begins a prefetch, which other operations come before the work of.
    BeginPrefetch {
        page: usize,
        nr_pages: u64,
        node: usize,
    },
    /// Does the oldest that has begun.
    EndPrefetch {
        cancel: bool,
    },
    /// From page and offset to page and offset.
    Memcpy {
        dst: (usize, u64),
        src: (usize, u64),
        len: u64,
        node: usize,
    },
    /// Accesses to pages in a row.
    Sweep {
        who: usize,
        page: usize,
        nr_pages: u64,
        write: Option<u64>,
    },
    Discard {
        page: usize,
        offset: u64,
        len: u64,
    },
    DiscardBehindTheCore {
        page: usize,
    },
    Attach {
        xpu: usize,
        node: usize,
    },
    Detach {
        who: usize,
    },
    Kill {
        who: usize,
        detach: bool,
    },
    /// A launch that begins and, if nothing keeps it, ends.
    Launch {
        who: usize,
        page: usize,
        nr_pages: u64,
        write: Option<u64>,
    },
    /// One that begins.
    Hold {
        who: usize,
        page: usize,
        nr_pages: u64,
        write: bool,
    },
    /// One of those that began ends.
    Unhold,
    Evict {
        node: usize,
        nr_pages: u32,
    },
    SetPolicy {
        node: usize,
        choice: Choice,
    },
    Pin {
        page: usize,
        nr_pages: u64,
        node: usize,
    },
    Unpin {
        page: usize,
        nr_pages: u64,
        node: usize,
    },
    SetPinLimit {
        node: usize,
        nr_frames: u32,
    },
    Advise {
        page: usize,
        nr_pages: u64,
        attribute: Attribute,
    },
    /// Someone is to be told before frames of the pages go, and may keep them.
    Watch {
        page: usize,
        nr_pages: u64,
        keeps: bool,
    },
    Unwatch,
    /// What the background does: frees frames up to the watermark, or makes pages clean.
    Reclaim {
        node: usize,
    },
    Launder {
        node: usize,
    },
    Withdraw {
        node: usize,
        nr_frames: u32,
    },
    Wild {
        who: usize,
    },
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let (who, page, words) = (0..12usize, 0..16usize, 0..FRAME_WORDS as u64);
    let at = (who.clone(), page.clone(), words);
    let run = 1..4u64;
    let node = 0..5usize;
    let value = 1..u64::MAX >> 1;
    let offset = prop_oneof![Just(0), Just(8), Just(PAGE_SIZE - 8)];
    let length = prop_oneof![Just(2), Just(PAGE_SIZE), Just(2 * PAGE_SIZE + 16)];
    let place = prop_oneof![Just((0, 0)), Just((1, 0)), Just((1, 1)), Just((2, 0)), Just((3, 0))];
    prop_oneof![
        30 => at.clone().prop_map(|(who, page, word)| Op::Load { who, page, word }),
        30 => (at.clone(), value.clone())
            .prop_map(|((who, page, word), value)| Op::Store { who, page, word, value }),
        10 => at.prop_map(|(who, page, word)| Op::Add { who, page, word }),
        4 => (run.clone(), any::<bool>())
            .prop_map(|(nr_pages, read_only)| Op::Mmap { nr_pages, read_only }),
        3 => (page.clone(), run.clone()).prop_map(|(page, nr_pages)| Op::Munmap { page, nr_pages }),
        4 => (page.clone(), run.clone(), any::<bool>())
            .prop_map(|(page, nr_pages, read_only)| Op::Protect { page, nr_pages, read_only }),
        5 => (page.clone(), run.clone(), node.clone())
            .prop_map(|(page, nr_pages, node)| Op::Prefetch { page, nr_pages, node }),
        2 => (page.clone(), 1..6u64, node.clone())
            .prop_map(|(page, nr_pages, node)| Op::BeginPrefetch { page, nr_pages, node }),
        3 => prop::bool::weighted(0.2).prop_map(|cancel| Op::EndPrefetch { cancel }),
        8 => (place_in_page(), place_in_page(), copied_len(), node.clone())
            .prop_map(|(dst, src, len, node)| Op::Memcpy { dst, src, len, node }),
        3 => (who.clone(), page.clone(), 3..9u64, prop::option::of(value.clone()))
            .prop_map(|(who, page, nr_pages, write)| Op::Sweep { who, page, nr_pages, write }),
        3 => (page.clone(), offset, length)
            .prop_map(|(page, offset, len)| Op::Discard { page, offset, len }),
        2 => page.clone().prop_map(|page| Op::DiscardBehindTheCore { page }),
        1 => place.prop_map(|(xpu, node)| Op::Attach { xpu, node }),
        1 => who.clone().prop_map(|who| Op::Detach { who }),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, detach)| Op::Kill { who, detach }),
        6 => (who.clone(), page.clone(), 1..8u64, prop::option::of(value))
            .prop_map(|(who, page, nr_pages, write)| Op::Launch { who, page, nr_pages, write }),
        2 => (who.clone(), page.clone(), run.clone(), any::<bool>())
            .prop_map(|(who, page, nr_pages, write)| Op::Hold { who, page, nr_pages, write }),
        2 => Just(Op::Unhold),
        1 => (node.clone(), 1..4u32)
            .prop_map(|(node, nr_frames)| Op::Withdraw { node, nr_frames }),
        1 => (node.clone(), 1..9u32).prop_map(|(node, nr_pages)| Op::Evict { node, nr_pages }),
        1 => (node.clone(), Choice::any()).prop_map(|(node, choice)| Op::SetPolicy { node, choice }),
        2 => (page.clone(), run.clone(), node.clone())
            .prop_map(|(page, nr_pages, node)| Op::Pin { page, nr_pages, node }),
        3 => (page.clone(), run.clone(), node.clone())
            .prop_map(|(page, nr_pages, node)| Op::Unpin { page, nr_pages, node }),
        1 => (node.clone(), 0..9u32)
            .prop_map(|(node, nr_frames)| Op::SetPinLimit { node, nr_frames }),
        5 => (page.clone(), run.clone(), attribute())
            .prop_map(|(page, nr_pages, attribute)| Op::Advise { page, nr_pages, attribute }),
        1 => (page, run, any::<bool>())
            .prop_map(|(page, nr_pages, keeps)| Op::Watch { page, nr_pages, keeps }),
        1 => Just(Op::Unwatch),
        2 => node.clone().prop_map(|node| Op::Reclaim { node }),
        2 => node.clone().prop_map(|node| Op::Launder { node }),
        1 => who.prop_map(|who| Op::Wild { who }),
    ]
}

/// Where a copy begins: near an end of a page, for that is where bytes exist.
fn place_in_page() -> impl Strategy<Value = (usize, u64)> {
    (0..16usize, prop_oneof![3 => Just(0), 1 => 0..40u64, 1 => PAGE_SIZE - 40..PAGE_SIZE])
}

fn copied_len() -> impl Strategy<Value = u64> {
    prop_oneof![1..70u64, Just(PAGE_SIZE), Just(3 * PAGE_SIZE), PAGE_SIZE - 40..PAGE_SIZE + 80]
}

fn attribute() -> impl Strategy<Value = Attribute> {
    let node = || (0..5u8).prop_map(NodeId);
    prop_oneof![
        any::<bool>().prop_map(Attribute::ReadMostly),
        prop::option::of(node()).prop_map(Attribute::Preferred),
        (node(), any::<bool>()).prop_map(|(node, is)| Attribute::AccessedBy(node, is)),
    ]
}
