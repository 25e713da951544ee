//! A heap in a piece of memory: small blocks by size classes in runs of 64 KiB, larger ones as runs.
//! A page on which nothing is left goes back to where the memory came from. What the heap knows of its
//! blocks lies beside it, in ordinary memory.

use anyhow::Context as _;

use super::memory::{Memory, PAGE_WORDS};

/// Words of a run.
const RUN_WORDS: usize = (64 << 10) / 8;

const RUNS_PER_PAGE: usize = PAGE_WORDS / RUN_WORDS;

/// The least class, in words.
const LEAST_WORDS: usize = 4;

/// Classes double, from 4 words to half a run.
const NR_CLASSES: usize = (RUN_WORDS / LEAST_WORDS).trailing_zeros() as usize;

/// Words of a heap that are someone's, until he gives them back.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Block {
    start: usize,
    len: usize,
}

impl Block {
    /// As a number, to be kept in the heap itself.
    pub(super) fn into_word(self) -> u64 {
        (self.start as u64) << 32 | self.len as u64
    }

    /// What [`Block::into_word`] made, once.
    pub(super) fn from_word(word: u64) -> Self {
        Self { start: (word >> 32) as usize, len: (word & 0xFFFF_FFFF) as usize }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Run {
    Free,
    /// Part of a block of several.
    Large,
    /// Blocks of one class, some of them free.
    Small {
        class: usize,
        free: Vec<u16>,
        used: usize,
    },
}

pub(super) struct Heap<M> {
    memory: M,
    runs: Vec<Run>,
    /// How many runs of each page are in use.
    used_of_page: Vec<usize>,
    /// Of each class, runs that may have a free block.
    with_room: [Vec<usize>; NR_CLASSES],
    /// Where the search for free runs begins.
    next_run: usize,
    nr_taken: u64,
}

impl<M: Memory> Heap<M> {
    pub(super) fn new(memory: M) -> Self {
        let nr_runs = memory.len() / RUN_WORDS;
        Self {
            runs: vec![Run::Free; nr_runs],
            used_of_page: vec![0; nr_runs / RUNS_PER_PAGE],
            with_room: Default::default(),
            next_run: 0,
            nr_taken: 0,
            memory,
        }
    }

    /// A block of at least one word. What it holds is anything.
    pub(super) fn take(&mut self, len: usize) -> anyhow::Result<Block> {
        self.nr_taken += 1;
        if len > RUN_WORDS / 2 {
            let nr_runs = len.div_ceil(RUN_WORDS);
            let first = self.take_runs(nr_runs)?;
            self.runs[first..first + nr_runs].fill(Run::Large);
            return Ok(Block { start: first * RUN_WORDS, len });
        }
        let class = class_of(len);
        loop {
            let Some(&run) = self.with_room[class].last() else {
                let run = self.take_runs(1)?;
                let nr_blocks = RUN_WORDS / words_of(class);
                let free = (0..nr_blocks as u16).rev().collect();
                self.runs[run] = Run::Small { class, free, used: 0 };
                self.with_room[class].push(run);
                continue;
            };
            // A run that has become another's since is forgotten.
            match &mut self.runs[run] {
                Run::Small { class: of_run, free, used } if *of_run == class => {
                    if let Some(nr) = free.pop() {
                        *used += 1;
                        let start = run * RUN_WORDS + usize::from(nr) * words_of(class);
                        return Ok(Block { start, len });
                    }
                }
                _ => {}
            }
            self.with_room[class].pop();
        }
    }

    pub(super) fn give_back(&mut self, block: Block) -> anyhow::Result<()> {
        let run = block.start / RUN_WORDS;
        let Run::Small { class, free, used } = &mut self.runs[run] else {
            return self.give_back_runs(run, block.len.div_ceil(RUN_WORDS));
        };
        free.push((block.start % RUN_WORDS / words_of(*class)) as u16);
        *used -= 1;
        if *used == 0 {
            return self.give_back_runs(run, 1);
        }
        if free.len() == 1 {
            let class = *class;
            self.with_room[class].push(run);
        }
        Ok(())
    }

    pub(super) fn words(&self, block: &Block) -> &[u64] {
        &self.memory[block.start..][..block.len]
    }

    pub(super) fn words_mut(&mut self, block: &Block) -> &mut [u64] {
        &mut self.memory[block.start..][..block.len]
    }

    /// Copies the first words of one block to another.
    pub(super) fn copy(&mut self, from: &Block, to: &Block, len: usize) {
        assert!(len <= from.len && len <= to.len, "{len} words of {from:?} to {to:?}");
        self.memory.copy_within(from.start..from.start + len, to.start);
    }

    /// Whether all that was taken has been given back.
    pub(super) fn is_empty(&self) -> bool {
        self.used_of_page.iter().all(|used| *used == 0)
    }

    /// How many blocks were taken so far.
    pub(super) fn nr_taken(&self) -> u64 {
        self.nr_taken
    }

    /// Free runs in a row, from the start of a page if they fill one. The search goes on where the
    /// last one ended.
    fn take_runs(&mut self, nr_runs: usize) -> anyhow::Result<usize> {
        let step = if nr_runs >= RUNS_PER_PAGE { RUNS_PER_PAGE } else { 1 };
        let search = |from: usize, to: usize| {
            let fits = |first: usize| {
                let runs = self.runs.get(first..first + nr_runs);
                runs.is_some_and(|runs| runs.iter().all(|run| *run == Run::Free))
            };
            (from.next_multiple_of(step)..to).step_by(step).find(|&first| fits(first))
        };
        let first = search(self.next_run, self.runs.len()).or_else(|| search(0, self.next_run));
        let first = first.with_context(|| {
            let (all, used) = (self.runs.len(), self.used_of_page.iter().sum::<usize>());
            format!("{nr_runs} runs of 64 KiB in a row: {used} of the heap's {all} are in use")
        })?;
        self.next_run = first + nr_runs;
        for run in first..first + nr_runs {
            self.used_of_page[run / RUNS_PER_PAGE] += 1;
        }
        Ok(first)
    }

    fn give_back_runs(&mut self, first: usize, nr_runs: usize) -> anyhow::Result<()> {
        let runs = first..first + nr_runs;
        self.runs[runs.clone()].fill(Run::Free);
        for run in runs.clone() {
            self.used_of_page[run / RUNS_PER_PAGE] -= 1;
        }
        let pages = first / RUNS_PER_PAGE..(runs.end - 1) / RUNS_PER_PAGE + 1;
        // Side by side in one call: only the outer pages can be in use by others.
        let (mut start, mut end) = (pages.start, pages.end);
        if self.used_of_page[start] > 0 {
            start += 1;
        }
        if end > start && self.used_of_page[end - 1] > 0 {
            end -= 1;
        }
        if start < end { self.memory.give_back(start..end) } else { Ok(()) }
    }
}

fn class_of(len: usize) -> usize {
    (len.div_ceil(LEAST_WORDS).max(1).next_power_of_two().trailing_zeros()) as usize
}

fn words_of(class: usize) -> usize {
    LEAST_WORDS << class
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::memory::InOrdinary;
    use super::super::random;
    use super::*;

    #[test]
    fn classes_hold_what_they_are_for() {
        for len in 1..=RUN_WORDS / 2 {
            let class = class_of(len);
            assert!(class < NR_CLASSES && words_of(class) >= len);
            assert!(class == 0 || words_of(class - 1) < len);
        }
    }

    #[test]
    fn blocks_never_overlap_keep_their_words_and_leave_nothing() {
        let mut heap = Heap::new(InOrdinary::new(16 << 20).unwrap());
        let mut live: BTreeMap<u64, Block> = BTreeMap::new();
        for step in 0..20_000 {
            let dice = random(step);
            if live.len() < 40 + (step as usize / 50) % 200 {
                let longest = [8, 100, 3000, 20_000, 300_000][(dice % 5) as usize];
                let len = 1 + (dice >> 8) as usize % longest;
                // A full heap says so, and takes nothing.
                if let Ok(block) = heap.take(len) {
                    heap.words_mut(&block).fill(step);
                    live.insert(step, block);
                }
            } else if let Some(tag) = live.keys().nth(dice as usize % live.len()).copied() {
                let block = Block::from_word(live.remove(&tag).unwrap().into_word());
                assert!(heap.words(&block).iter().all(|word| *word == tag), "block {tag}");
                heap.give_back(block).unwrap();
            }
        }
        assert!(!heap.is_empty());
        for (tag, block) in live {
            assert!(heap.words(&block).iter().all(|word| *word == tag), "block {tag}");
            heap.give_back(block).unwrap();
        }
        assert!(heap.is_empty());
        // Pages that nobody has are the kernel's again.
        assert!(heap.memory.iter().all(|word| *word == 0));
    }
}
