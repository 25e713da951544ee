//! The fault interrupt: a signal handler on the core that touched what it may not.
//!
//! Everything here runs in a signal handler: no allocation, no lock, no unified memory.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gmm_core::VirtAddr;
use gmm_os::Waits;

use super::{WORKER, Worker, exit};
use crate::ring::{ACCESS_READ, ACCESS_SIGNAL, ACCESS_WRITE, is_coming};
use crate::wait;
use crate::wire::Exit;

const NO_CORE: u32 = u32::MAX;

thread_local! {
    /// The number of the core that this thread is.
    static CORE: Cell<u32> = const { Cell::new(NO_CORE) };
    /// The launch slot of the kernel that it runs.
    static LAUNCH: Cell<u32> = const { Cell::new(0) };
}

/// What an alternate stack holds at least: the processor's registers (AVX-512 and AMX state take
/// 11 KiB) and the handler.
const STACK_BYTES: usize = 128 << 10;

/// Installs the handlers, for all threads.
pub(super) fn install_handlers() -> std::io::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT] {
        // SAFETY: the handler has the type that SA_SIGINFO asks for; a zeroed sigaction is valid.
        let result = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(signal, &action, core::ptr::null_mut())
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes this thread a core.
pub(super) fn become_core(core: u32) {
    let stack = Box::leak(vec![0_u8; STACK_BYTES].into_boxed_slice());
    let stack =
        libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
    // SAFETY: the stack is this thread's for ever.
    if unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) } != 0 {
        exit(Exit::SetUp);
    }
    CORE.set(core);
}

/// Notes whose kernel this core runs next.
pub(super) fn set_launch(slot: usize) {
    LAUNCH.set(slot as u32);
}

unsafe extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let core = CORE.get();
    let Some(worker) = WORKER.get().filter(|_| core != NO_CORE) else { exit(Exit::StraySignal) };
    // SAFETY: the kernel passes both; errno is this thread's own.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let access = match access(context.cast()) {
            Some(access) if signal == libc::SIGSEGV && (*info).si_code > 0 => access,
            _ => ACCESS_SIGNAL + signal as u32,
        };
        worker.post_fault(core, (*info).si_addr() as u64, access);
        *errno = saved;
    }
}

/// What the faulting instruction tried; `None` if it was to be fetched from where it may not.
///
/// # Safety
/// `context` is what a signal handler was passed.
#[cfg(target_arch = "x86_64")]
unsafe fn access(context: *const libc::ucontext_t) -> Option<u32> {
    const WRITE: i64 = 1 << 1;
    const FETCH: i64 = 1 << 4;
    // SAFETY: the caller's promise.
    let error = unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] };
    match error {
        _ if error & FETCH != 0 => None,
        _ if error & WRITE != 0 => Some(ACCESS_WRITE),
        _ => Some(ACCESS_READ),
    }
}

/// As above. The exception class and the write bit come in an extra record of the context.
///
/// # Safety
/// `context` is what a signal handler was passed.
#[cfg(target_arch = "aarch64")]
unsafe fn access(context: *const libc::ucontext_t) -> Option<u32> {
    const ESR_MAGIC: u32 = 0x4553_5201;
    const WRITE_NOT_READ: u64 = 1 << 6;
    /// `__reserved` follows `fault_address`, 31 registers, `sp`, `pc`, `pstate`, 16-aligned.
    const RESERVED: usize = 288;
    const RESERVED_BYTES: usize = 4096;
    let mut at = 0;
    while at + 16 <= RESERVED_BYTES {
        // SAFETY: records of a magic number and a size lie one after the other in `__reserved`;
        // the walk stays within it.
        let (magic, size, esr) = unsafe {
            let base = (&raw const (*context).uc_mcontext).cast::<u8>();
            let record = base.add(RESERVED + at);
            (
                record.cast::<u32>().read_unaligned(),
                record.add(4).cast::<u32>().read_unaligned() as usize,
                record.add(8).cast::<u64>().read_unaligned(),
            )
        };
        if magic == ESR_MAGIC {
            return match esr >> 26 {
                0x20 | 0x21 => None,
                _ if esr & WRITE_NOT_READ != 0 => Some(ACCESS_WRITE),
                _ => Some(ACCESS_READ),
            };
        }
        if size < 16 {
            break;
        }
        at += size;
    }
    Some(ACCESS_WRITE)
}

impl Worker {
    /// Posts a fault of this core and waits until it is served; the instruction is then tried
    /// again. (A crash is never served: the host kills the process.)
    fn post_fault(&self, core: u32, address: u64, access: u32) {
        let slot = &self.ring.faults[core as usize];
        slot.address.store(address, Ordering::Relaxed);
        slot.access.store(access, Ordering::Relaxed);
        slot.launch.store(LAUNCH.get(), Ordering::Relaxed);
        let last = slot.done.load(Ordering::Relaxed);
        let mine = last.wrapping_add(1);
        slot.requested.store(mine, Ordering::SeqCst);
        self.ring.fault_bell.fetch_add(1, Ordering::SeqCst);
        let looked_for = self.ring.fault_pollers.load(Ordering::SeqCst) != 0
            || is_coming(self.ring.coming.load(Ordering::SeqCst), VirtAddr(address).page());
        if !looked_for {
            wait::wake(&self.ring.fault_bell, 1);
        }
        let served = || slot.done.load(Ordering::SeqCst) == mine;
        let begun = Instant::now();
        self.look_for(&self.fault_waits, || {
            // The mapping that this core waits for is most likely the next command.
            self.run_commands();
            served()
        });
        while !served() {
            wait::sleep_while(&slot.done, last, Duration::from_secs(60));
        }
        self.fault_waits.note(begun.elapsed());
        slot.resumed.store(mine, Ordering::Release);
        #[cfg(test)]
        if slot.refused.load(Ordering::SeqCst) != 0 {
            // SAFETY: the tests' kernels handle the signal, and don't come back here.
            unsafe { libc::raise(libc::SIGUSR1) };
        }
    }

    /// Looks for `ready` for a while, if not too many do so already, and for commands to execute.
    pub(super) fn look_for(&self, waits: &Waits, ready: impl FnMut() -> bool) {
        if self.spinners.fetch_add(1, Ordering::SeqCst) < self.max_spinners {
            let pollers = &self.ring.command.pollers;
            pollers.fetch_add(1, Ordering::SeqCst);
            waits.look(self.spin, ready);
            pollers.fetch_sub(1, Ordering::SeqCst);
            // The host woke no one for what it posted while this thread was counted.
            self.run_commands();
        }
        self.spinners.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until the bell for work no longer says `heard`.
    pub(super) fn await_work(&self, heard: u32) {
        let bell = &self.ring.work_bell;
        let begun = Instant::now();
        if self.spinners.fetch_add(1, Ordering::SeqCst) < self.max_spinners {
            self.work_waits.look(self.spin, || bell.load(Ordering::SeqCst) != heard);
        }
        self.spinners.fetch_sub(1, Ordering::SeqCst);
        wait::rest_while(bell, heard);
        self.work_waits.note(begun.elapsed());
    }
}
