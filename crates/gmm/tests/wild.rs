//! What a kernel does wrong ends its context only, with an error that names the kernel and the
//! address.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::*;
use gmm::hostxpu::Death;
use gmm::{Access, Gmm, PAGE_SIZE, Protection, VirtAddr, Xpu};

/// A machine with two XPUs, a second context of the first, and memory that all of them use.
struct Bystanders {
    gmm: Gmm,
    others: [Xpu; 2],
    memory: Memory,
    out: Memory,
}

impl Bystanders {
    fn new() -> Self {
        let gmm = Gmm::builder().xpu(xpu_of(6)).xpu(xpu_of(6)).build().unwrap();
        let others = [gmm.xpu(1).unwrap().new_context().unwrap(), gmm.xpu(2).unwrap()];
        let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
        memory.fill(0, 2 * PAGE, 1);
        let all = Self { gmm, others, memory, out };
        all.assert_unharmed();
        all
    }

    /// The context that is about to end.
    fn victim(&self) -> Xpu {
        let xpu = self.gmm.xpu(1).unwrap();
        assert!(xpu.context().is_alive());
        xpu
    }

    /// The others still work, and so does the default context that is made anew.
    fn assert_unharmed(&self) {
        let anew = self.gmm.xpu(1).unwrap();
        for xpu in self.others.iter().chain([&anew]) {
            let sum = self.memory.sum_on(xpu, 0, self.out).unwrap();
            assert_eq!(sum, sum_of(0, 2 * PAGE, 1), "{xpu:?}");
        }
        self.memory.fill(PAGE, PAGE, 1);
        check(&self.gmm);
    }
}

#[test]
fn a_wild_write_is_an_error_with_address_and_kernel() {
    let Some(_turn) = turn_with_faults() else { return };
    let all = Bystanders::new();
    let unmapped = mmap(&all.gmm, 1);
    unmapped.unmap(&all.gmm, 1);
    for addr in [0x10, unmapped.addr(64), all.memory.addr(0) + (1 << 40)] {
        let victim = all.victim();
        let stream = victim.stream().unwrap();
        let wild = kernel(&victim, "wild");
        // SAFETY: a wild access, on purpose.
        let launch = unsafe { stream.launch(&wild, 1, (addr, 7_u64)).unwrap() };
        let (kernel, death) = death_of(launch.wait());
        assert_eq!(kernel, "wild");
        match &death {
            Death::WildAccess { kernel, addr: at, access, cause } => {
                assert_eq!((&**kernel, *at, *access), ("wild", VirtAddr(addr), Access::Write));
                assert_eq!(*cause, gmm_core::Error::NotMapped { addr: *at });
            }
            other => panic!("{other:?}"),
        }
        let text = death.to_string();
        let named = ["\"wild\"".to_owned(), "Write".to_owned(), format!("{addr:#x}")];
        assert!(named.iter().all(|n| text.contains(n)), "{text}");

        // What is asked of the dead context says how it ended.
        assert!(!victim.context().is_alive());
        // SAFETY: as above; it does not get that far.
        let again = unsafe { stream.launch(&wild, 1, (addr, 7_u64)) }.err().unwrap().to_string();
        assert!(again.contains("the context has ended") && again.contains(&text), "{again}");
        let load = victim.load("libgmm_kernels.so").err().unwrap().to_string();
        assert!(load.contains(&text), "{load}");
        all.assert_unharmed();
    }
}

#[test]
fn a_wild_read_is_one_too() {
    let Some(_turn) = turn_with_faults() else { return };
    let all = Bystanders::new();
    let addr = all.memory.addr(0) - PAGE_SIZE;
    let flag = std::ptr::without_provenance::<u32>(addr as usize);
    let result = run(&all.victim(), "spin", 1, (flag, 10_u64, all.out.at(0)));
    let (kernel, death) = death_of(result);
    assert_eq!(kernel, "spin");
    let Death::WildAccess { addr: at, access, .. } = death else { panic!("{death:?}") };
    assert_eq!((at.0, access), (addr, Access::Read));
    all.assert_unharmed();
}

#[test]
fn a_write_to_a_read_only_region_is_refused_and_nothing_is_written() {
    let Some(_turn) = turn_with_faults() else { return };
    let all = Bystanders::new();
    let fixed = mmap(&all.gmm, 2);
    fixed.fill(0, 2 * PAGE, 5);
    all.gmm.protect(fixed.at(0), 2 * PAGE_SIZE, Protection::ReadOnly).unwrap();
    for read_first in [false, true] {
        let victim = all.victim();
        if read_first {
            assert_eq!(fixed.sum_on(&victim, 0, all.out).unwrap(), sum_of(0, 2 * PAGE, 5));
        }
        let result = run(&victim, "wild", 1, (fixed.at(PAGE + 8), 7_u64));
        let (kernel, death) = death_of(result);
        assert_eq!(kernel, "wild");
        let Death::WildAccess { addr, access, cause, .. } = death else { panic!("{death:?}") };
        assert_eq!((addr.0, access), (fixed.addr(PAGE + 8), Access::Write));
        assert_eq!(cause, gmm_core::Error::Protection { addr, access });
        assert!(cause.to_string().contains("read-only"), "{cause}");
        assert_eq!(fixed.differences(0, 2 * PAGE, 5), 0);
        all.assert_unharmed();
    }
}

