//! Reclaim off the fault path: a loop that keeps some frames of a node free, so that most faults
//! find one, and in idle time launders (`launder.rs`).
//!
//! The core makes no thread: whoever wants this runs the loop on one of his. Nothing wakes up
//! when nothing happens; see `node/watermarks.rs`.

use crate::node::{Node, Rest, Task};
use crate::reclaim::Round;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{NodeId, Result};

/// Ends background loops: see [`Space::stop_background`].
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// One that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Space {
    /// Keeps frames of `node` free until `stop` is set: sleeps without a timeout until fewer than
    /// [`Config::low_watermark`](crate::Config::low_watermark) are free and the device has no
    /// more, then evicts until [`Config::high_watermark`](crate::Config::high_watermark) are.
    /// When nothing has happened on the full node for
    /// [`Config::launder_after`](crate::Config::launder_after) it launders. Returns at once if
    /// another thread does this already. Does not allocate; the thread must have its signals
    /// blocked, as one that serves faults.
    ///
    /// # Errors
    /// [`Error::UnknownNode`](crate::Error::UnknownNode).
    pub fn reclaim_in_background(&self, node: NodeId, stop: &Stop) -> Result<()> {
        let node = self.node(node)?;
        if !node.become_reclaimer() {
            return Ok(());
        }
        let mut rest = Rest::default();
        let after = self.config.launder_after;
        while let Some(task) = node.next_task(&mut rest, stop, &*self.clock, after) {
            match task {
                Task::Reclaim { nr_frames } => {
                    rest.futile = self.refill(node, nr_frames) == 0;
                }
                Task::Launder { activity } => {
                    let interrupted = || stop.is_set() || node.is_active_since(activity);
                    self.launder_node(node, interrupted);
                    rest.laundered = activity;
                }
            }
        }
        Ok(())
    }

    /// Has every loop that was started with `stop` return soon: after the batch that it is at
    /// work on.
    pub fn stop_background(&self, stop: &Stop) {
        stop.0.store(true, Ordering::SeqCst);
        self.nodes().for_each(Node::wake_reclaimer);
    }

    /// What the loop does once, on this thread: if fewer frames of `node` are free than
    /// [`Config::low_watermark`](crate::Config::low_watermark), evicts up to the high one, as far
    /// as pages can go. For simulations and tests.
    ///
    /// # Errors
    /// [`Error::UnknownNode`](crate::Error::UnknownNode).
    pub fn reclaim_now(&self, node: NodeId) -> Result<()> {
        let node = self.node(node)?;
        let mut nr_frames = node.shortfall();
        while nr_frames > 0 {
            match self.refill(node, nr_frames) {
                0 => break,
                evicted => nr_frames = nr_frames.saturating_sub(evicted),
            }
        }
        Ok(())
    }

    /// Evicts up to `nr_frames` pages, as one batch; says how many.
    fn refill(&self, node: &Node, nr_frames: u32) -> u32 {
        match self.reclaim(node, nr_frames) {
            // The frame that it gets goes to the free list, where the others are.
            Round::Got { nr_pages, .. } => nr_pages,
            Round::Busy { .. } | Round::Nothing { .. } => 0,
        }
    }
}
