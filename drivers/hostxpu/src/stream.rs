//! Streams: launches in order. Those of different streams run at the same time.

use std::sync::{Arc, Mutex};

use gmm_core::PageRange;

use crate::launch::{Launch, Order, Record};
use crate::manager::Manager;
use crate::module::Kernel;
use crate::shared::Shared;
use crate::{Error, KernelArgs};

/// A queue of launches on one context.
pub struct Stream {
    pub(crate) shared: Arc<Shared>,
    pub(crate) manager: Arc<dyn Manager>,
    last: Mutex<Option<Arc<Record>>>,
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, manager: Arc<dyn Manager>) -> Self {
        Self { shared, manager, last: Mutex::new(None) }
    }

    /// Has the XPU call `kernel` once for each index below `grid`, in any order, on all its
    /// cores, when the launches given to this stream before have completed. Returns when that is
    /// queued; if 64 launches are queued already it waits for one of them.
    ///
    /// Where the XPU's faults can't be replayed, `held` names all the unified memory that the
    /// kernel uses: it is made resident first, and held until the launch has completed. If it
    /// does not fit beside what earlier launches of the context hold, this waits for them. Where
    /// they can, `held` may be empty.
    ///
    /// # Safety
    /// As on every accelerator, nothing checks the kernel against its arguments:
    /// - the kernel is `unsafe extern "C" fn(index: u64, count: u64, args: *const u64)` and `args`
    ///   are the words it expects;
    /// - what it accesses it may access, and no other processor accesses at the same time what
    ///   it writes, until the launch has been waited for;
    /// - it does not unmap, remap or protect addresses of the window, and leaves signal handlers,
    ///   alternate stacks and descriptor 0 of its process alone.
    ///
    /// # Errors
    /// [`Error::EmptyGrid`], [`Error::ForeignKernel`], [`Error::ContextDead`]; those of
    /// [`Space::hold`](gmm_core::Space::hold).
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: u64,
        args: impl KernelArgs,
        held: &[PageRange],
    ) -> Result<Launch, Error> {
        if !Arc::ptr_eq(&self.shared, &kernel.shared) {
            return Err(Error::ForeignKernel { kernel: kernel.name.clone() });
        }
        if grid == 0 {
            return Err(Error::EmptyGrid { kernel: kernel.name.clone() });
        }
        if self.shared.is_doomed() {
            return Err(Error::ContextDead(self.shared.death()));
        }
        let held = match held {
            [] => None,
            ranges => Some(self.shared.hold(&*self.manager, ranges)?),
        };
        let notify = held.is_some();
        let order =
            Order { kernel: kernel.nr, name: kernel.name.clone(), grid, args: args.words(), held };
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        let record = self.shared.submit(order, last.as_deref(), notify)?;
        *last = Some(record.clone());
        Ok(Launch { shared: self.shared.clone(), record })
    }

    /// The launch that was given to this stream last; none before the first. When it has completed
    /// so have all before it.
    pub fn last(&self) -> Option<Launch> {
        let last = self.last.lock().unwrap_or_else(|e| e.into_inner()).clone();
        last.map(|record| Launch { shared: self.shared.clone(), record })
    }

    /// Waits until all that was given to this stream has completed.
    ///
    /// # Errors
    /// [`Error::Launch`] if the context ended before.
    pub fn wait(&self) -> Result<(), Error> {
        self.last().map_or(Ok(()), |last| last.wait())
    }
}
