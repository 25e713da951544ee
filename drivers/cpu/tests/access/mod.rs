//! Loads, stores and increments at real addresses by the thread that calls them, of which one that
//! the machine refuses (SIGSEGV, SIGBUS) is an error and not the end.
//!
//! They are ordinary instructions, as an application's are, so what is tried is what an
//! application meets: the TLB, the fault in user mode, the replay. Each is a few lines of assembly
//! that use no stack and no register but those of the call. The signal handler looks whether the
//! program counter is within these lines, and if so sets it to `refused`, which returns the error
//! to the caller: at that point the stack is as at entry, so nothing has to be unwound, and no
//! Rust code is ever left in the middle. Any other SIGSEGV or SIGBUS ends the process as usual.

use std::ffi::c_void;
use std::sync::Once;

/// The machine refused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused;

/// Two registers.
#[repr(C)]
struct Answer {
    value: u64,
    refused: u64,
}

unsafe extern "C" {
    fn gmm_access_load(addr: u64) -> Answer;
    fn gmm_access_store(addr: u64, value: u64) -> Answer;
    fn gmm_access_increment(addr: u64) -> Answer;
    /// The end of the lines that may be refused, and where they go on if they are.
    fn gmm_access_refused() -> Answer;
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.gmm_access,\"ax\",@progbits",
    ".globl gmm_access_load",
    ".globl gmm_access_store",
    ".globl gmm_access_increment",
    ".globl gmm_access_refused",
    "gmm_access_load:",
    "xor edx, edx",
    "mov rax, qword ptr [rdi]",
    "ret",
    "gmm_access_store:",
    "xor edx, edx",
    "mov qword ptr [rdi], rsi",
    "ret",
    "gmm_access_increment:",
    "xor edx, edx",
    "lock inc qword ptr [rdi]",
    "ret",
    "gmm_access_refused:",
    "mov edx, 1",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.gmm_access,\"ax\",@progbits",
    ".globl gmm_access_load",
    ".globl gmm_access_store",
    ".globl gmm_access_increment",
    ".globl gmm_access_refused",
    "gmm_access_load:",
    "ldar x0, [x0]",
    "mov x1, #0",
    "ret",
    "gmm_access_store:",
    "stlr x1, [x0]",
    "mov x1, #0",
    "ret",
    "gmm_access_increment:",
    "2:",
    "ldaxr x9, [x0]",
    "add x9, x9, #1",
    "stlxr w10, x9, [x0]",
    "cbnz w10, 2b",
    "mov x1, #0",
    "ret",
    "gmm_access_refused:",
    "mov x1, #1",
    "ret",
    ".popsection",
);

/// The program counter of a thread that was interrupted.
#[cfg(target_arch = "x86_64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

/// The program counter of a thread that was interrupted.
#[cfg(target_arch = "aarch64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}

extern "C" fn recover(signal: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives the context of the interrupted thread, and nobody else has it.
    let pc = program_counter(unsafe { &mut *context.cast::<libc::ucontext_t>() });
    let first = gmm_access_load as *const () as usize;
    let refused = gmm_access_refused as *const () as usize;
    if (first..refused).contains(&(*pc as usize)) {
        *pc = refused as _;
    } else {
        // SAFETY: the instruction runs again, and its signal then does what it does by default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn catch_refusals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: the handler only does what may be done in one.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = recover as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
            }
        }
    });
}

fn check(answer: Answer) -> Result<u64, Refused> {
    if answer.refused == 0 { Ok(answer.value) } else { Err(Refused) }
}

/// # Safety
/// The word at `addr` is aligned; it belongs to nobody's Rust value, or nothing is there.
pub(crate) unsafe fn load(addr: u64) -> Result<u64, Refused> {
    catch_refusals();
    // SAFETY: the caller's promise; a refusal comes back as such.
    check(unsafe { gmm_access_load(addr) })
}

/// # Safety
/// As [`load`].
pub(crate) unsafe fn store(addr: u64, value: u64) -> Result<(), Refused> {
    catch_refusals();
    // SAFETY: as in `load`.
    check(unsafe { gmm_access_store(addr, value) }).map(drop)
}

/// Adds 1, in one step.
///
/// # Safety
/// As [`load`].
pub(crate) unsafe fn increment(addr: u64) -> Result<(), Refused> {
    catch_refusals();
    // SAFETY: as in `load`.
    check(unsafe { gmm_access_increment(addr) }).map(drop)
}
