//! Bad input gets a precise error, with the numbers, and changes nothing.

mod common;

use common::*;
use gmm::{Advice, Error, Gmm, MapFlags, PAGE_SIZE, Protection, VirtAddr};
use gmm_core::Error as Manager;

/// The operations on a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Unmap,
    Protect,
    WillNeed,
    DontNeed,
}

const OPS: [Op; 4] = [Op::Unmap, Op::Protect, Op::WillNeed, Op::DontNeed];

impl Op {
    fn apply(self, gmm: &Gmm, addr: u64, len: u64) -> gmm::Result<()> {
        let addr = std::ptr::without_provenance(addr as usize);
        match self {
            Self::Unmap => gmm.unmap(addr, len),
            Self::Protect => gmm.protect(addr, len, Protection::ReadOnly),
            Self::WillNeed => gmm.advise(addr, len, Advice::WillNeed, 1),
            Self::DontNeed => gmm.advise(addr, len, Advice::DontNeed, 1),
        }
    }

    /// Applies it where it must fail, and gives the manager's error.
    fn fails(self, gmm: &Gmm, addr: u64, len: u64) -> Manager {
        let before = picture(gmm);
        let result = self.apply(gmm, addr, len);
        assert_eq!(picture(gmm), before, "{self:?} of {len} bytes at {addr:#x} changed something");
        match result {
            Err(Error::Manager(error)) => error,
            other => panic!("{self:?} of {len} bytes at {addr:#x}: {other:?}"),
        }
    }
}

