//! Time per operation, nothing mapped but counted, as the number of live blocks grows.
//!
//! ```console
//! $ cargo run --release -p gmm-alloc --example speed
//! ```

use std::time::Instant;

use gmm_alloc::{Allocator, Caching, Heap, PureBackend, Stitching, StreamId};

const STREAM: StreamId = StreamId(0);

/// 16 TiB: room for a million blocks.
const FRAMES: u64 = 8 << 20;

/// How many pairs of a free and an allocation are timed.
const PAIRS: u64 = 200_000;

/// Numbers that look random, the same each time (xorshift, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Three in four up to 64 KiB, the others up to 4 MiB.
    fn size(&mut self) -> u64 {
        let limit = if self.next().is_multiple_of(4) { 4 << 20 } else { 64 << 10 };
        1 + self.next() % limit
    }
}

/// Nanoseconds per operation with `nr_live` blocks live.
fn time(mut allocator: Box<dyn Allocator>, nr_live: u64) -> f64 {
    let mut numbers = Numbers(0x2545_F491_4F6C_DD1D);
    let mut live = Vec::new();
    for _ in 0..nr_live {
        live.push(allocator.allocate(numbers.size(), STREAM).expect("there is room").block);
    }
    let mut pairs = |live: &mut Vec<_>, nr: u64| {
        for _ in 0..nr {
            let which = (numbers.next() % nr_live) as usize;
            allocator.free(live[which], STREAM).expect("it is live");
            live[which] = allocator.allocate(numbers.size(), STREAM).expect("there is room").block;
        }
    };
    // Until holes have the sizes that they keep.
    pairs(&mut live, nr_live.max(PAIRS));
    let begun = Instant::now();
    pairs(&mut live, PAIRS);
    begun.elapsed().as_nanos() as f64 / (2 * PAIRS) as f64
}

fn main() {
    println!("ns per operation{:>16}{:>12}{:>12}", "stitching", "pytorch", "best-fit");
    for nr_live in [1_000, 10_000, 100_000, 1_000_000] {
        let backend = || PureBackend::new(FRAMES);
        println!(
            "{nr_live:>9} live blocks{:>13.0}{:>12.0}{:>12.0}",
            time(Box::new(Stitching::new(backend())), nr_live),
            time(Box::new(Caching::new(backend())), nr_live),
            time(Box::new(Heap::best_fit(backend())), nr_live),
        );
    }
}
