//! A deduplicating pipeline, in the manner of PARSEC's dedup: a stream is cut where its contents say
//! so, each chunk gets a block and a fingerprint; chunks that were seen go at once, new ones are packed
//! into blocks of their own, which are kept until the archive is written.

use std::collections::HashSet;

use super::heap::{Block, Heap};
use super::memory::Memory;
use super::random;

/// Chunks have 512 words on average, at least 64 and at most 2048.
const CUT_MASK: u64 = 511 << 32;
const LEAST_WORDS: usize = 64;
const MOST_WORDS: usize = 2048;

/// How many chunks are in each stage of the pipeline at a time.
const BATCH: usize = 512;

/// Packed chunks that are kept before the archive is written.
const KEPT: usize = 512;

/// A stream in which about half of what comes was there before, and words repeat.
pub(super) fn stream(len: usize) -> Vec<u64> {
    let piece = |nr: u64| (0..1024).map(move |word| random((nr << 20) | (word / 3)));
    let pieces = (0..)
        .map(|nr: u64| if random(nr).is_multiple_of(2) { random(nr) % (nr / 2 + 1) } else { nr });
    pieces.flat_map(piece).take(len).collect()
}

/// Where the first chunk of the stream ends.
fn cut(stream: &[u64]) -> usize {
    let mut gear = 0u64;
    let longest = stream.len().min(MOST_WORDS);
    for (nr, word) in stream[..longest].iter().enumerate() {
        gear = (gear << 1).wrapping_add(random(*word));
        if nr >= LEAST_WORDS && gear & CUT_MASK == 0 {
            return nr + 1;
        }
    }
    longest
}

fn fingerprint(chunk: &[u64]) -> u64 {
    let hash =
        |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    // 0 stands for an empty slot of the table.
    chunk.iter().fold(chunk.len() as u64, hash) | 1
}

/// Runs of equal words as the word and how many; says how many words that makes.
fn pack(chunk: &[u64], packed: &mut [u64]) -> usize {
    let mut len = 0;
    for run in chunk.chunk_by(|a, b| a == b) {
        packed[len] = run[0];
        packed[len + 1] = run.len() as u64;
        len += 2;
    }
    len
}

/// What the archive adds up to: each chunk's fingerprint, and its packed words where it is new.
struct Archive(u64);

impl Archive {
    fn add(&mut self, words: &[u64]) {
        self.0 = words.iter().fold(self.0, |sum, word| sum.rotate_left(7).wrapping_add(*word));
    }
}

pub(super) fn run<M: Memory>(heap: &mut Heap<M>, mut stream: &[u64]) -> anyhow::Result<u64> {
    // Open addressing, at most half full.
    let nr_slots = (2 * stream.len() / LEAST_WORDS).next_power_of_two();
    let table = heap.take(nr_slots)?;
    heap.words_mut(&table).fill(0);
    let (mut archive, mut kept) = (Archive(0), Vec::new());
    while !stream.is_empty() {
        let mut chunks = Vec::with_capacity(BATCH);
        while !stream.is_empty() && chunks.len() < BATCH {
            let (chunk, rest) = stream.split_at(cut(stream));
            let block = heap.take(chunk.len())?;
            heap.words_mut(&block).copy_from_slice(chunk);
            chunks.push(block);
            stream = rest;
        }
        for chunk in chunks {
            let print = fingerprint(heap.words(&chunk));
            archive.add(&[print]);
            if is_new(heap.words_mut(&table), print) {
                let packed = pack_block(heap, &chunk)?;
                archive.add(heap.words(&packed));
                kept.push(packed);
            }
            heap.give_back(chunk)?;
        }
        if kept.len() >= KEPT {
            kept.drain(..).try_for_each(|packed| heap.give_back(packed))?;
        }
    }
    kept.into_iter().try_for_each(|packed| heap.give_back(packed))?;
    heap.give_back(table)?;
    Ok(archive.0)
}

/// Enters a fingerprint, if it is not there.
fn is_new(table: &mut [u64], print: u64) -> bool {
    let mask = table.len() - 1;
    let mut slot = (print >> 8) as usize & mask;
    while table[slot] != 0 {
        if table[slot] == print {
            return false;
        }
        slot = (slot + 1) & mask;
    }
    table[slot] = print;
    true
}

/// A block as long as the packed chunk, by way of one that is long enough whatever comes out.
fn pack_block<M: Memory>(heap: &mut Heap<M>, chunk: &Block) -> anyhow::Result<Block> {
    let scratch = heap.take(2 * chunk.len())?;
    let mut words = [0; 2 * MOST_WORDS];
    let len = pack(heap.words(chunk), &mut words);
    heap.words_mut(&scratch)[..len].copy_from_slice(&words[..len]);
    let packed = heap.take(len)?;
    heap.copy(&scratch, &packed, len);
    heap.give_back(scratch)?;
    Ok(packed)
}

/// The same with the standard library's collections.
pub(super) fn reference(mut stream: &[u64]) -> u64 {
    let (mut archive, mut seen) = (Archive(0), HashSet::new());
    while !stream.is_empty() {
        let (chunk, rest) = stream.split_at(cut(stream));
        let print = fingerprint(chunk);
        archive.add(&[print]);
        if seen.insert(print) {
            let mut packed = vec![0; 2 * chunk.len()];
            let len = pack(chunk, &mut packed);
            archive.add(&packed[..len]);
        }
        stream = rest;
    }
    archive.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_cut_by_their_contents_and_many_are_seen_again() {
        let stream = stream(1 << 20);
        let (mut rest, mut lengths, mut seen) = (&stream[..], Vec::new(), HashSet::new());
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(cut(rest));
            seen.insert(fingerprint(chunk));
            lengths.push(chunk.len());
            rest = after;
        }
        assert!(
            lengths[..lengths.len() - 1].iter().all(|len| (LEAST_WORDS..=MOST_WORDS).contains(len))
        );
        let (mean, new) = (stream.len() / lengths.len(), seen.len() * 100 / lengths.len());
        assert!((200..1000).contains(&mean), "chunks have {mean} words on average");
        assert!((30..90).contains(&new), "{new}% of the chunks are new");
        // What is cut does not depend on what came before the chunk.
        assert_eq!(cut(&stream[lengths[0]..]), lengths[1]);
    }

    #[test]
    fn packing_keeps_all() {
        let chunk: Vec<u64> = (0..100).map(|nr| nr / 7).collect();
        let mut packed = vec![0; 200];
        let len = pack(&chunk, &mut packed);
        let unpacked = packed[..len].chunks(2).flat_map(|run| vec![run[0]; run[1] as usize]);
        assert_eq!(unpacked.collect::<Vec<_>>(), chunk);
        assert_eq!(len, 2 * 15);
    }
}
