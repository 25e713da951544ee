//! The fewest pages that can be moved to a node.

use std::collections::{BTreeSet, HashMap};

use crate::Pass;

/// Of each pass, how many pages are moved to a node of `nr_frames` frames by Belady's MIN, which
/// knows the future and evicts the page whose next use is farthest away. No policy moves fewer in
/// all.
///
/// Counted is each use of a page that is not on the node at that moment: it has to be brought,
/// since a processor uses only what its node holds. The node is empty at first, so a page's first
/// use counts. Nothing is brought ahead of its use, which would not save a move. What leaves the
/// node is not counted: pages that are only read leave without a copy.
pub fn optimum(passes: &[Pass], nr_frames: usize) -> Vec<u64> {
    let uses: Vec<u64> = passes.iter().flatten().copied().collect();
    let mut next_use = vec![usize::MAX; uses.len()];
    let mut soonest = HashMap::new();
    for (at, &page) in uses.iter().enumerate().rev() {
        if let Some(next) = soonest.insert(page, at) {
            next_use[at] = next;
        }
    }
    let mut here: HashMap<u64, usize> = HashMap::new();
    let mut by_next_use: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut moved = Vec::new();
    let mut at = 0;
    for pass in passes {
        let mut count = 0;
        for &page in pass {
            match here.get(&page) {
                Some(&next) => {
                    by_next_use.remove(&(next, page));
                }
                None => {
                    count += 1;
                    if here.len() == nr_frames
                        && let Some((_, victim)) = by_next_use.pop_last()
                    {
                        here.remove(&victim);
                    }
                }
            }
            here.insert(page, next_use[at]);
            by_next_use.insert((next_use[at], page));
            at += 1;
        }
        moved.push(count);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_misses_what_does_not_fit() {
        let passes = vec![(0..125).collect::<Pass>(); 6];
        let moved = optimum(&passes, 100);
        assert_eq!(moved[0], 125);
        // One frame has to take in what is used now: sometimes one more than 25 of 125.
        assert!(moved[1..].iter().all(|n| (25..=26).contains(n)), "{moved:?}");
    }

    #[test]
    fn beladys_own_example() {
        // "A study of replacement algorithms for a virtual-storage computer", as textbooks have it.
        let reference = vec![7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(optimum(&[reference], 3), [9]);
    }
}
