//! A vector in pieces of equal length: it never moves what it holds, so growing never needs the
//! old and the new copy at once, and no more than a piece lies idle.

use std::ops::{Index, IndexMut};

/// Items a piece.
const PIECE: usize = 1024;

/// The vector. Every piece but the last is full.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    pieces: Vec<Vec<T>>,
}

impl<T: Copy> Chunked<T> {
    pub(crate) fn new() -> Self {
        Self { pieces: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        match self.pieces.last() {
            Some(last) => (self.pieces.len() - 1) * PIECE + last.len(),
            None => 0,
        }
    }

    pub(crate) fn push(&mut self, item: T) {
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => last.push(item),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(item);
                self.pieces.push(piece);
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.pieces.last_mut()?;
        let item = last.pop();
        if last.is_empty() {
            self.pieces.pop();
        }
        item
    }

    pub(crate) fn last(&self) -> Option<T> {
        self.pieces.last()?.last().copied()
    }

    pub(crate) fn get(&self, at: usize) -> Option<T> {
        self.pieces.get(at / PIECE)?.get(at % PIECE).copied()
    }

    /// Keeps the first `len` items, if there are more.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        self.pieces.truncate(len.div_ceil(PIECE));
        if let Some(last) = self.pieces.last_mut().filter(|_| !len.is_multiple_of(PIECE)) {
            last.truncate(len % PIECE);
        }
    }
}

impl<T> Index<usize> for Chunked<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.pieces[at / PIECE][at % PIECE]
    }
}

impl<T> IndexMut<usize> for Chunked<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.pieces[at / PIECE][at % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u16),
        Pop,
        Truncate(u16),
    }

    proptest! {
        #[test]
        fn it_holds_what_a_vector_holds(ops in proptest::collection::vec(prop_oneof![
            60 => any::<u16>().prop_map(Op::Push),
            5 => Just(Op::Pop),
            1 => (1024u16..3000).prop_map(Op::Truncate),
        ], 0..6000)) {
            let (mut chunked, mut vector) = (Chunked::new(), Vec::new());
            for op in ops {
                match op {
                    Op::Push(item) => {
                        chunked.push(item);
                        vector.push(item);
                    }
                    Op::Pop => prop_assert_eq!(chunked.pop(), vector.pop()),
                    Op::Truncate(len) => {
                        chunked.truncate(len.into());
                        vector.truncate(len.into());
                    }
                }
                prop_assert_eq!(chunked.len(), vector.len());
                prop_assert_eq!(chunked.last(), vector.last().copied());
            }
            for (at, item) in vector.iter().enumerate() {
                prop_assert_eq!(chunked[at], *item);
            }
            prop_assert_eq!(chunked.get(vector.len()), None);
        }
    }
}
