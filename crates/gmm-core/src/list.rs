//! A doubly linked list of frame numbers whose links are indices in an array: constant-time
//! insertion and removal of any member, no allocation, no unsafe.

use crate::FrameNr;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// An ordered set of the frame numbers below its capacity.
#[derive(Debug)]
pub(crate) struct FrameList {
    links: Vec<Link>,
    head: u32,
    tail: u32,
    len: u32,
}

/// Marks a frame that is not in the list.
const OUT: Link = Link { prev: NONE - 1, next: NONE - 1 };

impl FrameList {
    pub(crate) fn with_capacity(nr_frames: u32) -> Self {
        Self { links: vec![OUT; nr_frames as usize], head: NONE, tail: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn contains(&self, frame: FrameNr) -> bool {
        self.links[frame.0 as usize].prev != OUT.prev
    }

    /// Puts `frame`, which is not in the list, at the end.
    pub(crate) fn push_back(&mut self, frame: FrameNr) {
        self.insert_before(None, frame);
    }

    /// Puts `frame`, which is not in the list, at the start.
    pub(crate) fn push_front(&mut self, frame: FrameNr) {
        let first = self.iter().next();
        self.insert_before(first, frame);
    }

    /// Puts `frame`, which is not in the list, before `next`, which is, or at the end.
    pub(crate) fn insert_before(&mut self, next: Option<FrameNr>, frame: FrameNr) {
        debug_assert!(!self.contains(frame));
        let next = next.map_or(NONE, |next| next.0);
        let prev = match next {
            NONE => core::mem::replace(&mut self.tail, frame.0),
            next => core::mem::replace(&mut self.links[next as usize].prev, frame.0),
        };
        match prev {
            NONE => self.head = frame.0,
            prev => self.links[prev as usize].next = frame.0,
        }
        self.links[frame.0 as usize] = Link { prev, next };
        self.len += 1;
    }

    /// The one after `frame`, which is in the list.
    pub(crate) fn next(&self, frame: FrameNr) -> Option<FrameNr> {
        let Link { next, .. } = self.links[frame.0 as usize];
        (next != NONE).then_some(FrameNr(next))
    }

    /// Takes `frame` out; does nothing if it is not in.
    pub(crate) fn remove(&mut self, frame: FrameNr) {
        if !self.contains(frame) {
            return;
        }
        let Link { prev, next } = self.links[frame.0 as usize];
        match prev {
            NONE => self.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
        self.links[frame.0 as usize] = OUT;
        self.len -= 1;
    }

    /// Takes the last out: of free frames, the one most likely still in a cache.
    pub(crate) fn pop_back(&mut self) -> Option<FrameNr> {
        let frame = (self.tail != NONE).then_some(FrameNr(self.tail))?;
        self.remove(frame);
        Some(frame)
    }

    /// From first to last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FrameNr> {
        self.iter_from((self.head != NONE).then_some(FrameNr(self.head)))
    }

    /// From `first`, which is in the list, to the last; nothing from `None`.
    pub(crate) fn iter_from(&self, first: Option<FrameNr>) -> impl Iterator<Item = FrameNr> {
        core::iter::successors(first, |&frame| self.next(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(list: &FrameList) -> Vec<u32> {
        list.iter().map(|f| f.0).collect()
    }

    #[test]
    fn order_is_kept_through_removals() {
        let mut list = FrameList::with_capacity(8);
        for n in [3, 0, 5, 7] {
            list.push_back(FrameNr(n));
        }
        list.remove(FrameNr(0));
        list.remove(FrameNr(0));
        assert_eq!(numbers(&list), [3, 5, 7]);
        list.remove(FrameNr(3));
        list.push_back(FrameNr(3));
        assert_eq!(numbers(&list), [5, 7, 3]);
        assert_eq!(list.pop_back(), Some(FrameNr(3)));
        assert_eq!((list.pop_back(), list.pop_back()), (Some(FrameNr(7)), Some(FrameNr(5))));
        assert_eq!((list.pop_back(), list.len()), (None, 0));
        assert!(!list.contains(FrameNr(5)));
    }

    #[test]
    fn frames_go_where_they_are_put() {
        let mut list = FrameList::with_capacity(8);
        list.push_front(FrameNr(2));
        list.push_front(FrameNr(1));
        list.insert_before(Some(FrameNr(1)), FrameNr(0));
        list.insert_before(Some(FrameNr(2)), FrameNr(5));
        list.insert_before(None, FrameNr(7));
        assert_eq!(numbers(&list), [0, 1, 5, 2, 7]);
        assert_eq!(list.next(FrameNr(5)), Some(FrameNr(2)));
        assert_eq!(list.iter_from(Some(FrameNr(2))).map(|f| f.0).collect::<Vec<_>>(), [2, 7]);
        assert_eq!((list.iter_from(None).count(), list.len()), (0, 5));
    }
}
