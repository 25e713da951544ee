//! Has this machine as much memory as a suite needs? Asked before anything is mapped: what it lacks
//! would end some process, later.

use anyhow::bail;
use gmm::{display_bytes, probe};

/// What a process can address at most (47 bits). More is refused whatever the machine has.
const ADDRESS_SPACE_BYTES: u64 = 1 << 47;

/// Makes sure of room for `wanted_bytes`: data, XPUs and baselines together. `option` is the one that
/// asks for less when it is lower.
///
/// # Errors
/// If less is available on this machine, or allowed to this process: how much, and what to lower.
pub(super) fn check(wanted_bytes: u64, option: &str) -> anyhow::Result<()> {
    let available = [probe::memory_available_bytes(), probe::cgroup_memory_max_bytes()];
    check_within(wanted_bytes, available.into_iter().flatten().min(), option)
}

fn check_within(wanted: u64, available: Option<u64>, option: &str) -> anyhow::Result<()> {
    let available = available.unwrap_or(ADDRESS_SPACE_BYTES).min(ADDRESS_SPACE_BYTES);
    if wanted <= available {
        return Ok(());
    }
    let available = display_bytes(available);
    let wanted = match wanted {
        0..=ADDRESS_SPACE_BYTES => format!("about {}", display_bytes(wanted)),
        _ => format!("more than {}", display_bytes(ADDRESS_SPACE_BYTES)),
    };
    bail!(
        "data, XPU and baselines together would take {wanted} of memory, but only {available} of this \
         machine's are available: lower {option}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_machine_has_is_refused() {
        check_within(4 << 30, Some(4 << 30), "--bytes").unwrap();
        check_within(4 << 30, None, "--bytes").unwrap();
        let error = check_within((4 << 30) + 1, Some(4 << 30), "--bytes").unwrap_err().to_string();
        assert!(error.contains("4.0 GiB") && error.ends_with("lower --bytes"), "{error}");
    }

    #[test]
    fn what_nothing_can_address_is_refused_on_any_machine() {
        for available in [None, Some(u64::MAX)] {
            let error = check_within(u64::MAX, available, "--bytes").unwrap_err().to_string();
            assert!(error.contains("more than 131072.0 GiB"), "{error}");
        }
    }
}
