//! The kernel's swap, as a baseline of oversubscribed memory: what it takes to push a page out and to
//! bring it back by touching it. Only where the machine has swap, and enough of it.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use gmm::{PAGE_SIZE, display_bytes};
use rustix::mm::{Advice, madvise};

use super::ordinary::{Ordinary, Pages};

/// Words of a page of the kernel's.
const SMALL_WORDS: usize = 4096 / 8;

/// How many pages of 2 MiB are swapped in one round.
const NR_PAGES: u64 = 8;

/// Memory that is swapped out and in.
pub(super) struct Swap {
    memory: Ordinary,
    round: u64,
}

/// What a page of 2 MiB takes, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PageTimes {
    pub(super) brought: f64,
    pub(super) pushed: f64,
}

/// Why there is no such baseline, in words.
pub(super) type Lack = String;

impl Swap {
    /// If there is swap for it.
    pub(super) fn find() -> anyhow::Result<Result<Self, Lack>> {
        let swaps = fs::read_to_string("/proc/swaps").context("/proc/swaps")?;
        let wanted = 2 * NR_PAGES * PAGE_SIZE;
        Ok(match free_bytes(&swaps)? {
            None => Err("this machine has no swap, so there is no baseline of it".to_owned()),
            Some(free) if free < wanted => Err(format!(
                "of the machine's swap {} are free, too little for a baseline of it",
                display_bytes(free)
            )),
            Some(_) => Ok(Self::new()?),
        })
    }

    fn new() -> anyhow::Result<Self> {
        Ok(Self { memory: Ordinary::new(NR_PAGES * PAGE_SIZE, Pages::Small)?, round: 0 })
    }

    /// Writes all of the memory, has the kernel push it out, and touches it again.
    #[expect(unsafe_code, reason = "advises the kernel")]
    pub(super) fn round(&mut self) -> anyhow::Result<PageTimes> {
        self.round += 1;
        let tag = self.round << 32;
        self.memory.iter_mut().zip(tag..).for_each(|(word, value)| *word = value);
        let (addr, len) = (self.memory.as_mut_ptr(), self.memory.len() * 8);
        let start = Instant::now();
        // SAFETY: the contents stay what they are.
        unsafe { madvise(addr.cast(), len, Advice::LinuxPageOut) }.context("madvise(PAGEOUT)")?;
        let pushed = start.elapsed().as_secs_f64();
        let (swapped, all) = (self.memory.swapped_bytes()?, len as u64);
        ensure!(
            swapped >= all / 10 * 9,
            "the kernel swapped out {} of {}: is the swap full?",
            display_bytes(swapped),
            display_bytes(all)
        );
        let start = Instant::now();
        let touched = self.memory.iter().step_by(SMALL_WORDS);
        let sum = touched.fold(0u64, |sum, word| sum.wrapping_add(*word));
        let brought = start.elapsed().as_secs_f64();
        std::hint::black_box(sum);
        let wrong = self.memory.iter().zip(tag..).position(|(word, wanted)| *word != wanted);
        ensure!(wrong.is_none(), "word {wrong:?} came back from swap with another value");
        let page = |seconds: f64| seconds / NR_PAGES as f64;
        Ok(PageTimes { brought: page(brought), pushed: page(pushed) })
    }
}

/// How much swap is free, by the text of `/proc/swaps`; `None` if there is none at all.
fn free_bytes(swaps: &str) -> anyhow::Result<Option<u64>> {
    let mut free = None;
    for line in swaps.lines().skip(1) {
        // A name may hold spaces; the last three are sizes in KiB and the priority.
        let mut from_behind = line.split_whitespace().rev().skip(1);
        let mut kib = || from_behind.next().and_then(|number| number.parse::<u64>().ok());
        let (used, size) = kib().zip(kib()).with_context(|| format!("/proc/swaps: {line}"))?;
        *free.get_or_insert(0) += size.saturating_sub(used) << 10;
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_found_where_there_is_some() {
        let none = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert_eq!(free_bytes(none).unwrap(), None);
        let two = format!(
            "{none}/dev/dm-1      partition\t2097152\t\t1048576\t\t-2\n/swap file   file\t100\t100\t-3\n"
        );
        assert_eq!(free_bytes(&two).unwrap(), Some(1 << 30));
        assert!(free_bytes(&format!("{none}/dev/dm-1 partition\n")).is_err());
    }

    /// Whatever this machine has: a baseline that works, or none and the reason.
    #[test]
    fn pages_come_back_from_swap_or_it_says_why_not() {
        match Swap::find().unwrap() {
            Ok(mut swap) => {
                let times = swap.round().unwrap();
                assert!(times.brought > 0.0 && times.pushed > 0.0);
            }
            Err(lack) => {
                assert!(lack.contains("swap"), "{lack}");
                // Measured all the same, it is noticed that nothing was swapped out.
                let swaps = fs::read_to_string("/proc/swaps").unwrap();
                if free_bytes(&swaps).unwrap().is_none() {
                    let error = Swap::new().unwrap().round().unwrap_err().to_string();
                    assert!(error.contains("swapped out 0"), "{error}");
                }
            }
        }
    }
}
