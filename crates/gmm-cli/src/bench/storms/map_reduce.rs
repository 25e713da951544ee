//! Map-reduce over text: where each word stands. Each part of the text is mapped to a table of its own,
//! with a growing list of places for each word; then the tables are reduced to one, list by list.

use std::collections::HashMap;

use super::heap::{Block, Heap};
use super::memory::Memory;
use super::random;

/// How many parts the text has.
const NR_PARTS: usize = 8;

/// Words of a table's slot: the word of the text in two, its list as a number, and how long that is.
const SLOT: usize = 4;

/// How many different words there are.
const VOCABULARY: u64 = 8192;

/// Lists begin with room for so many places.
const FIRST_PLACES: usize = 4;

/// Words of 2 to 12 letters, those with low numbers far more often, as in natural text.
pub(super) fn text(len: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(len + 16);
    for nr in 0u64.. {
        if text.len() >= len {
            break;
        }
        // The logarithm of the rank is even, as under Zipf's law.
        let share = random(nr) as f64 / u64::MAX as f64;
        let rank = (VOCABULARY as f64).powf(share) as u64;
        let mut letters = random(rank << 32);
        for _ in 0..2 + letters % 11 {
            text.push(b'a' + (letters % 26) as u8);
            letters = random(letters);
        }
        text.push(b' ');
    }
    text
}

/// The words of the text, each as two numbers, with their places; one split by an end counts as two.
fn words(text: &[u8]) -> impl Iterator<Item = ([u64; 2], u64)> {
    let mut at = 0;
    text.split(|letter| *letter == b' ').filter_map(move |word| {
        let place = at;
        at += word.len() as u64 + 1;
        let mut key = [0; 16];
        let len = word.len().min(16);
        key[..len].copy_from_slice(&word[..len]);
        let [low, high] = [0, 8].map(|from| {
            key[from..from + 8].iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
        });
        (len > 0).then_some(([low, high], place))
    })
}

/// The parts of the text, each with the place of its first letter.
fn parts(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let len = text.len().div_ceil(NR_PARTS).max(1);
    text.chunks(len).enumerate().map(move |(nr, part)| ((nr * len) as u64, part))
}

/// What an index adds up to, in whatever order its words come.
fn add(sum: u64, word: [u64; 2], places: impl Iterator<Item = u64>) -> u64 {
    let start = random(word[0] ^ word[1].rotate_left(32));
    sum.wrapping_add(
        places.fold(start, |sum, place| sum.rotate_left(3).wrapping_add(random(place))),
    )
}

/// An open-addressed table in a heap.
struct Table {
    slots: Block,
}

impl Table {
    fn new<M: Memory>(heap: &mut Heap<M>) -> anyhow::Result<Self> {
        let nr_slots = 2 * VOCABULARY as usize + 4 * NR_PARTS;
        let slots = heap.take(nr_slots.next_power_of_two() * SLOT)?;
        heap.words_mut(&slots).fill(0);
        Ok(Self { slots })
    }

    /// Where the word's slot begins; a free one if it is not there.
    fn find(slots: &[u64], word: [u64; 2]) -> usize {
        let mask = slots.len() / SLOT - 1;
        let mut slot = random(word[0] ^ word[1].rotate_left(32)) as usize & mask;
        while slots[slot * SLOT] != 0 && slots[slot * SLOT..][..2] != word {
            slot = (slot + 1) & mask;
        }
        slot * SLOT
    }

    /// Adds places to a word's list, which moves to a block twice as long where it is full.
    fn append<M: Memory>(
        &self,
        heap: &mut Heap<M>,
        word: [u64; 2],
        places: &[u64],
    ) -> anyhow::Result<()> {
        let at = Self::find(heap.words(&self.slots), word);
        let [first, second, list, len] = self.slot(heap, at);
        let wanted = len as usize + places.len();
        let mut list = if first == 0 {
            heap.take(wanted.max(FIRST_PLACES))?
        } else {
            debug_assert_eq!([first, second], word);
            Block::from_word(list)
        };
        if list.len() < wanted {
            let longer = heap.take(wanted.max(2 * list.len()))?;
            heap.copy(&list, &longer, len as usize);
            heap.give_back(list)?;
            list = longer;
        }
        heap.words_mut(&list)[len as usize..wanted].copy_from_slice(places);
        let slot = [word[0], word[1], list.into_word(), wanted as u64];
        heap.words_mut(&self.slots)[at..][..SLOT].copy_from_slice(&slot);
        Ok(())
    }

    fn slot<M: Memory>(&self, heap: &Heap<M>, at: usize) -> [u64; SLOT] {
        std::array::from_fn(|nr| heap.words(&self.slots)[at + nr])
    }

    /// Gives back the table; `visit` is given each word's list before that goes too.
    fn drain<M: Memory>(
        self,
        heap: &mut Heap<M>,
        mut visit: impl FnMut(&mut Heap<M>, [u64; 2], &[u64]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut places = Vec::new();
        for at in (0..self.slots.len()).step_by(SLOT) {
            let [first, second, list, len] = self.slot(heap, at);
            if first != 0 {
                let list = Block::from_word(list);
                places.clear();
                places.extend_from_slice(&heap.words(&list)[..len as usize]);
                visit(heap, [first, second], &places)?;
                heap.give_back(list)?;
            }
        }
        heap.give_back(self.slots)
    }
}

pub(super) fn run<M: Memory>(heap: &mut Heap<M>, text: &[u8]) -> anyhow::Result<u64> {
    let mut tables = Vec::new();
    for (first, part) in parts(text) {
        let table = Table::new(heap)?;
        for (word, place) in words(part) {
            table.append(heap, word, &[first + place])?;
        }
        tables.push(table);
    }
    let all = Table::new(heap)?;
    for table in tables {
        table.drain(heap, |heap, word, places| all.append(heap, word, places))?;
    }
    let mut sum = 0;
    all.drain(heap, |_, word, places| {
        sum = add(sum, word, places.iter().copied());
        Ok(())
    })?;
    Ok(sum)
}

/// The same with the standard library's collections.
pub(super) fn reference(text: &[u8]) -> u64 {
    let mut index: HashMap<[u64; 2], Vec<u64>> = HashMap::new();
    for (first, part) in parts(text) {
        for (word, place) in words(part) {
            index.entry(word).or_default().push(first + place);
        }
    }
    index.into_iter().fold(0, |sum, (word, places)| add(sum, word, places.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_places() {
        let key = |word: &str| words(word.as_bytes()).next().unwrap().0;
        let found: Vec<_> = words(b"an apple  an").collect();
        assert_eq!(found, [(key("an"), 0), (key("apple"), 3), (key("an"), 10)]);
        assert_ne!(key("abcdefghij"), key("abcdefghik"));
    }

    #[test]
    fn few_words_are_most_of_the_text() {
        let text = text(200_000);
        let mut counts: HashMap<_, usize> = HashMap::new();
        words(&text).for_each(|(word, _)| *counts.entry(word).or_default() += 1);
        let mut counts: Vec<_> = counts.into_values().collect();
        counts.sort_unstable();
        let (all, top): (usize, usize) = (counts.iter().sum(), counts.iter().rev().take(100).sum());
        assert!(counts.len() > 1000 && top * 3 > all, "{top} of {all}, {} words", counts.len());
    }

    #[test]
    fn a_sum_tells_a_place_that_is_missing_or_at_another_word() {
        let of = |text: &[u8]| reference(text);
        assert_ne!(of(b"an apple an"), of(b"an apple a"));
        assert_ne!(of(b"an apple an"), of(b"apple an an"));
    }
}
