//! Pages that have left, and when: a table in which each page has two places, and an entry makes
//! way for a newer if both are taken. (With one place, a page would in each sweep lose it to the
//! same other page.) Nothing is allocated after it is made.

/// No page.
const NONE: u32 = u32::MAX;

/// Marks a page that was protected when it left.
const PROTECTED: u32 = 1 << 31;

/// When a page left, and what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ghost {
    pub(super) left: u32,
    pub(super) was_protected: bool,
}

/// What is remembered of pages that have left; each has a number below 2^31 - 1.
pub(super) struct Ghosts(Vec<(u32, u32)>);

impl Ghosts {
    /// A table of `capacity` places (and at least one).
    pub(super) fn with_capacity(capacity: u32) -> Self {
        Self(vec![(NONE, 0); capacity.max(1) as usize])
    }

    fn places(&self, page: u32) -> [usize; 2] {
        // Fibonacci hashing: neighbours fall far apart.
        let hash = page.wrapping_mul(0x9E37_79B9);
        [hash, hash.rotate_left(16).wrapping_mul(0x85EB_CA6B)]
            .map(|hash| ((u64::from(hash) * self.0.len() as u64) >> 32) as usize)
    }

    /// Where the page is.
    fn find(&self, page: u32) -> Option<usize> {
        let is_of_page = |&place: &usize| {
            let found = self.0[place].0;
            found != NONE && found & !PROTECTED == page
        };
        self.places(page).into_iter().find(is_of_page)
    }

    /// The page left.
    pub(super) fn insert(&mut self, page: u32, ghost: Ghost) {
        let age = |place: usize| match self.0[place] {
            (NONE, _) => u32::MAX,
            (_, left) => ghost.left.wrapping_sub(left),
        };
        let [one, other] = self.places(page);
        let older = if age(one) >= age(other) { one } else { other };
        let place = self.find(page).unwrap_or(older);
        let mark = if ghost.was_protected { PROTECTED } else { 0 };
        self.0[place] = (page | mark, ghost.left);
    }

    /// The page is back: what is still known of its leaving.
    pub(super) fn take(&mut self, page: u32) -> Option<Ghost> {
        let place = self.find(page)?;
        let (found, left) = core::mem::replace(&mut self.0[place], (NONE, 0));
        Some(Ghost { left, was_protected: found & PROTECTED != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(left: u32) -> Ghost {
        Ghost { left, was_protected: left.is_multiple_of(2) }
    }

    #[test]
    fn the_newest_of_a_place_are_known() {
        let mut ghosts = Ghosts::with_capacity(1);
        ghosts.insert(7, left(1));
        ghosts.insert(8, left(2));
        assert_eq!(ghosts.take(7), None, "its place was taken");
        assert_eq!(ghosts.take(8), Some(left(2)));
        assert_eq!(ghosts.take(8), None, "it is back");
        ghosts.insert(9, left(3));
        ghosts.insert(9, left(4));
        assert_eq!([ghosts.take(9), ghosts.take(9)], [Some(left(4)), None]);
    }

    #[test]
    fn most_are_known_until_as_many_have_left_as_there_are_places() {
        let mut ghosts = Ghosts::with_capacity(1000);
        (0..2000).for_each(|page| ghosts.insert(page, left(page)));
        let mut known = |pages: core::ops::Range<u32>| {
            pages.filter(|&page| ghosts.take(page) == Some(left(page))).count()
        };
        let (new, old) = (known(1500..2000), known(0..500));
        assert!(new >= 450 && old <= 50, "{new} of the newest 500, {old} of the oldest");
    }
}