/// A region of four pages of which one is on the XPU and one is shared, and what it holds.
fn world() -> (Gmm, Memory) {
    let gmm = machine(5);
    let memory = mmap(&gmm, 4);
    memory.fill(0, 4 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    memory.touch_on(&xpu, 1, false);
    (gmm, memory)
}

fn intact((gmm, memory): (Gmm, Memory)) {
    assert_eq!(memory.differences(0, 4 * PAGE, 1), 0);
    memory.fill(0, 4 * PAGE, 2);
    let out = mmap(&gmm, 1);
    let sum = memory.sum_on(&gmm.xpu(1).unwrap(), 0, out).unwrap();
    assert_eq!(sum, sum_of(0, 4 * PAGE, 2));
    check(&gmm);
}

#[test]
fn a_length_of_zero() {
    let _turn = turn();
    let world = world();
    let base = world.1.addr(0);
    for op in OPS {
        for addr in [base, base + PAGE_SIZE, 0] {
            assert_eq!(op.fails(&world.0, addr, 0), Manager::ZeroLength);
        }
    }
    intact(world);
}

#[test]
fn ranges_that_run_past_the_end_of_the_address_space() {
    let _turn = turn();
    let world = world();
    let base = world.1.addr(0);
    let last_page = u64::MAX - (PAGE_SIZE - 1);
    for op in OPS {
        let mut cases = vec![
            (base, u64::MAX),
            (base, u64::MAX - base),
            (base, u64::MAX - base + 1),
            (base, 0_u64.wrapping_sub(base) + PAGE_SIZE),
            (0, u64::MAX),
            (last_page, PAGE_SIZE),
            (last_page, u64::MAX),
        ];
        if op != Op::Unmap {
            // (unmap finds first that these are not aligned)
            cases.extend([
                (u64::MAX, u64::MAX),
                (u64::MAX, 1),
                (1, u64::MAX),
                (base + 1, u64::MAX),
            ]);
        }
        for (addr, len) in cases {
            let error = op.fails(&world.0, addr, len);
            assert_eq!(error, Manager::AddressOverflow { addr: VirtAddr(addr), len });
            let text = error.to_string();
            let named = [format!("{len} bytes"), format!("{addr:#x}")];
            assert!(named.iter().all(|n| text.contains(n)), "{text}");
        }
    }
    let error = Op::Unmap.fails(&world.0, u64::MAX, u64::MAX);
    assert_eq!(error, Manager::Unaligned { addr: VirtAddr(u64::MAX) });
    intact(world);
}

#[test]
fn addresses_that_start_no_page_are_not_unmapped() {
    let _turn = turn();
    let world = world();
    for offset in [1, 8, 4096, PAGE_SIZE - 1, PAGE_SIZE + 4096] {
        let addr = world.1.addr(0) + offset;
        let error = Op::Unmap.fails(&world.0, addr, PAGE_SIZE);
        assert_eq!(error, Manager::Unaligned { addr: VirtAddr(addr) });
        let text = error.to_string();
        assert!(text.contains(&format!("{addr:#x}")) && text.contains("2097152"), "{text}");
    }
    intact(world);
}

#[test]
fn foreign_addresses() {
    let _turn = turn();
    let world = world();
    let (gmm, memory) = &world;
    let base = memory.addr(0);
    let own = vec![0_u8; 3 * PAGE];
    let window_end = base + (1 << 46);
    let starts = [
        0,
        PAGE_SIZE,
        (own.as_ptr().addr() as u64).next_multiple_of(PAGE_SIZE),
        base - PAGE_SIZE,
        base + 4 * PAGE_SIZE,
        window_end,
        1 << 63,
    ];
    for op in OPS {
        for addr in starts {
            let error = op.fails(gmm, addr, PAGE_SIZE);
            assert_eq!(error, Manager::NotMapped { addr: VirtAddr(addr) }, "{op:?}");
            assert!(error.to_string().contains(&format!("{addr:#x}")), "{error}");
        }
        // Partly foreign: the first address that is.
        let end = base + 4 * PAGE_SIZE;
        let error = op.fails(gmm, base, 4 * PAGE_SIZE + 1);
        assert_eq!(error, Manager::NotMapped { addr: VirtAddr(end) }, "{op:?}");
        let error = op.fails(gmm, base - PAGE_SIZE, 3 * PAGE_SIZE);
        assert_eq!(error, Manager::NotMapped { addr: VirtAddr(base - PAGE_SIZE) }, "{op:?}");
        // As much as there can be.
        let error = op.fails(gmm, base, 1 << 62);
        assert_eq!(error, Manager::NotMapped { addr: VirtAddr(end) }, "{op:?}");
    }
    intact(world);
}

#[test]
fn unmapping_twice() {
    let _turn = turn();
    let world = world();
    let (gmm, memory) = &world;
    let more = mmap(gmm, 3);
    more.from(PAGE).unmap(gmm, 1);
    for (first, pages, missing) in [(1, 1, 1), (0, 2, 1), (0, 3, 1), (1, 2, 1)] {
        let addr = more.addr(first * PAGE);
        let error = Op::Unmap.fails(gmm, addr, pages * PAGE_SIZE);
        assert_eq!(error, Manager::NotMapped { addr: VirtAddr(more.addr(missing * PAGE)) });
    }
    more.unmap(gmm, 1);
    more.from(2 * PAGE).unmap(gmm, 1);
    for op in OPS {
        let error = op.fails(gmm, more.addr(0), 3 * PAGE_SIZE);
        assert_eq!(error, Manager::NotMapped { addr: VirtAddr(more.addr(0)) });
    }
    assert_eq!(gmm.regions().len(), 1);
    assert_eq!(gmm.regions()[0].range.start.start().0, memory.addr(0));
    intact(world);
}

#[test]
fn a_buffer_unmapped_by_its_address_is_dropped_without_harm() {
    let _turn = turn();
    let gmm = machine(4);
    let buffer = gmm.mmap::<u8>(PAGE).unwrap();
    gmm.unmap(buffer.as_ptr(), PAGE_SIZE).unwrap();
    drop(buffer);
    assert!(gmm.regions().is_empty());
    check(&gmm);
}

#[test]
fn nodes_that_do_not_exist() {
    let _turn = turn();
    let world = world();
    let (gmm, memory) = &world;
    for node in [2, 15, 16, 100, 255] {
        for advice in [Advice::WillNeed, Advice::DontNeed] {
            let before = picture(gmm);
            let error = gmm.advise(memory.at(0), PAGE_SIZE, advice, node).unwrap_err();
            assert_eq!(picture(gmm), before);
            let wanted = format!("there is no node {node}; this space has nodes 0 to 1");
            assert_eq!(error.to_string(), wanted);
        }
        let error = gmm.xpu(node).unwrap_err();
        assert!(matches!(error, Error::NotAnXpu { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("node {node} is not an XPU; XPUs are 1"));
    }
    let error = gmm.xpu(0).unwrap_err();
    assert_eq!(error.to_string(), "node 0 is not an XPU; XPUs are 1");
    let none = Gmm::builder().build().unwrap();
    let error = none.xpu(1).unwrap_err().to_string();
    assert_eq!(error, "node 1 is not an XPU; XPUs are none here");
    intact(world);
}

#[test]
fn lengths_that_cannot_be_mapped() {
    let _turn = turn();
    let world = world();
    let gmm = &world.0;
    let before = picture(gmm);
    let raw = |len, protection| {
        let flags = MapFlags::XPU_VISIBLE;
        match gmm.mmap_raw(len, protection, flags, "bad") {
            Err(Error::Manager(error)) => error,
            other => panic!("{len} bytes: {other:?}"),
        }
    };
    for protection in [Protection::ReadWrite, Protection::ReadOnly] {
        assert_eq!(raw(0, protection), Manager::ZeroLength);
        for len in [u64::MAX, u64::MAX - 1, u64::MAX - (PAGE_SIZE - 2)] {
            let error = raw(len, protection);
            assert_eq!(error, Manager::AddressOverflow { addr: VirtAddr(0), len });
        }
        for len in [u64::MAX - 2 * PAGE_SIZE, 1 << 63, 1 << 60, 5 << 40] {
            let error = raw(len, protection);
            assert!(matches!(error, Manager::NoAddresses { .. }), "{error:?}");
            let rounded = len.next_multiple_of(PAGE_SIZE);
            let text = error.to_string();
            let numbers = [len, rounded].map(|n| format!(" {n} bytes"));
            assert!(numbers.iter().any(|n| text.contains(n)), "{text}");
        }
    }
    let error = gmm.mmap::<u64>(0).unwrap_err();
    assert!(matches!(error, Error::Manager(Manager::ZeroLength)), "{error:?}");
    for len in [usize::MAX, usize::MAX / 8 + 1, 1 << 60] {
        let error = gmm.mmap::<u64>(len).unwrap_err();
        assert!(matches!(error, Error::TooLong { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("{len} elements of 8 bytes")), "{error}");
    }
    let none = gmm.mmap_raw(PAGE_SIZE, Protection::ReadWrite, MapFlags::empty(), "bad");
    assert!(matches!(none, Err(Error::NotXpuVisible)), "{none:?}");
    assert_eq!(picture(gmm), before);
    intact(world);
}

#[test]
fn settings_of_an_xpu_that_cannot_be() {
    let _turn = turn();
    let build = |xpu| Gmm::builder().xpu(xpu).build().map(drop).unwrap_err().to_string();
    let cases = [
        (
            build(gmm::HostXpu::with_memory(4 * PAGE_SIZE - 1)),
            ["memory_bytes", "8388607", "8388608"],
        ),
        (build(xpu_of(4).cores(0)), ["cores", "0", "64"]),
        (build(xpu_of(4).cores(65)), ["cores", "65", "64"]),
    ];
    for (text, named) in cases {
        assert!(named.iter().all(|n| text.contains(n)), "{text}");
    }
    // Nothing is left behind that keeps the next from being made.
    for _ in 0..6 {
        drop(machine(4));
    }
}

#[test]
fn launches_that_cannot_be() {
    let _turn = turn();
    let world = world();
    let xpu = world.0.xpu(1).unwrap();
    let touch = kernel(&xpu, "touch");
    // SAFETY: an empty grid touches nothing.
    let launched = unsafe { xpu.stream().unwrap().launch(&touch, 0, (world.1.at(0), 8, false)) };
    let error = launched.err().unwrap().to_string();
    assert!(error.contains("\"touch\"") && error.contains("grid of 0"), "{error}");
    intact(world);
}
