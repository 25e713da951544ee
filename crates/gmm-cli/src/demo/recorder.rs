//! Which pages the kernels use, in order: recorded on the CPU alone, where nothing moves, at the
//! granularity of launches. What an XPU moved is compared with the fewest moves for that order.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

use anyhow::{Result, bail};
use gmm::PAGE_SIZE;

use super::accelerator::{Accelerator, Unified};
use super::cpu_only::CpuOnly;
use super::memory::MemoryUse;

/// Memory that only kernels write: on an XPU its pages are made there, not moved there.
const MADE_BY_KERNELS: [&str; 2] = ["activations", "results"];

/// A machine without an XPU that writes down what its launches use.
pub struct Recorder {
    machine: CpuOnly,
    uses: RefCell<Vec<u64>>,
    made_by_kernels: RefCell<Vec<Range<u64>>>,
}

impl Recorder {
    /// A recorder of what is run on `nr_cores` cores.
    pub fn new(nr_cores: usize) -> Self {
        Self {
            machine: CpuOnly::new(nr_cores),
            uses: RefCell::default(),
            made_by_kernels: RefCell::default(),
        }
    }

    /// How many pages have to be moved to an XPU of so many frames at least, for what was run.
    pub fn fewest_moves(&self, nr_frames: usize) -> u64 {
        let uses = self.uses.borrow().clone();
        let pages: HashSet<u64> = uses.iter().copied().collect();
        let made = self.made_by_kernels.borrow();
        let is_made = |page: &&u64| made.iter().any(|range| range.contains(*page));
        let made = pages.iter().filter(is_made).count() as u64;
        gmm_sim::optimum(&[uses], nr_frames).iter().sum::<u64>() - made
    }

    fn record(&self, address: u64, len_bytes: u64) {
        let mut uses = self.uses.borrow_mut();
        for page in pages(address, len_bytes) {
            if uses.last() != Some(&page) {
                uses.push(page);
            }
        }
    }

    /// # Safety
    /// As [`Accelerator::launch`].
    unsafe fn record_launch(&self, kernel: &str, args: &[u64]) -> Result<()> {
        match (kernel, args) {
            ("embed", &[ids, words, positions, kind, gamma, beta, _, x, nr_tokens, width]) => {
                let row = width * 4;
                self.record(ids, nr_tokens * 4);
                for place in 0..nr_tokens {
                    let id = core::ptr::with_exposed_provenance::<u32>((ids + place * 4) as usize);
                    // SAFETY: the kernel is promised so many words there.
                    let id = unsafe { id.read() };
                    self.record(words + u64::from(id) * row, row);
                }
                self.record(positions, nr_tokens * row);
                [kind, gamma, beta].into_iter().for_each(|at| self.record(at, row));
                self.record(x, nr_tokens * row);
            }
            ("linear" | "linear_gelu", &[weight, bias, x, y, nr_tokens, nr_in, nr_out]) => {
                self.record(x, nr_tokens * nr_in * 4);
                self.record(bias, nr_out * 4);
                self.record(weight, nr_in * nr_out * 4);
                self.record(y, nr_tokens * nr_out * 4);
            }
            ("attention", &[query, key, value, out, nr_tokens, nr_heads, width]) => {
                let len_bytes = nr_tokens * nr_heads * width * 4;
                [query, key, value, out].into_iter().for_each(|at| self.record(at, len_bytes));
            }
            ("add_norm", &[x, delta, gamma, beta, _, nr_tokens, width]) => {
                [delta, x].into_iter().for_each(|at| self.record(at, nr_tokens * width * 4));
                [gamma, beta].into_iter().for_each(|at| self.record(at, width * 4));
            }
            ("mean_pool", &[x, result, nr_tokens, width]) => {
                self.record(x, nr_tokens * width * 4);
                self.record(result, width * 4);
            }
            _ => bail!("what kernel {kernel:?} uses is not known"),
        }
        Ok(())
    }
}

/// The pages that hold `address .. address + len_bytes`.
fn pages(address: u64, len_bytes: u64) -> Range<u64> {
    address / PAGE_SIZE..(address + len_bytes).div_ceil(PAGE_SIZE)
}

impl Accelerator for Recorder {
    fn alloc(&self, name: &str, len_bytes: usize) -> Result<Unified> {
        let mut memory = self.machine.alloc(name, len_bytes)?;
        if MADE_BY_KERNELS.contains(&name) {
            let made = pages(memory.address(0), len_bytes as u64);
            self.made_by_kernels.borrow_mut().push(made);
        }
        Ok(memory)
    }

    unsafe fn launch(&self, kernel: &str, nr_items: u64, args: &[u64]) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe {
            self.record_launch(kernel, args)?;
            self.machine.launch(kernel, nr_items, args)
        }
    }

    fn memory(&self) -> Result<MemoryUse> {
        self.machine.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_made_by_kernels_are_not_moved() {
        let recorder = Recorder::new(1);
        let mut x = recorder.alloc("weights", 3 * PAGE_SIZE as usize).unwrap();
        let mut result = recorder.alloc("results", 64).unwrap();
        let (x, result) = (x.address(0), result.address(0));
        for _ in 0..2 {
            // SAFETY: only recorded, and these arguments name no memory to be read.
            unsafe { recorder.record_launch("mean_pool", &[x, result, 3, PAGE_SIZE / 4]).unwrap() };
        }
        // Three pages that were written by the CPU, one that was not.
        assert_eq!(recorder.fewest_moves(8), 3);
        assert_eq!(recorder.uses.borrow().len(), 2 * 6, "a result is of a page and more here");
        assert!(recorder.fewest_moves(2) > 3);
        // SAFETY: as above.
        assert!(unsafe { recorder.record_launch("other", &[]) }.is_err());
    }
}
