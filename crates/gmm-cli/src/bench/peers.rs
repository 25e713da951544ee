//! How others move the same bytes, for `gmm bench faults` to stand beside: through a bounce buffer, in
//! pieces of 4 KiB, and by a user-space pager.

use std::time::Duration;

use anyhow::ensure;
use gmm::{PAGE_SIZE, hostxpu::HostXpuConfig, hostxpu::MIN_FRAMES};

use super::distribution::Pairs;
use super::pager::Pager;
use super::raw::RawCopies;
use super::record::Record;

/// The smallest page of the hardware.
const SMALL_BYTES: u64 = 4096;

/// At most so many pages move in one repeat: some of these ways take ten times as long.
const MOST_PAGES: u64 = 8;

/// The ways, and what was measured.
pub(super) struct Peers {
    raw: RawCopies,
    nr_pages: u64,
    pager: Pager,
    small_pager: Pager,
    /// In the order of [`PEERS`].
    pairs: [Pairs; 4],
}

/// The direction, the case, and the peer's name.
const PEERS: [(&str, &str, &str); 4] = [
    ("to-xpu", "to-xpu-against-bounce", "copies through a bounce buffer"),
    ("to-xpu", "to-xpu-against-4k", "copies of 4 KiB pages, without their mappings"),
    ("to-cpu", "to-cpu-against-pager", "a user-space pager on UFFDIO_COPY, 2 MiB a fault"),
    ("to-cpu", "to-cpu-against-4k", "a user-space pager on UFFDIO_COPY, 4 KiB a fault"),
];

impl Peers {
    /// Ready to move as many as `nr_pages`, or fewer.
    pub(super) fn new(nr_pages: u64) -> anyhow::Result<Self> {
        let nr_pages = nr_pages.clamp(MIN_FRAMES, MOST_PAGES);
        let config = HostXpuConfig::new(nr_pages * PAGE_SIZE).cores(1).copy_engines(1);
        let raw = RawCopies::new(nr_pages, config)?;
        let words: Vec<u64> = (0..(nr_pages * PAGE_SIZE / 8) as usize).map(word).collect();
        raw.write(&words)?;
        Ok(Self {
            raw,
            nr_pages,
            pager: Pager::new(nr_pages, PAGE_SIZE)?,
            small_pager: Pager::new(nr_pages, SMALL_BYTES)?,
            pairs: Default::default(),
        })
    }

    /// Moves the bytes each way, and sets them beside the time that faults took for `of_pages`.
    pub(super) fn round(
        &mut self,
        to_xpu: Duration,
        to_cpu: Duration,
        of_pages: u64,
        counts: bool,
    ) -> anyhow::Result<()> {
        let times = [
            self.raw.in_pieces(PAGE_SIZE, true)?,
            self.raw.in_pieces(SMALL_BYTES, false)?,
            self.pager.touch_all(&self.raw, word)?,
            self.small_pager.touch_all(&self.raw, word)?,
        ];
        let share = self.nr_pages as f64 / of_pages as f64;
        for ((way, time), pairs) in PEERS.iter().zip(times).zip(&mut self.pairs) {
            let subject = if way.0 == "to-xpu" { to_xpu } else { to_cpu };
            if counts {
                pairs.push_seconds(subject.as_secs_f64() * share, time.as_secs_f64());
            }
        }
        Ok(())
    }

    /// What was measured, once the bytes are right.
    pub(super) fn records(self, parameter: &str) -> anyhow::Result<Vec<Record>> {
        let mut words = vec![0; (self.nr_pages * PAGE_SIZE / 8) as usize];
        for page in 0..self.nr_pages {
            let at = (page * PAGE_SIZE / 8) as usize;
            self.raw.read(page * PAGE_SIZE, &mut words[at..][..PAGE_SIZE as usize / 8])?;
        }
        let wrong = words.iter().enumerate().find(|(nr, got)| **got != word(*nr));
        ensure!(wrong.is_none(), "a copy left word {wrong:?} on the XPU");
        let bytes = self.nr_pages * PAGE_SIZE;
        let records = PEERS.iter().zip(self.pairs).map(|((_, case, name), pairs)| {
            pairs.record_of_bytes("faults", *case, parameter, name, bytes)
        });
        Ok(records.collect())
    }
}

/// What the `nr`-th word holds.
fn word(nr: usize) -> u64 {
    (nr as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}
