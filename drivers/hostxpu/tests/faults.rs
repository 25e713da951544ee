//! Pages move between the CPU and XPUs as they are touched, and no one reads stale data.

mod common;

use std::sync::Arc;

use common::{Machine, load};
use gmm_core::driver::{Examine, Protection};
use gmm_core::{Error as CoreError, NodeId, PAGE_SIZE, PageNr, PageRange, VirtAddr};
use gmm_hostxpu::{Backing, BackingKind, Context, Death, Error, HostXpuConfig, KernelArgs};

/// Launches a kernel of the tests' library and waits.
fn run(context: &Context, kernel: &str, grid: u64, args: impl KernelArgs) -> Result<(), Error> {
    let kernel = load(context).kernel(kernel)?;
    // SAFETY: each caller passes what the kernel takes.
    unsafe { context.stream().launch(&kernel, grid, args, &[])?.wait() }
}

fn sweep(config: HostXpuConfig, pages: u64) -> Arc<Context> {
    let machine = Machine::new();
    let context = machine.context_with(config);
    let (data, sum) = (machine.mmap(pages), machine.mmap(1));
    for page in 0..pages {
        machine.write(data + page * PAGE_SIZE, page * page + 1);
    }
    let expected: u64 = (0..pages).map(|page| page * page + 1).sum();
    for round in 0..3 {
        run(&context, "sum_pages", 1, (data, pages, sum)).unwrap();
        assert_eq!(machine.read(sum), expected + round * pages);
        run(&context, "add_one", 4, (data, pages * PAGE_SIZE / 8)).unwrap();
        machine.space.check().unwrap();
    }
    // Every word of the first page, and one of each, was raised three times.
    assert_eq!(machine.read(data + 8), 3);
    for page in 0..pages {
        assert_eq!(machine.read(data + page * PAGE_SIZE), page * page + 4);
        assert_eq!(machine.read(data + (page + 1) * PAGE_SIZE - 8), 3);
    }
    context
}

#[test]
fn data_four_times_the_memory_is_swept_right() {
    let context = sweep(HostXpuConfig::new(6 * PAGE_SIZE).cores(4), 24);
    let counters = context.counters();
    assert!(counters.faults >= 24 * 3, "{counters:?}");
    assert!(counters.commands > counters.faults, "pages were evicted: {counters:?}");
}

#[test]
fn so_it_is_with_small_pages_and_with_every_knob_turned() {
    let small = HostXpuConfig::new(4 * PAGE_SIZE).backing(Backing::SmallPages).cores(2);
    let context = sweep(small, 8);
    assert_eq!(context.device().frame_backing().kind(), BackingKind::SmallShmem);
    let micros = std::time::Duration::from_micros;
    let lab = HostXpuConfig::new(4 * PAGE_SIZE)
        .link_bandwidth(20 << 30)
        .link_latency(micros(20))
        .half_duplex(true)
        .clear_cost(micros(20))
        .message_latency(micros(20))
        .read_only_mappings(false)
        .spin(micros(0))
        .copy_engines(1);
    sweep(lab, 8);
}

/// CPU, two contexts of one XPU and one of another count, each in words of its own of the same
/// pages. A lost or stale page loses counts.
#[test]
fn no_count_is_lost_between_three_contexts_and_the_cpu() {
    const PAGES: u64 = 12;
    const ROUNDS: u64 = 400;
    let machine = Machine::new();
    let small = |n: u64| HostXpuConfig::new(n * PAGE_SIZE).cores(3);
    let shared = machine.xpu(small(5));
    let one = Context::new(&machine.space, &shared).unwrap();
    let two = Context::new(&machine.space, &shared).unwrap();
    let three = machine.context_with(small(4));
    let data = machine.mmap(PAGES);
    std::thread::scope(|scope| {
        for (i, context) in [&one, &two, &three].into_iter().enumerate() {
            scope.spawn(move || {
                let base = data + 1024 * i as u64;
                run(context, "count_pages", 3, (base, PAGES, ROUNDS, 17 * i as u64)).unwrap();
            });
        }
        let machine = &machine;
        scope.spawn(move || {
            for n in 0..ROUNDS {
                let word = data + (n * 7 % PAGES) * PAGE_SIZE + 8192;
                machine.write(word, machine.read(word) + 1);
            }
        });
    });
    let count = |at: u64| (0..PAGES).map(|p| machine.read(data + p * PAGE_SIZE + at)).sum::<u64>();
    for context in 0..3 {
        for core in 0..3 {
            assert_eq!(count(1024 * context + 64 * core), ROUNDS, "context {context} core {core}");
        }
    }
    assert_eq!(count(8192), ROUNDS);
    machine.space.check().unwrap();
}

