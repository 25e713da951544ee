//! `gmemcpy` against a plain model of the bytes: any alignment, residency and node, with any driver
//! call made to fail, and from several threads.
#![cfg(not(shuttle))]

use std::collections::BTreeMap;

use gmm_core::driver::{Access, Capabilities, DriverError, Protection};
use gmm_core::{Error, HostAddr, NodeId, PAGE_SIZE, PageNr, PageRange, VirtAddr};
use gmm_driver_tests::array::{
    Completion, DeviceOptions, FRAME_BYTES, Failure, Trigger, byte_offset,
};
use gmm_driver_tests::{World, word};

const HOST_FRAMES: u32 = 40;
const PLAIN_PAGES: u64 = 4;

/// A world, and what each byte of it should be.
struct Rig {
    world: World,
    first: PageRange,
    second: PageRange,
    plain: HostAddr,
    bytes: BTreeMap<PageNr, [u8; FRAME_BYTES]>,
}

fn options(name: &str, frames: u32, completion: Completion, peer: bool) -> DeviceOptions {
    let options = DeviceOptions::xpu(name, frames).completing(completion);
    if peer { options.with(Capabilities::PEER_COPY) } else { options }
}

impl Rig {
    fn new(completion: Completion, peer: bool) -> Self {
        let world = World::builder(HOST_FRAMES)
            .xpu(options("a", 12, completion, peer), 1)
            .xpu(options("b", 12, completion, peer), 2)
            .build();
        let (first, second) = (world.mmap(6), world.mmap(5));
        let plain = world.machine.plain_memory(PLAIN_PAGES as usize);
        let pages = first.pages().chain(second.pages()).chain(Self::plain_pages(plain).pages());
        let bytes = pages.map(|page| (page, [0; FRAME_BYTES])).collect();
        let mut rig = Self { world, first, second, plain, bytes };
        for nr in 0..PLAIN_PAGES {
            for byte in 0..FRAME_BYTES {
                let addr = plain.0 + nr * PAGE_SIZE + byte_offset(byte);
                let value = (nr * 64 + byte as u64 + 1) as u8;
                rig.world.machine.set_host_byte(HostAddr(addr), value);
                let page = VirtAddr(addr).page();
                rig.bytes.get_mut(&page).expect("plain memory")[byte] = value;
            }
        }
        rig
    }

    fn plain_pages(plain: HostAddr) -> PageRange {
        PageRange { start: VirtAddr(plain.0).page(), nr_pages: PLAIN_PAGES }
    }

    fn byte(&self, addr: u64) -> Option<u8> {
        let page = VirtAddr(addr).page();
        let offset = addr - page.start().0;
        let byte = (0..FRAME_BYTES).find(|&byte| byte_offset(byte) == offset)?;
        Some(self.bytes[&page][byte])
    }

    /// The bytes as they should be after a copy.
    fn copied(&self, dst: u64, src: u64, len: u64) -> BTreeMap<PageNr, [u8; FRAME_BYTES]> {
        let mut after = self.bytes.clone();
        for (page, bytes) in &mut after {
            for (byte, value) in bytes.iter_mut().enumerate() {
                let addr = page.start().0 + byte_offset(byte);
                if (dst..dst + len).contains(&addr) {
                    *value = self.byte(src + (addr - dst)).unwrap_or(0);
                }
            }
        }
        after
    }

    fn memcpy(&self, dst: u64, src: u64, len: u64, node: u8) -> Result<(), Error> {
        self.world.space.memcpy(VirtAddr(dst), VirtAddr(src), len, NodeId(node))
    }