#[test]
fn other_launches_of_the_context_end_with_it_and_say_why() {
    let _turn = turn();
    let all = Bystanders::new();
    let victim = all.victim();
    let endless = start(&victim, "spin", 1, (0_u64, u64::MAX, 0_u64));
    let (_, death) = death_of(run(&victim, "wild", 1, (8_u64, 7_u64)));
    let (kernel, same) = death_of(endless.wait());
    assert_eq!(kernel, "spin");
    assert_eq!(same.to_string(), death.to_string());
    all.assert_unharmed();
}

#[test]
fn a_missing_library_or_kernel_is_named() {
    let _turn = turn();
    let all = Bystanders::new();
    let xpu = all.victim();
    let text = xpu.load("libno_such_kernels.so").err().unwrap().to_string();
    assert!(text.contains("libno_such_kernels.so") && text.contains("not found"), "{text}");
    let beside = std::env::current_exe().unwrap().parent().unwrap().display().to_string();
    assert!(text.contains(&beside), "it says where it looked: {text}");
    let text = xpu.load("/no/such/folder/lib.so").err().unwrap().to_string();
    assert!(text.contains("/no/such/folder/lib.so"), "{text}");
    // A file that is no library: what the linker said.
    let text = xpu.load("/proc/self/status").err().unwrap().to_string();
    assert!(text.contains("could not be loaded"), "{text}");

    let module = xpu.load("libgmm_kernels.so").unwrap();
    for name in ["no_such_kernel", "squar"] {
        let text = module.kernel(name).err().unwrap().to_string();
        let named = format!("no kernel {name:?} in ");
        assert!(text.contains(&named) && text.contains("libgmm_kernels.so"), "{text}");
    }
    assert!(xpu.context().is_alive());
    all.assert_unharmed();
}

const CRASHES: &str = r#"
#include <stdint.h>
#include <stdlib.h>
void undefined(uint64_t index, uint64_t count, const uint64_t *args) {
    if (index == args[0]) __builtin_trap();
}
void divide(uint64_t index, uint64_t count, const uint64_t *args) {
    volatile uint64_t zero = 0;
    volatile uint64_t result = count / zero;
    (void)result;
}
void give_up(uint64_t index, uint64_t count, const uint64_t *args) { abort(); }
void leave(uint64_t index, uint64_t count, const uint64_t *args) { _Exit(3); }
void jump(uint64_t index, uint64_t count, const uint64_t *args) {
    ((void (*)(void))(uintptr_t)args[0])();
}
void deep(uint64_t index, uint64_t count, const uint64_t *args) {
    volatile char frame[4096];
    frame[0] = (char)index;
    if (args[0] != 0) deep(index + 1, count, args);
    frame[1] = 1;
}
void add(uint64_t index, uint64_t count, const uint64_t *args) {
    ((uint64_t *)args[0])[index] += args[1];
}
"#;

/// Compiles kernels written in C; `None`, said aloud, where there is no compiler.
fn c_kernels() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("wild-{}", std::process::id());
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&source, CRASHES).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-w", "-O0", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    let compiled = match cc.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("SKIPPED: kernels that crash, since cc can't be run: {error}");
            return None;
        }
    };
    let _ = std::fs::remove_file(source);
    assert!(compiled);
    Some(library)
}

#[test]
fn kernels_in_c_work_and_their_crashes_are_named() {
    let Some(_turn) = turn_with_faults() else { return };
    let Some(library) = c_kernels() else { return };
    let all = Bystanders::new();
    let launch = |xpu: &Xpu, name, args: [u64; 2]| {
        let kernel = xpu.load(&library).unwrap().kernel(name).unwrap();
        // SAFETY: it ends the context on purpose, or adds to the test's memory.
        unsafe { xpu.stream().unwrap().launch(&kernel, 4, args).unwrap().wait() }
    };
    let place = all.out.from(64);
    (0..4).for_each(|i| place.write_word(8 * i, i as u64));
    launch(&all.victim(), "add", [place.addr(0), 10]).unwrap();
    assert_eq!([0, 1, 2, 3].map(|i| place.read_word(8 * i)), [10, 11, 12, 13]);

    let crashes = [
        ("undefined", [2, 0], libc::SIGILL),
        ("divide", [0, 0], libc::SIGFPE),
        ("give_up", [0, 0], libc::SIGABRT),
        // Data is not code, mapped or not.
        ("jump", [all.memory.addr(0), 0], libc::SIGSEGV),
    ];
    for (name, args, signal) in crashes {
        let (kernel, death) = death_of(launch(&all.victim(), name, args));
        assert_eq!(kernel, name);
        let Death::Crash { kernel, signal: got, .. } = &death else { panic!("{death:?}") };
        assert_eq!((&**kernel, *got), (name, signal), "{death}");
        all.assert_unharmed();
    }
    // Endless recursion: the end of the stack is a wild access.
    let (kernel, death) = death_of(launch(&all.victim(), "deep", [1, 0]));
    assert_eq!(kernel, "deep");
    assert!(matches!(death, Death::WildAccess { .. } | Death::Crash { .. }), "{death:?}");
    all.assert_unharmed();
    // A kernel that ends its process.
    let (_, death) = death_of(launch(&all.victim(), "leave", [0, 0]));
    assert!(matches!(death, Death::Exited { status: 3, .. }), "{death:?}");
    all.assert_unharmed();
    let _ = std::fs::remove_file(library);
}
