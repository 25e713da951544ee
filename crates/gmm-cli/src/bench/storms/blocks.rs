//! Large blocks, taken, filled and given back in no order, as by programs whose buffers come and go.

use anyhow::ensure;

use super::heap::Heap;
use super::memory::{Memory, PAGE_WORDS};
use super::random;

/// How many blocks a run takes.
const NR_BLOCKS: u64 = 48;

/// How many are there at a time, at most.
const LIVE: usize = 3;

/// Takes, fills, reads and gives back; the result is a sum over all that was read.
pub(super) fn run<M: Memory>(heap: &mut Heap<M>) -> anyhow::Result<u64> {
    let mut live = Vec::new();
    let mut sum = 0u64;
    for nr in 0..NR_BLOCKS {
        let dice = random(nr);
        if live.len() == LIVE {
            let (tag, block) = live.swap_remove(dice as usize % LIVE);
            sum = sum.rotate_left(5).wrapping_add(check(heap.words(&block), tag)?);
            heap.give_back(block)?;
        }
        // From a half to two and a half pages, so that some share one.
        let len = PAGE_WORDS / 2 + (dice >> 32) as usize % (2 * PAGE_WORDS);
        let block = heap.take(len)?;
        heap.words_mut(&block).iter_mut().zip(0u64..).for_each(|(word, nr)| *word = nr ^ dice);
        live.push((dice, block));
    }
    for (tag, block) in live {
        sum = sum.rotate_left(5).wrapping_add(check(heap.words(&block), tag)?);
        heap.give_back(block)?;
    }
    Ok(sum)
}

/// The sum of the words, once each is what was written.
fn check(words: &[u64], tag: u64) -> anyhow::Result<u64> {
    let (mut sum, mut wrong) = (0u64, 0u64);
    for (word, nr) in words.iter().zip(0u64..) {
        sum = sum.wrapping_add(*word);
        wrong |= *word ^ nr ^ tag;
    }
    ensure!(wrong == 0, "a block of {} words does not hold what was written", words.len());
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_wrong_is_noticed() {
        let mut words: Vec<u64> = (0..1000).map(|nr| nr ^ 77).collect();
        check(&words, 77).unwrap();
        words[500] ^= 1 << 40;
        assert!(check(&words, 77).is_err());
    }
}