    /// Processor `who` writes some words of a page.
    fn write(&mut self, who: usize, page: PageNr, seed: u64) {
        for at in 0..8 {
            let value = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at << 8 | 1;
            self.world.processors[who].store(word(page, at), value).expect("a store");
            let bytes = self.bytes.get_mut(&page).expect("a page");
            bytes[at as usize * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// What processor `who` finds in a page.
    fn read(&self, who: usize, page: PageNr) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        for at in 0..8 {
            let value = self.world.processors[who].load(word(page, at)).expect("a load");
            bytes[at as usize * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn unified_pages(&self) -> impl Iterator<Item = PageNr> + use<> {
        self.first.pages().chain(self.second.pages())
    }

    fn check_plain(&self) {
        for page in Self::plain_pages(self.plain).pages() {
            for byte in 0..FRAME_BYTES {
                let addr = HostAddr(page.start().0 + byte_offset(byte));
                let found = self.world.machine.host_byte(addr);
                assert_eq!(found, Some(self.bytes[&page][byte]), "plain memory at {addr:?}");
            }
        }
    }

    fn check_all(&self, random: &mut Random) {
        for page in self.unified_pages() {
            let who = random.below(self.world.processors.len() as u64) as usize;
            assert_eq!(self.read(who, page), self.bytes[&page], "page {page:?} as {who} sees it");
        }
        self.check_plain();
        self.world.assert_sound("at the end");
    }

    /// Every page that holds a byte of the range is on `node`, and mapped there.
    fn assert_mapped(&self, dst: u64, len: u64, node: u8) {
        for page in PageRange::covering(VirtAddr(dst), len).unwrap().pages() {
            let info = self.world.space.inspect(page.start()).expect("a page");
            assert!(info.copies.iter().any(|c| c.node == NodeId(node)), "{info:?}");
            for p in self.world.processors.iter().filter(|p| p.processor.node() == NodeId(node)) {
                assert!(info.writable.contains(p.processor.id()), "{info:?}");
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    /// An offset in a page, near one of its ends most often: that is where bytes exist.
    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => self.below(40),
            2 => PAGE_SIZE - 1 - self.below(40),
            _ => self.below(PAGE_SIZE),
        }
    }

    fn len(&mut self) -> u64 {
        let pages = self.below(4) * PAGE_SIZE;
        match self.below(3) {
            0 => 1 + self.below(70),
            1 => pages.max(1),
            _ => (pages + self.below(80)).saturating_sub(40).max(1),
        }
    }
}

fn random_copies(completion: Completion, peer: bool, seed: u64) {
    let mut rig = Rig::new(completion, peer);
    let mut random = Random(seed | 1);
    let plain = Rig::plain_pages(rig.plain);
    for step in 0..400 {
        let ranges = [rig.first, rig.second, plain];
        let unified: Vec<PageNr> = rig.unified_pages().collect();
        let page = unified[random.below(unified.len() as u64) as usize];
        let who = random.below(4) as usize;
        match random.below(8) {
            0 | 1 => rig.write(who, page, step),
            2 => assert_eq!(rig.read(who, page), rig.bytes[&page], "page {page:?} at {step}"),
            3 => {
                rig.world.space.discard(page.start(), PAGE_SIZE).expect("a discard");
                rig.bytes.get_mut(&page).expect("a page").fill(0);
            }
            _ => {
                let pick = |random: &mut Random| {
                    let range = ranges[random.below(3) as usize];
                    let page = range.start.plus(random.below(range.nr_pages));
                    (page.start().0 + random.offset(), range.end().start().0)
                };
                let ((dst, dst_end), (mut src, src_end)) = (pick(&mut random), pick(&mut random));
                if random.below(3) == 0 {
                    src = src & !(PAGE_SIZE - 1) | dst & (PAGE_SIZE - 1);
                }
                let len = random.len().min(dst_end - dst).min(src_end - src);
                let node = random.below(3) as u8;
                let is_plain = |addr| plain.contains(VirtAddr(addr).page());
                let result = rig.memcpy(dst, src, len, node);
                let what = format!("{len} bytes from {src:#x} to {dst:#x} on {node}, step {step}");
                if dst < src + len && src < dst + len {
                    assert!(matches!(result, Err(Error::Overlap { .. })), "{what}: {result:?}");
                } else if is_plain(dst) && is_plain(src) {
                    assert!(matches!(result, Err(Error::NotMapped { .. })), "{what}: {result:?}");
                } else {
                    assert_eq!(result, Ok(()), "{what}");
                    rig.bytes = rig.copied(dst, src, len);
                    if !is_plain(dst) {
                        rig.assert_mapped(dst, len, node);
                    }
                }
                rig.world.assert_sound(what);
            }
        }
    }
    rig.check_all(&mut random);
}

#[test]
fn random_copies_are_those_of_plain_bytes() {
    for seed in 0..12 {
        let completion = [Completion::Inline, Completion::AtWait, Completion::Halves][seed % 3];
        random_copies(completion, seed % 2 == 0, 0x1234_5678_9ABC ^ (seed as u64) << 40);
    }
}

/// Copies of all kinds, each with every driver call made to fail in turn: no byte outside the
/// destination changes, everything stays sound, and once drivers work again so does the copy.
#[test]
fn a_copy_that_fails_changes_nothing_else() {
    const P: u64 = PAGE_SIZE;
    // From page and offset to page and offset of one region of 11 pages; length; node.
    let copies: [(u64, u64, u64, u64, u64, u8); 8] = [
        (0, 0, 4, 0, 2 * P, 1),
        (0, 5, 4, 9, P + 30, 1),
        (0, 0, 4, 17, 2 * P, 2),
        (2, 3, 2, P - 20, 15, 1),
        (1, P - 10, 7, 4, 20, 0),
        (8, 0, 4, 0, P, 0),
        (0, 11, 8, 11, 3 * P - 11, 2),
        (10, 0, 5, 1, P - 1, 1),
    ];
    let failures =
        [Failure::Error(DriverError::Busy), Failure::Error(DriverError::NoMemory), Failure::Hang];
    let mut nr_failed = 0;
    for (from, from_offset, to, to_offset, len, node) in copies {
        for failure in failures {
            for first in 0.. {
                let (hit, failed) = fail_once(
                    Trigger { call: None, first, times: 1, failure },
                    (from, from_offset, to, to_offset, len, node),
                );
                nr_failed += u32::from(failed);
                if !hit {
                    break;
                }
            }
        }
    }
    assert!(nr_failed > 100, "only {nr_failed} copies failed");
}

fn fail_once(trigger: Trigger, copy: (u64, u64, u64, u64, u64, u8)) -> (bool, bool) {
    let (from, from_offset, to, to_offset, len, node) = copy;
    let world = World::builder(HOST_FRAMES)
        .xpu(options("a", 12, Completion::Halves, false), 1)
        .xpu(options("b", 12, Completion::AtWait, false), 1)
        .build();
    let first = world.mmap(11);
    let second = PageRange { start: first.start, nr_pages: 0 };
    let plain = world.machine.plain_memory(PLAIN_PAGES as usize);
    let pages = first.pages().chain(Rig::plain_pages(plain).pages());
    let bytes = pages.map(|page| (page, [0; FRAME_BYTES])).collect();
    let mut rig = Rig { world, first, second, plain, bytes };
    // Some pages of each processor, page 8 read by two, pages 9 and 10 never touched.
    for nr in 0..9 {
        rig.write(nr as usize % 3, first.start.plus(nr), nr + 1);
    }
    rig.read(2, first.start.plus(8));
    let at = |nr: u64, offset: u64| first.start.plus(nr).start().0 + offset;
    let (dst, src) = (at(to, to_offset), at(from, from_offset));
    rig.world.machine.inject(Some(trigger));
    let result = rig.memcpy(dst, src, len, node);
    let hit = rig.world.machine.injected().0 > 0;
    rig.world.machine.inject(None);
    let what = format!("{trigger:?} at {copy:?}: {result:?}");
    rig.world.assert_sound(&what);
    let after = rig.copied(dst, src, len);
    // The CPU never dies.
    for page in first.pages() {
        let found = rig.read(0, page);
        for (byte, &value) in found.iter().enumerate() {
            let addr = page.start().0 + byte_offset(byte);
            let is_inside = (dst..dst + len).contains(&addr);
            if result.is_ok() || !is_inside {
                assert_eq!(value, after[&page][byte], "{what}: byte {byte} of {page:?}");
            }
        }
    }
    rig.world.assert_sound(&what);
    rig.memcpy(dst, src, len, node).unwrap_or_else(|e| panic!("{what}, and then {e}"));
    for page in first.pages() {
        assert_eq!(rig.read(0, page), after[&page], "{what}, and then: {page:?}");
    }
    rig.world.assert_sound(&what);
    (hit, result.is_err())
}

#[test]
fn what_can_not_be_copied_is_an_error_that_says_why() {
    let rig = Rig::new(Completion::Inline, false);
    let (dst, src) = (rig.second.start.start().0, rig.first.start.start().0);
    assert_eq!(rig.memcpy(dst, src, 0, 1), Ok(()));
    assert!(matches!(rig.memcpy(dst, src, 1, 9), Err(Error::UnknownNode { .. })));
    assert!(matches!(rig.memcpy(src + 5, src, 6, 1), Err(Error::Overlap { .. })));
    assert!(matches!(rig.memcpy(src, src, 1, 1), Err(Error::Overlap { .. })));
    let end = rig.second.end().start();
    let beyond = rig.memcpy(end.0 - 1, src, 2, 1);
    assert_eq!(beyond, Err(Error::NotMapped { addr: end }));
    assert!(matches!(rig.memcpy(dst, u64::MAX - 1, 5, 1), Err(Error::AddressOverflow { .. })));
    let page = VirtAddr(dst + PAGE_SIZE);
    rig.world.space.protect(page, 1, Protection::ReadOnly).unwrap();
    let access = Access::Write;
    let refused = rig.memcpy(dst + PAGE_SIZE - 1, src, 2, 1);
    assert_eq!(refused, Err(Error::Protection { addr: page, access }));
    // To read from it is no problem.
    assert_eq!(rig.memcpy(src, page.0, 2, 1), Ok(()));
    rig.world.assert_sound("after refusals");
}

/// What the CPU and an XPU map of a source they map afterwards too; neither copy nor first access
/// to the destination takes a fault.
#[test]
fn sources_stay_mapped_and_destinations_fault_not() {
    let mut rig = Rig::new(Completion::AtWait, true);
    let (a, b) = (rig.first.start, rig.second.start);
    rig.write(0, a, 1);
    rig.write(1, a.plus(1), 2);
    let faults = |rig: &Rig| rig.world.space.snapshot().nodes.iter().map(|n| n.faults).sum::<u64>();
    let before = faults(&rig);
    for node in [1, 2, 0] {
        rig.memcpy(b.start().0, a.start().0, 2 * PAGE_SIZE, node).unwrap();
        rig.bytes = rig.copied(b.start().0, a.start().0, 2 * PAGE_SIZE);
        let who = [0, 1, 2][node as usize];
        for page in [b, b.plus(1)] {
            assert_eq!(rig.read(who, page), rig.bytes[&page]);
            rig.world.processors[who].store(word(page, 0), 7).unwrap();
            rig.bytes.get_mut(&page).unwrap()[..8].copy_from_slice(&7u64.to_le_bytes());
        }
        rig.write(0, a, 3 + u64::from(node));
        rig.write(1, a.plus(1), 9 + u64::from(node));
        assert_eq!(faults(&rig), before, "on node {node}");
    }
    rig.world.assert_sound("at the end");
}

/// Copies that cross, over the same pages, beside faults and evictions, end; and what is copied
/// at once is one of the values that were there.
#[test]
fn copies_that_cross_do_not_wait_for_each_other() {
    let world = World::builder(64)
        .wall_clock()
        .xpu(options("a", 10, Completion::AtWait, false), 1)
        .xpu(options("b", 10, Completion::Halves, false), 1)
        .build();
    let (one, two) = (world.mmap(6), world.mmap(6));
    let (x, y) = (one.start.start(), two.start.start());
    let len = 6 * PAGE_SIZE;
    std::thread::scope(|s| {
        for nr in 0..4u64 {
            let world = &world;
            s.spawn(move || {
                for round in 0..60 {
                    let (dst, src) = if nr % 2 == 0 { (x, y) } else { (y, x) };
                    let (skip, node) = ((nr / 2) * 17, NodeId(((nr + round) % 3) as u8));
                    let (dst, src) = (VirtAddr(dst.0 + skip), VirtAddr(src.0 + 17 - skip));
                    world.space.memcpy(dst, src, len - 17, node).expect("a copy");
                }
            });
        }
        for who in 0..3 {
            let world = &world;
            s.spawn(move || {
                for round in 0..400u64 {
                    let range = if round % 2 == 0 { one } else { two };
                    let page = range.start.plus(round * 7 % 6);
                    world.processors[who].load(word(page, round % 8)).expect("a load");
                }
            });
        }
    });
    world.assert_sound("after crossing");
}
