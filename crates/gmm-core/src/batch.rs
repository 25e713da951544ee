//! A vector of fixed capacity: the fault path holds its working sets on the stack, since it must
//! not allocate (the allocator may itself be waiting for a fault).

use core::ops::{Deref, DerefMut, Index, IndexMut};

/// Up to `N` values, in place.
#[derive(Debug, Clone)]
pub struct Batch<T, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T, const N: usize> Batch<T, N> {
    /// An empty batch.
    pub fn new() -> Self {
        Self { items: [const { None }; N], len: 0 }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no further value fits.
    pub fn is_full(&self) -> bool {
        self.len == N
    }

    /// Appends a value.
    ///
    /// # Panics
    /// If the batch is full: callers bound their loops by `N`.
    pub fn push(&mut self, value: T) {
        assert!(self.len < N, "batch of {N} is full");
        self.items[self.len] = Some(value);
        self.len += 1;
    }

    /// Appends the value, if there is one.
    ///
    /// # Panics
    /// As [`Batch::push`].
    pub fn extend(&mut self, value: Option<T>) {
        if let Some(value) = value {
            self.push(value);
        }
    }

    /// Takes the last value out.
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.items[self.len].take()
    }

    /// Orders the values.
    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        self.items[..self.len].sort_unstable_by_key(|item| item.as_ref().map(&key));
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items[..self.len].iter().flatten()
    }

    /// The values in order, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items[..self.len].iter_mut().flatten()
    }
}

impl<T, const N: usize> Index<usize> for Batch<T, N> {
    type Output = T;
    fn index(&self, nr: usize) -> &T {
        self.items[nr].as_ref().expect("a value of the batch")
    }
}

impl<T, const N: usize> IndexMut<usize> for Batch<T, N> {
    fn index_mut(&mut self, nr: usize) -> &mut T {
        self.items[nr].as_mut().expect("a value of the batch")
    }
}

impl<T, const N: usize> FromIterator<T> for Batch<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut batch = Self::new();
        values.into_iter().for_each(|value| batch.push(value));
        batch
    }
}

impl<T, const N: usize> Default for Batch<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> IntoIterator for Batch<T, N> {
    type Item = T;
    type IntoIter = core::iter::Flatten<core::array::IntoIter<Option<T>, N>>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter().flatten()
    }
}

/// A batch of plain records that drivers take as a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records<T: Copy, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Records<T, N> {
    /// An empty batch; `fill` is what unused places hold.
    pub(crate) fn new(fill: T) -> Self {
        Self { items: [fill; N], len: 0 }
    }

    pub(crate) fn push(&mut self, value: T) {
        self.items[self.len] = value;
        self.len += 1;
    }
}

impl<T: Copy, const N: usize> Deref for Records<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T: Copy, const N: usize> DerefMut for Records<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
