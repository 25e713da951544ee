//! Pages that have left, and when: a table in which each page has one place, and an older entry
//! makes way for a newer. Nothing is allocated after it is made.

/// No page.
const NONE: u32 = u32::MAX;

/// What is remembered of pages that have left; each has a number below `u32::MAX`.
pub(super) struct Ghosts(Vec<(u32, u32)>);

impl Ghosts {
    /// A table of `capacity` places (and at least one).
    pub(super) fn with_capacity(capacity: u32) -> Self {
        Self(vec![(NONE, 0); capacity.max(1) as usize])
    }

    fn place(&self, page: u32) -> usize {
        // Fibonacci hashing: neighbours fall far apart.
        let hash = page.wrapping_mul(0x9E37_79B9);
        ((u64::from(hash) * self.0.len() as u64) >> 32) as usize
    }

    /// The page left at `now`.
    pub(super) fn insert(&mut self, page: u32, now: u32) {
        let place = self.place(page);
        self.0[place] = (page, now);
    }

    /// The page is back: when it left, if that is still known.
    pub(super) fn take(&mut self, page: u32) -> Option<u32> {
        let place = self.place(page);
        let (found, left) = self.0[place];
        (found == page).then(|| {
            self.0[place].0 = NONE;
            left
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_place_is_known() {
        let mut ghosts = Ghosts::with_capacity(1);
        ghosts.insert(7, 1);
        ghosts.insert(8, 2);
        assert_eq!(ghosts.take(7), None, "its place was taken");
        assert_eq!(ghosts.take(8), Some(2));
        assert_eq!(ghosts.take(8), None, "it is back");
    }

    #[test]
    fn neighbours_have_places_of_their_own() {
        let mut ghosts = Ghosts::with_capacity(1000);
        (0..500).for_each(|page| ghosts.insert(page, page));
        let kept = (0..500).filter(|&page| ghosts.take(page) == Some(page)).count();
        assert!(kept >= 450, "{kept} of 500 pages in 1000 places");
    }
}
