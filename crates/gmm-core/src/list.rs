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
        debug_assert!(!self.contains(frame));
        self.links[frame.0 as usize] = Link { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = frame.0,
            tail => self.links[tail as usize].next = frame.0,
        }
        self.tail = frame.0;
        self.len += 1;
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
        let step = |at: u32| (at != NONE).then_some(FrameNr(at));
        core::iter::successors(step(self.head), move |f| step(self.links[f.0 as usize].next))
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
}
