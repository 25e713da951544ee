//! The trace's ring under every interleaving of its two threads, and every reordering that the
//! memory model allows: `ci/loom.sh`.
#![cfg(loom)]

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../src/trace/ring.rs"]
mod ring;

use loom::sync::Arc;
use loom::thread;
use ring::Ring;

/// One more than the ring holds.
const NR_RECORDS: u64 = 3;

#[test]
fn records_come_out_whole_in_order_or_are_counted_as_dropped() {
    loom::model(|| {
        let ring = Arc::new(Ring::<2>::new(2));
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || (1..=NR_RECORDS).for_each(|n| ring.push(&[n, n * 10])))
        };
        let mut seen: Vec<_> = (0..2).filter_map(|_| ring.pop()).collect();
        producer.join().unwrap();
        seen.extend(core::iter::from_fn(|| ring.pop()));
        let whole = |[n, tenfold]: &[u64; 2]| (1..=NR_RECORDS).contains(n) && n * 10 == *tenfold;
        assert!(seen.iter().all(whole), "torn: {seen:?}");
        assert!(seen.is_sorted_by(|a, b| a[0] < b[0]) && seen.len() >= 2, "{seen:?}");
        assert_eq!(seen.len() as u64 + ring.dropped(), NR_RECORDS, "{seen:?}");
    });
}
