//! Data that an XPU touches with `touch_timed` or `touch_paced`, and the CPU afterwards: what each
//! word must hold then. A page whose copy went wrong anywhere is noticed.

use anyhow::ensure;
use gmm::PAGE_SIZE;
use gmm_kernels::stress::TOUCH_STRIDE_BYTES;

/// Words of a page.
pub(super) const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// Words from one touch to the next.
const TOUCH_STRIDE_WORDS: usize = TOUCH_STRIDE_BYTES / 8;

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
