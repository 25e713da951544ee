//! Data that an XPU touches with `touch_timed` or `touch_paced`, and the CPU afterwards: what each
//! word must hold then. A page whose copy went wrong anywhere is noticed.

use std::time::{Duration, Instant};

use anyhow::ensure;
use gmm::{Gmm, Kernel, PAGE_SIZE, Stream, Unified};
use gmm_kernels::stress::TOUCH_STRIDE_BYTES;

use super::options::Kernels;

/// Words of a page.
pub(super) const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// Words from one touch to the next.
const TOUCH_STRIDE_WORDS: usize = TOUCH_STRIDE_BYTES / 8;

/// Memory that one core of an XPU and one thread of the CPU touch in turn, in order.
pub(super) struct Touched {
    data: Unified<u64>,
    /// Nanoseconds that each page's touches took on the XPU.
    times: Unified<u64>,
    stream: Stream,
    touch: Kernel,
}

impl Touched {
    pub(super) fn new(gmm: &Gmm, nr_pages: usize, kernels: &Kernels) -> anyhow::Result<Self> {
        let xpu = gmm.xpu(1)?;
        let mut touched = Self {
            data: gmm.mmap_named(nr_pages * PAGE_WORDS, "bench data")?,
            times: gmm.mmap_named(nr_pages, "bench times")?,
            stream: xpu.stream()?,
            touch: xpu.load(&kernels.kernels)?.kernel("touch_paced")?,
        };
        fill(&mut touched.data);
        Ok(touched)
    }

    /// The XPU writes a word in each 4 KiB, so that every page moves there, and rests before each page;
    /// says how long each took, in seconds, rests left out.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    pub(super) fn on_xpu(&mut self, pause: Duration) -> anyhow::Result<Vec<f64>> {
        let order = std::ptr::null::<u64>();
        let (data, len) = (self.data.as_mut_ptr(), self.data.len_bytes());
        let pause_us = u64::try_from(pause.as_micros())?;
        let args = (data, len, self.times.as_mut_ptr(), order, pause_us);
        // SAFETY: the buffers are as long as the kernel is told, and are ours until it is done.
        unsafe { self.stream.launch(&self.touch, 1, args)?.wait()? };
        Ok(self.times.iter().map(|&ns| ns as f64 * 1e-9).collect())
    }

    /// The CPU reads a word in each 4 KiB, so that every page moves back; as [`Touched::on_xpu`].
    pub(super) fn on_cpu(&self, pause: Duration) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::with_capacity(self.times.len());
        for (nr, words) in (0..).zip(self.data.chunks(PAGE_WORDS)) {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            let sum = touch(words);
            times.push(start.elapsed().as_secs_f64());
            check_sum(nr, sum)?;
        }
        Ok(times)
    }

    /// Makes sure that every word is what it must be.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        check_all(&self.data)
    }
}

/// Fills the data before the first touch.
pub(super) fn fill(data: &mut [u64]) {
    data.iter_mut().enumerate().for_each(|(nr, word)| *word = pattern(nr));
}

fn pattern(nr: usize) -> u64 {
    (nr as u64 ^ 3).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Reads a word in each 4 KiB of a page: the sum of them.
pub(super) fn touch(page: &[u64]) -> u64 {
    page.iter().step_by(TOUCH_STRIDE_WORDS).fold(0u64, |sum, word| sum.wrapping_add(*word))
}

/// Makes sure that the sum is that of what the XPU has written in page `nr`: the offset of each word.
pub(super) fn check_sum(nr: u64, sum: u64) -> anyhow::Result<()> {
    let offsets = (nr * PAGE_SIZE..(nr + 1) * PAGE_SIZE).step_by(TOUCH_STRIDE_BYTES);
    let wanted = offsets.fold(0u64, u64::wrapping_add);
    ensure!(sum == wanted, "page {nr} holds words that add up to {sum}, not {wanted}");
    Ok(())
}

/// Makes sure that every word is what it was at first, or what the XPU has written.
pub(super) fn check_all(data: &[u64]) -> anyhow::Result<()> {
    for (nr, &word) in data.iter().enumerate() {
        let touched = nr.is_multiple_of(TOUCH_STRIDE_WORDS);
        let wanted = if touched { nr as u64 * 8 } else { pattern(nr) };
        ensure!(word == wanted, "word {nr} is {word:#x}, not {wanted:#x}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmm_kernels::{Item, stress};

    #[test]
    fn what_the_kernel_wrote_passes_and_any_other_word_does_not() {
        let mut data = vec![0; 2 * PAGE_WORDS];
        fill(&mut data);
        let (mut times, len) = ([0; 2], data.len() * 8);
        let (base, times, order) = (data.as_mut_ptr().cast(), times.as_mut_ptr(), std::ptr::null());
        // SAFETY: the arrays are ours and as long as that.
        unsafe { stress::touch_timed(Item::new(0, 1), base, len, times, order) };
        check_all(&data).unwrap();
        for nr in 0..2 {
            check_sum(nr, touch(&data[nr as usize * PAGE_WORDS..][..PAGE_WORDS])).unwrap();
        }
        assert!(check_sum(0, touch(&data[PAGE_WORDS..])).is_err());
        data[PAGE_WORDS + 1] ^= 1;
        assert!(check_all(&data).is_err());
    }
}
