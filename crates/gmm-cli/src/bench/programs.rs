//! Small CPU programs that use memory in different ways, each on its share of the words of a buffer.
//! What they leave behind is a checksum, which is the same wherever the buffer lies.

use clap::ValueEnum;
use serde::Serialize;

/// What is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
pub(super) enum Program {
    /// Adds up all words, four times.
    Sum,
    /// Changes words at random places, a quarter as many as there are.
    Update,
    /// Sorts an eighth of the words.
    Sort,
    /// Puts rows in a hash table and looks up others: one in two is found.
    Join,
    /// Four sweeps of a three-point stencil from one half to the other and back.
    Stencil,
}

impl Program {
    pub(super) const ALL: [Self; 5] =
        [Self::Sum, Self::Update, Self::Sort, Self::Join, Self::Stencil];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Update => "update",
            Self::Sort => "sort",
            Self::Join => "join",
            Self::Stencil => "stencil",
        }
    }

    /// Runs on all of `memory`, a share a thread; the result is the sum of the shares' results.
    /// Each share has at least 64 words.
    pub(super) fn run(self, memory: &mut [u64], threads: usize) -> u64 {
        let share = memory.len().div_ceil(threads);
        if threads == 1 {
            return self.run_share(memory);
        }
        std::thread::scope(|scope| {
            let started: Vec<_> = memory
                .chunks_mut(share)
                .map(|words| scope.spawn(move || self.run_share(words)))
                .collect();
            started.into_iter().fold(0u64, |sum, thread| {
                let of_share =
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                sum.wrapping_add(of_share)
            })
        })
    }

    fn run_share(self, words: &mut [u64]) -> u64 {
        match self {
            Self::Sum => (0..4).fold(0, |sum: u64, _| {
                let words = std::hint::black_box(&*words);
                sum.wrapping_add(words.iter().fold(0, |sum, word| sum.wrapping_add(*word)))
            }),
            Self::Update => update(words),
            Self::Sort => {
                let len = words.len() / 8;
                words[..len].sort_unstable();
                words[len / 2]
            }
            Self::Join => join(words),
            Self::Stencil => stencil(words),
        }
    }
}

/// What a buffer holds before a program runs.
pub(super) fn prepare(memory: &mut [u64]) {
    memory.iter_mut().enumerate().for_each(|(nr, word)| *word = value(nr));
}

/// A number that depends on every word and its place.
pub(super) fn checksum(memory: &[u64]) -> u64 {
    memory.iter().fold(0u64, |sum, word| sum.rotate_left(5).wrapping_add(*word))
}

/// The finaliser of SplitMix64 (G. L. Steele et al., *Fast splittable pseudorandom number
/// generators*, 2014).
fn value(nr: usize) -> u64 {
    let x = (nr as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn place(hash: u64, len: usize) -> usize {
    ((u128::from(hash) * len as u128) >> 64) as usize
}

fn update(words: &mut [u64]) -> u64 {
    let len = words.len();
    for nr in 0..len / 4 {
        let hash = value(nr);
        words[place(hash, len)] ^= hash;
    }
    words[0]
}

/// The first half of the words is a table of keys and values, a quarter full; rows are in the second.
fn join(words: &mut [u64]) -> u64 {
    let half = words.len() / 2;
    let (table, rows) = words.split_at_mut(half);
    let nr_slots = half / 2;
    table.fill(0);
    let (build, probe) = (&rows[..nr_slots / 4], &rows[nr_slots / 8..nr_slots * 3 / 8]);
    let next = |slot: usize| if slot + 1 == nr_slots { 0 } else { slot + 1 };
    for row in build {
        let key = row | 1;
        let mut slot = place(key, nr_slots);
        while table[2 * slot] != 0 {
            slot = next(slot);
        }
        (table[2 * slot], table[2 * slot + 1]) = (key, *row);
    }
    let mut sum = 0u64;
    for row in probe {
        let key = row | 1;
        let mut slot = place(key, nr_slots);
        while table[2 * slot] != 0 && table[2 * slot] != key {
            slot = next(slot);
        }
        sum = sum.wrapping_add(table[2 * slot + 1]);
    }
    sum
}

fn stencil(words: &mut [u64]) -> u64 {
    let half = words.len() / 2;
    let (mut from, mut to) = words[..2 * half].split_at_mut(half);
    for _ in 0..4 {
        for (three, middle) in from.windows(3).zip(&mut to[1..]) {
            *middle = (three[0] >> 2).wrapping_add(three[1] >> 1).wrapping_add(three[2] >> 2);
        }
        (from, to) = (to, from);
    }
    from[half / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(len: usize) -> Vec<u64> {
        let mut memory = vec![0; len];
        prepare(&mut memory);
        memory
    }

    #[test]
    fn the_sum_is_that_of_all_words_four_times() {
        let mut memory = prepared(1000);
        let sum = memory.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        for threads in [1, 2, 3] {
            assert_eq!(Program::Sum.run(&mut memory, threads), sum.wrapping_mul(4));
        }
    }

    #[test]
    fn an_eighth_is_sorted_and_the_rest_is_left() {
        let mut memory = prepared(800);
        Program::Sort.run(&mut memory, 1);
        assert!(memory[..100].is_sorted());
        assert_eq!(memory[100..], prepared(800)[100..]);
    }

    #[test]
    fn a_join_finds_the_rows_that_are_in_both() {
        let mut memory = prepared(1024);
        let rows = prepared(1024)[512..].to_vec();
        // 256 slots: 64 rows are put in, and those from 32 on are looked up.
        let wanted = rows[32..64].iter().fold(0u64, |sum, row| sum.wrapping_add(*row));
        assert_eq!(Program::Join.run(&mut memory, 1), wanted);
    }

    #[test]
    fn updates_done_twice_undo_themselves() {
        let mut memory = prepared(1000);
        Program::Update.run(&mut memory, 2);
        assert_ne!(memory, prepared(1000));
        Program::Update.run(&mut memory, 2);
        assert_eq!(memory, prepared(1000));
    }

    #[test]
    fn a_stencil_smooths() {
        let mut memory = vec![0; 128];
        memory[32] = 1 << 40;
        Program::Stencil.run(&mut memory, 1);
        // Four sweeps of 1, 2, 1: the binomials of 8, over 256.
        let row: Vec<_> = memory[28..=36].iter().map(|word| word >> 32).collect();
        assert_eq!(row, [1, 8, 28, 56, 70, 56, 28, 8, 1]);
    }

    #[test]
    fn a_checksum_tells_a_wrong_word_and_a_wrong_place() {
        let memory = prepared(100);
        let mut wrong = memory.clone();
        wrong[50] ^= 1;
        assert_ne!(checksum(&memory), checksum(&wrong));
        let mut swapped = memory.clone();
        swapped.swap(3, 4);
        assert_ne!(checksum(&memory), checksum(&swapped));
    }
}
