//! What a context needs from the manager of its space. Production has one implementation, the
//! space itself; tests of this crate stand in for it.

use std::any::Any;
use std::sync::Arc;

use gmm_core::driver::Access;
use gmm_core::{PageRange, Processor, Resolved, Space, VirtAddr};

/// The manager, as one context sees it.
pub(crate) trait Manager: Send + Sync {
    /// Serves a fault; called on fault-handling threads.
    fn fault(&self, addr: VirtAddr, access: Access) -> gmm_core::Result<Resolved>;

    /// Brings pages that are about to be faulted on, announced before; `false` if there are none.
    /// Called on fault-handling threads that have no fault to serve.
    fn look_ahead(&self, announce: &dyn Fn(PageRange)) -> bool {
        let _ = announce;
        false
    }

    /// Makes pages resident and holds them until the value is dropped.
    fn hold(&self, ranges: &[PageRange]) -> gmm_core::Result<Box<dyn Any + Send>>;

    /// Whether an access that can't be served is reported to the kernel, which is prepared for
    /// it, instead of ending the context.
    #[cfg(test)]
    fn reports_refusals(&self) -> bool {
        false
    }

    /// The context has ended, or is about to be closed.
    fn detach(&self);
}

/// A processor of a space.
pub(crate) struct Attachment {
    pub(crate) space: Arc<Space>,
    pub(crate) processor: Arc<Processor>,
}

impl Manager for Attachment {
    fn fault(&self, addr: VirtAddr, access: Access) -> gmm_core::Result<Resolved> {
        self.space.fault(&self.processor, addr, access)
    }

    fn look_ahead(&self, announce: &dyn Fn(PageRange)) -> bool {
        self.space.look_ahead(&self.processor, announce)
    }

    fn hold(&self, ranges: &[PageRange]) -> gmm_core::Result<Box<dyn Any + Send>> {
        let hold = self.space.hold(&self.processor, ranges, Access::Write)?;
        Ok(Box::new(hold))
    }

    fn detach(&self) {
        self.space.detach(&self.processor);
    }
}