#[test]
fn many_cores_on_few_frames_all_get_on() {
    let machine = Machine::new();
    let context = machine.context_with(HostXpuConfig::new(8 * PAGE_SIZE).cores(64));
    let data = machine.mmap(64);
    run(&context, "count_pages", 64, (data, 64_u64, 20_u64, 3_u64)).unwrap();
    for core in 0..64 {
        let count = (0..64).map(|p| machine.read(data + p * PAGE_SIZE + 64 * core));
        assert_eq!(count.sum::<u64>(), 20);
    }
}

#[test]
fn reads_share_a_page_and_a_write_takes_it() {
    let machine = Machine::new();
    let one = machine.context(4);
    let two = machine.context(4);
    let (page, out) = (machine.mmap(1), machine.mmap(2));
    machine.write(page, 5);
    run(&one, "peek", 1, (page, out)).unwrap();
    run(&two, "peek", 1, (page, out + PAGE_SIZE)).unwrap();
    let info = machine.space.inspect(VirtAddr(page)).unwrap();
    assert!(info.copies.len() >= 2, "{info:?}");
    run(&one, "add_one", 1, (page, 1_u64)).unwrap();
    let info = machine.space.inspect(VirtAddr(page)).unwrap();
    assert_eq!(info.copies.len(), 1, "{info:?}");
    run(&two, "peek", 1, (page, out)).unwrap();
    assert_eq!((machine.read(out), machine.read(out + PAGE_SIZE)), (6, 5));
    machine.space.check().unwrap();
}

