//! A machine without an XPU: the same kernels on the same pointers, run by threads of this process in
//! ordinary memory. What a real XPU computes must be equal to this, bit for bit.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use gmm_kernels::KERNELS;

use super::accelerator::{Accelerator, Unified};
use super::memory::MemoryUse;
use super::size::MIB;

/// Runs kernels on threads of the CPU.
#[derive(Debug)]
pub struct CpuOnly {
    nr_cores: usize,
    allocated_bytes: AtomicU64,
}

impl CpuOnly {
    /// A machine of `nr_cores` cores; 0 is taken as 1.
    pub fn new(nr_cores: usize) -> Self {
        Self { nr_cores: nr_cores.max(1), allocated_bytes: AtomicU64::new(0) }
    }
}

impl Accelerator for CpuOnly {
    fn alloc(&self, name: &str, len_bytes: usize) -> Result<Unified> {
        let memory = PageAligned::new(len_bytes)
            .with_context(|| format!("no memory of {len_bytes} bytes for {name}"))?;
        self.allocated_bytes.fetch_add(memory.layout.size() as u64, Ordering::Relaxed);
        Ok(Unified::new(memory))
    }

    unsafe fn launch(&self, kernel: &str, nr_items: u64, args: &[u64]) -> Result<()> {
        let Some(found) = KERNELS.iter().find(|known| known.name == kernel) else {
            bail!("no kernel {kernel:?}");
        };
        ensure!(
            args.len() == found.args.len(),
            "kernel {kernel:?} takes {} arguments, not {}",
            found.args.len(),
            args.len()
        );
        let next = AtomicU64::new(0);
        let core = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= nr_items {
                    return;
                }
                // SAFETY: as many words as the kernel takes; the caller promises what it asks of them.
                unsafe { (found.entry)(index, nr_items, args.as_ptr()) };
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.nr_cores {
                scope.spawn(core);
            }
            core();
        });
        Ok(())
    }

    fn memory(&self) -> Result<MemoryUse> {
        let all = [("0".to_owned(), self.allocated_bytes.load(Ordering::Relaxed))];
        Ok(MemoryUse {
            touched_bytes: all.clone().into(),
            peak_resident_bytes: all.into(),
            frame_backing: "none".to_owned(),
            ..MemoryUse::default()
        })
    }
}

/// Zeroed memory that begins on a page of 2 MiB.
///
/// # Invariants
/// `start` was allocated with `layout`, all of which is initialised.
struct PageAligned {
    start: NonNull<u8>,
    layout: Layout,
}

impl PageAligned {
    fn new(len_bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len_bytes, 2 * MIB as usize).ok()?;
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }
}

impl Deref for PageAligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the invariant of the type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the invariant of the type.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for PageAligned {
    fn drop(&mut self) {
        // SAFETY: the invariant of the type.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_begins_on_a_page() {
        let mut memory = CpuOnly::new(1).alloc("test", 5).unwrap();
        assert_eq!(*memory, [0; 5]);
        assert_eq!(memory.address(0) % (2 * MIB), 0);
        assert!(CpuOnly::new(1).alloc("nothing", 0).is_err());
    }

    #[test]
    fn a_launch_does_every_item_on_any_number_of_cores() {
        for nr_cores in [1, 3] {
            let machine = CpuOnly::new(nr_cores);
            let mut data = machine.alloc("data", 400).unwrap();
            let args = [data.address(0), 100, u64::from(3f32.to_bits())];
            // SAFETY: an array of 100 numbers.
            unsafe { machine.launch("fill", 7, &args).unwrap() };
            // SAFETY: as above.
            unsafe { machine.launch("square", 7, &args[..2]).unwrap() };
            assert!(data.f32s(0, 100).iter().all(|x| *x == 9.0));
        }
    }

    #[test]
    fn an_unknown_kernel_and_a_wrong_number_of_arguments_are_named() {
        let machine = CpuOnly::new(1);
        // SAFETY: neither launch reaches a kernel.
        let (unknown, wrong) = unsafe {
            (
                machine.launch("cube", 1, &[]).unwrap_err(),
                machine.launch("square", 1, &[0]).unwrap_err(),
            )
        };
        assert_eq!(unknown.to_string(), "no kernel \"cube\"");
        assert_eq!(wrong.to_string(), "kernel \"square\" takes 2 arguments, not 1");
    }
}
