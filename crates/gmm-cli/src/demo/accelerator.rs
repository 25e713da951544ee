//! What the demo needs of a machine: memory that every processor can use, and something that runs
//! kernels.

use std::ops::{Deref, DerefMut};

use anyhow::Result;
use gmm_kernels::Word;

use super::memory::MemoryUse;

/// A run of unified memory. It begins on a page and reads as zeros at first; the CPU uses it as a slice,
/// a kernel by address.
pub struct Unified(Box<dyn DerefMut<Target = [u8]>>);

impl Unified {
    /// Takes over what holds the memory. Its bytes must stay at the same address.
    pub fn new(memory: impl DerefMut<Target = [u8]> + 'static) -> Self {
        Self(Box::new(memory))
    }

    /// The address of byte `offset`, for the arguments of a launch.
    ///
    /// # Panics
    /// If `offset` is past the end.
    pub fn address(&mut self, offset: usize) -> u64 {
        self.0[offset..].as_mut_ptr().into_word()
    }

    /// A copy of elements `start .. start + len` of the memory taken as an array of `f32`.
    ///
    /// # Panics
    /// If they reach past the end.
    pub fn f32s(&self, start: usize, len: usize) -> Vec<f32> {
        let bytes = &self.0[start * size_of::<f32>()..][..len * size_of::<f32>()];
        let words = bytes.as_chunks().0;
        words.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    }
}

impl Deref for Unified {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Unified {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A machine with unified memory that runs the kernels of `gmm-kernels`.
pub trait Accelerator {
    /// Unified memory for `len_bytes` bytes, which must not be 0. `name` appears in reports.
    ///
    /// # Errors
    /// If there is no such amount of memory.
    fn alloc(&self, name: &str, len_bytes: usize) -> Result<Unified>;

    /// Runs `kernel` as `nr_items` work items and returns when all of them are done.
    ///
    /// # Errors
    /// If there is no such kernel, or it failed, or its memory could not be served.
    ///
    /// # Safety
    /// The arguments keep the promises that the kernel's documentation asks for, until this returns.
    unsafe fn launch(&self, kernel: &str, nr_items: u64, args: &[u64]) -> Result<()>;

    /// What has become of the memory so far.
    ///
    /// # Errors
    /// If the manager can't be asked.
    fn memory(&self) -> Result<MemoryUse>;
}