#[test]
fn protection_holds_on_the_xpu_and_can_be_given_back() {
    let machine = Machine::new();
    let context = machine.context(4);
    let (page, out) = (machine.mmap(1), machine.mmap(1));
    run(&context, "poke", 1, (page,)).unwrap();
    let addr = VirtAddr(page);
    machine.space.protect(addr, PAGE_SIZE, Protection::ReadOnly).unwrap();
    run(&context, "peek", 1, (page, out)).unwrap();
    assert_eq!(machine.read(out), 1);
    machine.space.protect(addr, PAGE_SIZE, Protection::ReadWrite).unwrap();
    run(&context, "add_one", 1, (page, 1_u64)).unwrap();
    machine.space.protect(addr, PAGE_SIZE, Protection::ReadOnly).unwrap();
    match run(&context, "poke", 1, (page,)) {
        Err(Error::Launch { death: Death::WildAccess { cause, .. }, .. }) => {
            assert!(matches!(cause, CoreError::Protection { .. }), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(machine.read(page), 2);
}

#[test]
fn unmapped_memory_is_gone_from_the_xpu() {
    let machine = Machine::new();
    let context = machine.context(4);
    let page = machine.mmap(1);
    run(&context, "poke", 1, (page,)).unwrap();
    machine.space.munmap(VirtAddr(page), PAGE_SIZE).unwrap();
    let error = run(&context, "poke", 1, (page,)).unwrap_err();
    assert!(matches!(&error, Error::Launch { death: Death::WildAccess { .. }, .. }), "{error}");
    assert!(error.to_string().contains(&format!("{page:#x}")), "{error}");
}

#[test]
fn without_replayable_faults_a_launch_names_its_ranges() {
    let machine = Machine::new();
    let config = HostXpuConfig::new(8 * PAGE_SIZE).replayable_faults(false);
    let context = machine.context_with(config);
    let data = machine.mmap(6);
    let pages = |nr_pages| PageRange { start: PageNr(data / PAGE_SIZE), nr_pages };
    machine.write(data, 1);
    let (stream, add) = (context.stream(), load(&context).kernel("add_one").unwrap());
    for _ in 0..20 {
        // SAFETY: the kernel takes words and their number.
        unsafe { stream.launch(&add, 4, (data, 6 * PAGE_SIZE / 8), &[pages(6)]).unwrap() };
    }
    // The holds end with the launches, or this would wait until it fails.
    assert_eq!(machine.read(data), 21);
    assert_eq!(machine.read(data + 6 * PAGE_SIZE - 8), 20);
    stream.wait().unwrap();
    // More than there is.
    let big = machine.mmap(12);
    let range = PageRange { start: PageNr(big / PAGE_SIZE), nr_pages: 12 };
    // SAFETY: as above.
    let refused = unsafe { stream.launch(&add, 1, (big, 1_u64), &[range]) };
    match refused {
        Err(Error::Manager(CoreError::HoldTooLarge { node, capacity, asked })) => {
            assert_eq!((node, capacity, asked), (NodeId(1), 8, 12));
        }
        other => panic!("{other:?}"),
    }
    // A page that was not named is out of reach.
    // SAFETY: as above.
    let launch = unsafe { stream.launch(&add, 1, (data, 6 * PAGE_SIZE / 8), &[pages(5)]) };
    match launch.unwrap().wait() {
        Err(Error::Launch { death: Death::NotHeld { addr, .. }, .. }) => {
            assert_eq!(addr.0, data + 5 * PAGE_SIZE);
        }
        other => panic!("{other:?}"),
    }
}

/// Each fits alone; together they don't.
#[test]
fn a_held_launch_waits_for_those_before_it() {
    let machine = Machine::new();
    let config = HostXpuConfig::new(8 * PAGE_SIZE).replayable_faults(false);
    let context = machine.context_with(config);
    let (stream, kernel) = (context.stream(), load(&context).kernel("nap_and_add").unwrap());
    let data = [machine.mmap(5), machine.mmap(5)];
    for i in 0..6 {
        let start = data[i % 2];
        let held = PageRange { start: PageNr(start / PAGE_SIZE), nr_pages: 5 };
        // SAFETY: the kernel takes words, their number, and a time.
        unsafe { stream.launch(&kernel, 1, (start, 5_u64, 50_000_u64), &[held]).unwrap() };
    }
    stream.wait().unwrap();
    assert_eq!((machine.read(data[0]), machine.read(data[1] + 32)), (3, 3));
    machine.space.check().unwrap();
}

#[test]
fn out_of_memory_is_a_launch_error_with_numbers() {
    let machine = Machine::new();
    let context = machine.context(4);
    let held = machine.mmap(4);
    let range = PageRange { start: PageNr(held / PAGE_SIZE), nr_pages: 4 };
    let access = gmm_core::driver::Access::Read;
    let hold = machine.space.hold(context.processor(), &[range], access).unwrap();
    let page = machine.mmap(1);
    match run(&context, "poke", 1, (page,)) {
        Err(Error::Launch { death: Death::FaultFailed { cause, .. }, .. }) => match cause {
            CoreError::OutOfMemory(oom) => {
                assert_eq!((oom.node, oom.capacity, oom.pinned), (NodeId(1), 4, 4));
            }
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
    drop(hold);
}

/// A signal handler that touches unified memory would wait for the thread that it interrupted.
#[test]
fn no_signal_is_handled_while_a_context_joins() {
    let machine = Machine::new();
    machine.mmap(1);
    let (asked, blocked) = std::sync::mpsc::channel();
    let config = HostXpuConfig::new(4 * PAGE_SIZE).examine(move |_| {
        // SAFETY: asks for this thread's mask; a zeroed one is valid to overwrite.
        let blocked = unsafe {
            let mut mask = core::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &mut mask);
            libc::sigismember(&mask, libc::SIGALRM)
        };
        asked.send(blocked).unwrap();
        Examine::Reserved
    });
    let _context = machine.context_with(config);
    assert_eq!(blocked.try_iter().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_context_may_refuse_addresses_and_suggest_others() {
    let machine = Machine::new();
    let before = machine.mmap(3);
    let limit = PageNr(before / PAGE_SIZE + 64);
    let config = HostXpuConfig::new(4 * PAGE_SIZE).examine(move |range| {
        if range.start >= limit {
            Examine::Reserved
        } else {
            Examine::Suggest { base: limit.start(), alignment_bytes: 4 * PAGE_SIZE }
        }
    });
    let context = machine.context_with(config);
    assert_eq!(context.refused_regions().len(), 1);
    let after = machine.mmap(2);
    assert!(after >= limit.start().0 && after.is_multiple_of(4 * PAGE_SIZE), "{after:#x}");
    run(&context, "poke", 1, (after,)).unwrap();
    let error = run(&context, "poke", 1, (before,)).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_context_joins_when_regions_exist_and_leaves_its_data() {
    let machine = Machine::new();
    let page = machine.mmap(1);
    machine.write(page, 40);
    let context = machine.context(4);
    run(&context, "add_one", 1, (page, 2_u64)).unwrap();
    drop(context);
    assert_eq!((machine.read(page), machine.read(page + 8)), (41, 1));
    machine.space.check().unwrap();
}
