//! What launches hold: pages that stay resident from before a launch is queued until it has
//! ended.
//!
//! A launch may not fit beside what earlier ones hold, though it is to run when they are done.
//! So a hold that fails for want of memory is tried again whenever one of them has ended; it has
//! failed when none is left.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gmm_core::PageRange;

use crate::manager::Manager;
use crate::shared::Shared;
use crate::{Error, wait};

/// The holds of one context.
#[derive(Default)]
pub(crate) struct Holders {
    /// Whoever holds this may make pages resident: two that did so at once might each get half
    /// of what they need.
    turn: Mutex<()>,
    /// How many there are.
    count: AtomicU32,
    /// Changes whenever one has ended.
    ended: AtomicU32,
}

/// Pages that a launch holds, until this is dropped.
pub(crate) struct Held {
    /// None only while this is being dropped.
    pages: Option<Box<dyn Any + Send>>,
    holders: Arc<Holders>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // In a user's thread, a signal handler that touched unified memory would wait for it.
        let _blocked = gmm_os::BlockedSignals::new();
        drop(self.pages.take());
        self.holders.count.fetch_sub(1, Ordering::SeqCst);
        wait::bump(&self.holders.ended);
    }
}

impl Holders {
    /// Makes pages resident and holds them. With an error comes how many held pages then.
    fn try_hold(
        self: &Arc<Self>,
        manager: &dyn Manager,
        ranges: &[PageRange],
    ) -> Result<Held, (gmm_core::Error, u32)> {
        let _blocked = gmm_os::BlockedSignals::new();
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let others = self.count.load(Ordering::SeqCst);
        let pages = manager.hold(ranges).map_err(|error| (error, others))?;
        self.count.fetch_add(1, Ordering::SeqCst);
        Ok(Held { pages: Some(pages), holders: self.clone() })
    }
}

impl Shared {
    /// Makes the pages that a launch names resident and holds them, waiting for earlier launches
    /// to end if they don't fit beside what those hold.
    pub(crate) fn hold(&self, manager: &dyn Manager, ranges: &[PageRange]) -> Result<Held, Error> {
        loop {
            let heard = self.holders.ended.load(Ordering::SeqCst);
            if self.is_doomed() {
                return Err(Error::ContextDead(self.death()));
            }
            match self.holders.try_hold(manager, ranges) {
                Ok(held) => return Ok(held),
                Err((gmm_core::Error::OutOfMemory(_), 1..)) => {}
                Err((error, _)) => return Err(error.into()),
            }
            self.reap();
            // The end of a context ends its launches, and so this wait.
            wait::sleep_while(&self.holders.ended, heard, Duration::from_secs(1));
        }
    }
}
