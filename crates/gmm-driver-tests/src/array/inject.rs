//! Making driver calls fail: which call, and how.

use gmm_core::driver::DriverError;

/// A kind of driver call. Each element of a batch of enters or clears counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `Device::import`.
    Import,
    /// `Device::submit`.
    Submit,
    /// `Device::wait`.
    Wait,
    /// One element of `Mmu::pmap_enter`.
    Enter,
    /// One element of `Mmu::pmap_clear`.
    Clear,
    /// `Mmu::va_examine`.
    Examine,
    /// `Mmu::revalidate`.
    Revalidate,
}

impl Call {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Import,
        Self::Submit,
        Self::Wait,
        Self::Enter,
        Self::Clear,
        Self::Examine,
        Self::Revalidate,
    ];
}

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// With this error; a `wait` that fails leaves rubbish where its operations write.
    Error(DriverError),
    /// It does not answer: the clock goes on by the time allowed, the call fails with `Timeout`,
    /// and the frames of a batch are lost. For calls without a time limit the same as
    /// `Error(Timeout)`.
    Hang,
    /// The context dies in the middle of it (`Enter`, `Clear`; nothing happens to other calls).
    Death,
}

/// Which calls fail: those numbered `first .. first + times` of a kind, or of all kinds, counted
/// from 0 since it was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trigger {
    /// The kind; `None` counts every driver call.
    pub call: Option<Call>,
    /// The first that fails.
    pub first: u64,
    /// How many fail in a row.
    pub times: u64,
    /// How.
    pub failure: Failure,
}

#[derive(Debug, Default)]
pub(super) struct Injector {
    trigger: Option<Trigger>,
    seen: u64,
    hits: u64,
    last_hit: Option<Call>,
    /// Calls of every kind since the machine was made.
    counts: [u64; 7],
}

impl Injector {
    pub(super) fn set(&mut self, trigger: Option<Trigger>) {
        self.trigger = trigger;
        (self.seen, self.hits, self.last_hit) = (0, 0, None);
    }

    /// Counts a call and says whether it is to fail.
    pub(super) fn decide(&mut self, call: Call) -> Option<Failure> {
        self.counts[call as usize] += 1;
        let trigger = self.trigger?;
        if trigger.call.is_some_and(|c| c != call) {
            return None;
        }
        let nr = self.seen;
        self.seen += 1;
        if nr < trigger.first || nr - trigger.first >= trigger.times {
            return None;
        }
        self.hits += 1;
        self.last_hit = Some(call);
        Some(trigger.failure)
    }

    pub(super) fn hits(&self) -> (u64, Option<Call>) {
        (self.hits, self.last_hit)
    }

    pub(super) fn count(&self, call: Call) -> u64 {
        self.counts[call as usize]
    }
}
