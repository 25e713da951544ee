//! Time that the hypervisor took away: what it disturbs is no fault of the manager's.

use std::fs;

use anyhow::Context as _;

/// Ticks of all processors since the machine started: stolen, and all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    /// As they are now.
    ///
    /// # Errors
    /// If `/proc/stat` can't be read.
    pub(super) fn now() -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        Self::parse(&stat).context("/proc/stat begins with no line for all processors")
    }

    /// The first line is `cpu user nice system idle iowait irq softirq steal guest guest_nice`; what
    /// guests used is part of `user` and `nice` (proc_stat(5)).
    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let fields = fields.take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        Some(Self { stolen: *fields.get(7)?, all: fields.iter().sum() })
    }

    /// What part of the time since `before` was stolen, in percent.
    pub(super) fn stolen_percent_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 * 100.0 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_number() {
        let before = Ticks::parse("cpu  100 0 50 800 10 1 2 30 7 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, Ticks { stolen: 30, all: 993 });
        let now = Ticks { stolen: 40, all: 1093 };
        assert_eq!(now.stolen_percent_since(before), 10.0);
        assert_eq!(Ticks::parse("cpu0 1 2 3 4 5 6 7 8\n"), None);
        assert_eq!(Ticks::parse("cpu  1 2 3\n"), None);
        Ticks::now().unwrap();
    }
}
