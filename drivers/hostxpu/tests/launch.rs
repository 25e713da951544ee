//! Kernels: loading, arguments, grids, order.

mod common;

use common::{LONG, Machine, load};
use gmm_core::PAGE_SIZE;
use gmm_hostxpu::{Error, HostXpuConfig};

#[test]
fn a_grid_covers_every_index_once_and_arguments_arrive() {
    let machine = Machine::new();
    let context = machine.context(8);
    let data = machine.mmap(4);
    let (module, stream) = (load(&context), context.stream());
    let mark = module.kernel("mark").unwrap();
    // SAFETY: the kernel takes a pointer to as many words as the grid has.
    unsafe { stream.launch(&mark, 1000, (data as *mut u64,), &[]).unwrap().wait().unwrap() };
    for i in 0..1000 {
        assert_eq!(machine.read(data + 8 * i), i + 1);
    }
    let echo = module.kernel("echo").unwrap();
    let mut words: [u64; 16] = core::array::from_fn(|i| i as u64 * 0x1111_1111_1111);
    words[0] = data + PAGE_SIZE;
    // SAFETY: the kernel writes 16 words to the first.
    unsafe { stream.launch(&echo, 1, words, &[]).unwrap().wait().unwrap() };
    for (i, word) in words.iter().enumerate() {
        assert_eq!(machine.read(data + PAGE_SIZE + 8 * i as u64), *word);
    }
    machine.space.check().unwrap();
}

#[test]
fn a_stream_keeps_its_order_through_more_launches_than_there_are_slots() {
    let machine = Machine::new();
    let context = machine.context_with(HostXpuConfig::new(4 * PAGE_SIZE).cores(3));
    let word = machine.mmap(2);
    let (module, stream) = (load(&context), context.stream());
    let append = module.kernel("append").unwrap();
    let mut expected = 0_u64;
    for tag in 0..300_u64 {
        // SAFETY: the kernel takes a word and a tag.
        drop(unsafe { stream.launch(&append, 1, (word, tag), &[]).unwrap() });
        expected = expected.wrapping_mul(31).wrapping_add(tag);
    }
    stream.wait().unwrap();
    assert_eq!(machine.read(word), expected);
    assert_eq!(context.counters().launches, 300);
}

#[test]
fn streams_run_at_the_same_time() {
    let machine = Machine::new();
    let context = machine.context_with(HostXpuConfig::new(4 * PAGE_SIZE).cores(2));
    let flags = machine.mmap(1);
    let module = load(&context);
    let (waiting, setting) = (context.stream(), context.stream());
    // SAFETY: the kernels take flags.
    unsafe {
        let kernel = module.kernel("await").unwrap();
        let launch = waiting.launch(&kernel, 1, (flags, flags + 64), &[]).unwrap();
        assert!(!launch.wait_timeout(std::time::Duration::from_millis(1)).unwrap());
        setting.launch(&module.kernel("set").unwrap(), 1, (flags,), &[]).unwrap().wait().unwrap();
        assert!(launch.wait_timeout(LONG).unwrap());
    }
}

#[test]
fn what_is_missing_is_named() {
    let machine = Machine::new();
    let context = machine.context(4);
    match context.load("libnot_there.so") {
        Err(Error::LibraryNotFound { name, tried }) => {
            assert_eq!(name, "libnot_there.so");
            assert!(tried.len() > 2, "{tried:?}");
        }
        other => panic!("{:?}", other.err()),
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/kernels.c");
    match context.load(source) {
        Err(Error::LibraryLoad { path, message }) => {
            assert!(path.ends_with("kernels.c"));
            assert!(message.contains("kernels.c"), "{message}");
        }
        other => panic!("{:?}", other.err()),
    }
    let module = load(&context);
    match module.kernel("no_such_kernel") {
        Err(Error::KernelNotFound { kernel, message, .. }) => {
            assert_eq!(kernel, "no_such_kernel");
            assert!(message.contains("no_such_kernel"), "{message}");
        }
        other => panic!("{:?}", other.err()),
    }
    assert!(context.is_alive());
    let mark = module.kernel("mark").unwrap();
    // SAFETY: it is not launched.
    let refused = unsafe { context.stream().launch(&mark, 0, (), &[]) };
    assert!(matches!(refused, Err(Error::EmptyGrid { .. })));
    let other = machine.context(4);
    // SAFETY: as above.
    let refused = unsafe { other.stream().launch(&mark, 1, (), &[]) };
    assert!(matches!(refused, Err(Error::ForeignKernel { .. })));
}

#[test]
fn a_worker_that_is_none_is_an_error() {
    // The variable is read by the child, so that the other tests of this process are unharmed.
    let exe = std::env::current_exe().unwrap();
    let run = |worker: &str| {
        let mut command = std::process::Command::new(&exe);
        command.args(["--exact", "try_a_context", "--nocapture", "--include-ignored"]);
        let output = command.env("GMM_HOSTXPU_WORKER", worker).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let missing = run("/nowhere/worker");
    assert!(missing.contains("/nowhere/worker: could not be started"), "{missing}");
    let wrong = run("/bin/true");
    assert!(wrong.contains("/bin/true: set-up failed: it exited with status 0"), "{wrong}");
    let built = run(env!("CARGO_BIN_EXE_gmm-hostxpu-worker"));
    assert!(built.contains("a context was made"), "{built}");
}

#[test]
#[ignore = "run by another test, with a variable set"]
fn try_a_context() {
    let machine = Machine::new();
    let device = machine.xpu(HostXpuConfig::new(4 * PAGE_SIZE));
    match gmm_hostxpu::Context::new(&machine.space, &device) {
        Ok(_) => println!("a context was made"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn a_context_is_made_only_where_its_device_is() {
    let (one, other) = (Machine::new(), Machine::new());
    let device = one.xpu(HostXpuConfig::new(4 * PAGE_SIZE));
    let refused = |machine: &Machine| {
        let context = gmm_hostxpu::Context::new(&machine.space, &device);
        matches!(context, Err(Error::OtherSpace { node }) if device.node() == Some(node))
    };
    assert!(refused(&other), "there is no such node");
    let _neighbour = other.xpu(HostXpuConfig::new(4 * PAGE_SIZE));
    assert!(refused(&other), "the node is another device's");
    assert!(!refused(&one));
}
