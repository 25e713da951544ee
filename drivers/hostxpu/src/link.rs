//! The modelled link between host memory and the XPU: how long a copy takes when the lab's knobs
//! say so. Off by default, and then a copy takes as long as it takes.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use gmm_core::PAGE_SIZE;

use crate::HostXpuConfig;

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Into the XPU's memory.
    In = 0,
    /// Out of it.
    Out = 1,
}

/// A link that copies share: each direction (or both together, half duplex) sends one page after
/// the other.
#[derive(Debug)]
pub(crate) struct Link {
    page_time: Option<Duration>,
    latency: Duration,
    half_duplex: bool,
    start: Instant,
    /// When each direction will have sent what was given to it, since `start`.
    busy_until: Mutex<[Duration; 2]>,
}

impl Link {
    pub(crate) fn new(config: &HostXpuConfig) -> Self {
        Self {
            page_time: config
                .link_bandwidth
                .map(|bytes_per_s| Duration::from_secs_f64(PAGE_SIZE as f64 / bytes_per_s as f64)),
            latency: config.link_latency,
            half_duplex: config.half_duplex,
            start: Instant::now(),
            busy_until: Mutex::new([Duration::ZERO; 2]),
        }
    }

    /// Takes the link's time for so many bytes. `Some`: the copy may not complete before then.
    pub(crate) fn send(&self, direction: Direction, len_bytes: usize) -> Option<Instant> {
        if self.page_time.is_none() && self.latency.is_zero() {
            return None;
        }
        Some(self.start + self.reserve(direction, len_bytes, self.start.elapsed()))
    }

    fn reserve(&self, direction: Direction, len_bytes: usize, now: Duration) -> Duration {
        let lane = if self.half_duplex { 0 } else { direction as usize };
        let mut busy_until = self.busy_until.lock().unwrap_or_else(|e| e.into_inner());
        let sent = busy_until[lane].max(now) + self.time_for(len_bytes);
        busy_until[lane] = sent;
        sent + self.latency
    }

    fn time_for(&self, len_bytes: usize) -> Duration {
        let page_time = self.page_time.unwrap_or_default();
        match len_bytes as u64 {
            PAGE_SIZE => page_time,
            part => page_time.mul_f64(part as f64 / PAGE_SIZE as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PAGE: usize = PAGE_SIZE as usize;

    fn link(half_duplex: bool) -> Link {
        let config = HostXpuConfig::new(PAGE_SIZE)
            .link_bandwidth(1000 * PAGE_SIZE)
            .link_latency(5 * MS)
            .half_duplex(half_duplex);
        Link::new(&config)
    }

    #[test]
    fn pages_of_one_direction_share_the_bandwidth() {
        let link = link(false);
        assert_eq!(link.reserve(Direction::In, PAGE, 10 * MS), 16 * MS);
        assert_eq!(link.reserve(Direction::In, PAGE, 10 * MS), 17 * MS);
        assert_eq!(link.reserve(Direction::Out, PAGE, 10 * MS), 16 * MS);
        assert_eq!(link.reserve(Direction::In, PAGE, 50 * MS), 56 * MS);
        assert_eq!(link.reserve(Direction::In, PAGE / 2, 60 * MS), 65 * MS + MS / 2);
    }

    #[test]
    fn half_duplex_shares_it_between_both() {
        let link = link(true);
        assert_eq!(link.reserve(Direction::In, PAGE, MS), 7 * MS);
        assert_eq!(link.reserve(Direction::Out, PAGE, MS), 8 * MS);
    }

    #[test]
    fn without_knobs_there_is_no_model() {
        let link = Link::new(&HostXpuConfig::new(PAGE_SIZE));
        assert_eq!(link.send(Direction::In, PAGE), None);
    }
}
