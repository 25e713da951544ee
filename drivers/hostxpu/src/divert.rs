//! A program that has this crate in it can be its own worker: started with a variable in its
//! environment, it becomes one before its `main` begins.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::wire::DIVERT_VARIABLE;

/// Whether the constructor below ran in this process and lies in the main program, so that the
/// program, started again, would become a worker.
static IN_MAIN_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Whether this process's program can be started as a worker.
pub(crate) fn is_possible() -> bool {
    IN_MAIN_PROGRAM.load(Ordering::Relaxed)
}

// Listed among the constructors that run before `main`.
#[used]
// SAFETY: the section holds pointers to functions of this type.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = divert;

extern "C" fn divert() {
    if !is_in_main_program(divert as *const () as usize) {
        return;
    }
    IN_MAIN_PROGRAM.store(true, Ordering::Relaxed);
    // SAFETY: no other thread exists before `main`, so the environment does not change meanwhile.
    unsafe {
        if libc::getenv(DIVERT_VARIABLE.as_ptr()).is_null() {
            return;
        }
        // What this process may start itself is no worker.
        libc::unsetenv(DIVERT_VARIABLE.as_ptr());
    }
    crate::worker::main()
}

fn is_in_main_program(code: usize) -> bool {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut core::ffi::c_void,
    ) -> i32 {
        // SAFETY: the linker passes a valid description, with `dlpi_phnum` headers, and `data` is
        // the pointer passed below.
        unsafe {
            let (info, (code, found)) = (&*info, &mut *data.cast::<(usize, bool)>());
            let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            *found = headers.iter().any(|header| {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                header.p_type == libc::PT_LOAD
                    && (start..start + header.p_memsz as usize).contains(code)
            });
        }
        // Any other value than 0 ends the walk; the main program comes first.
        1
    }
    let mut data = (code, false);
    // SAFETY: `first` has the type asked for and uses `data` as what it is.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut data).cast()) };
    data.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constructor_ran_in_this_program() {
        assert!(is_possible());
        // A function of the C library is not in the main program.
        assert!(!is_in_main_program(libc::getenv as *const () as usize));
    }
}
