//! The matrices of a product, as plain memory: what they hold, and how large they are.

use gmm::{FromZeros, PAGE_SIZE};
use gmm_kernels::half::F16;
use gmm_kernels::{Item, product};

/// `blocks` times `n` rows of A, `m` columns of B, of length `k`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) m: usize,
    pub(super) blocks: usize,
}

impl Shape {
    pub(super) fn len_a(self) -> usize {
        self.n * self.blocks * self.k
    }

    pub(super) fn len_b(self) -> usize {
        self.m * self.k
    }

    pub(super) fn len_c(self) -> usize {
        self.n * self.blocks * self.m
    }

    /// What A and B take.
    pub(super) fn operand_pages<N>(self) -> u64 {
        pages::<N>(self.len_a()) + pages::<N>(self.len_b())
    }

    pub(super) fn operand_bytes<N>(self) -> u64 {
        ((self.len_a() + self.len_b()) * size_of::<N>()) as u64
    }

    /// What all three take.
    pub(super) fn pages<N>(self) -> u64 {
        self.operand_pages::<N>() + pages::<N>(self.len_c())
    }

    /// The fewest pages of A and B that come to an XPU with so many frames, whatever leaves when. C is
    /// always there.
    pub(super) fn least_moved<N>(self, frames: u64) -> u64 {
        let (pages_a, pages_b) = (pages::<N>(self.len_a()), pages::<N>(self.len_b()));
        let frames = frames.saturating_sub(pages::<N>(self.len_c())).max(1);
        let block = |nr: usize| {
            let page = |row: usize| (row * self.k * size_of::<N>()) as u64 / PAGE_SIZE;
            let rows = page(nr * self.n)..pages::<N>((nr + 1) * self.n * self.k);
            rows.chain(pages_a..pages_a + pages_b).collect()
        };
        let passes: Vec<Vec<u64>> = (0..self.blocks).map(block).collect();
        gmm_sim::optimum(&passes, frames as usize).iter().sum()
    }
}

fn pages<N>(len: usize) -> u64 {
    ((len * size_of::<N>()) as u64).div_ceil(PAGE_SIZE)
}

/// What matrices are made of: numbers of some precision, or their bits.
pub(super) trait Element: FromZeros + Copy + PartialEq + Send + Sync + 'static {
    /// The kernel that multiplies such matrices.
    const KERNEL: &'static str;

    fn of(number: f32) -> Self;

    /// That kernel on the CPU.
    ///
    /// # Safety
    /// As [`product::product`].
    #[expect(unsafe_code, reason = "kernels take addresses")]
    unsafe fn multiply(a: *const Self, b: *const Self, c: *mut Self, n: usize, k: usize, m: usize);
}

impl Element for f32 {
    const KERNEL: &'static str = "product";

    fn of(number: f32) -> Self {
        number
    }

    #[expect(unsafe_code, reason = "kernels take addresses")]
    unsafe fn multiply(a: *const Self, b: *const Self, c: *mut Self, n: usize, k: usize, m: usize) {
        // SAFETY: promised by the caller.
        unsafe { product::product(Item::new(0, 1), a, b, c, n, k, m) };
    }
}

/// The bits of a number of half precision.
impl Element for u16 {
    const KERNEL: &'static str = "product_f16";

    fn of(number: f32) -> Self {
        F16::from(number).0
    }

    #[expect(unsafe_code, reason = "kernels take addresses")]
    unsafe fn multiply(a: *const Self, b: *const Self, c: *mut Self, n: usize, k: usize, m: usize) {
        // SAFETY: promised by the caller.
        unsafe { product::product_f16(Item::new(0, 1), a, b, c, n, k, m) };
    }
}

/// A and B, and their product as the CPU computes it.
pub(super) struct Matrices<N> {
    pub(super) shape: Shape,
    pub(super) a: Vec<N>,
    pub(super) b: Vec<N>,
    pub(super) c: Vec<N>,
}

impl<N: Element> Matrices<N> {
    #[expect(unsafe_code, reason = "kernels take addresses")]
    pub(super) fn new(shape: Shape) -> Self {
        let numbers = |len: usize, seed| (0..len).map(|nr| N::of(number(nr, seed))).collect();
        let (a, b): (Vec<N>, Vec<N>) = (numbers(shape.len_a(), 3), numbers(shape.len_b(), 5));
        let mut c = vec![N::of(0.0); shape.len_c()];
        let rows = shape.n * shape.blocks;
        // SAFETY: matrices of these shapes.
        unsafe { N::multiply(a.as_ptr(), b.as_ptr(), c.as_mut_ptr(), rows, shape.k, shape.m) };
        Self { shape, a, b, c }
    }
}

/// A number in -1..1.
fn number(nr: usize, seed: u32) -> f32 {
    let hash = (nr as u32 ^ seed.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0x9E37_79B1);
    ((hash ^ (hash >> 15)) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 2 MiB: one of A a block, eight of B, one of C.
    const SHAPE: Shape = Shape { n: 2, k: 1 << 18, m: 16, blocks: 3 };

    #[test]
    fn what_fits_comes_once() {
        assert_eq!((SHAPE.operand_pages::<f32>(), SHAPE.pages::<f32>()), (3 + 8, 12));
        assert_eq!(SHAPE.least_moved::<f32>(12), 11);
        // Half as large in half precision: a page of A holds the rows of two blocks.
        assert_eq!(SHAPE.operand_pages::<u16>(), 2 + 4);
        assert_eq!(SHAPE.least_moved::<u16>(7), 6);
    }

    #[test]
    fn what_does_not_fit_comes_again() {
        // Five frames for A and B. Each later pass over B finds four of its pages at best.
        assert_eq!(SHAPE.least_moved::<f32>(6), 3 + 8 + 2 * 4);
        assert_eq!(SHAPE.least_moved::<f32>(2), 3 * (1 + 8));
    }

    #[test]
    fn the_product_is_that_of_doubles() {
        let matrices = Matrices::<f32>::new(Shape { n: 2, k: 100, m: 3, blocks: 2 });
        for (place, &got) in matrices.c.iter().enumerate() {
            let (row, column) = (&matrices.a[place / 3 * 100..], &matrices.b[place % 3 * 100..]);
            let terms = row.iter().zip(&column[..100]).map(|(&a, &b)| f64::from(a) * f64::from(b));
            assert!((f64::from(got) - terms.sum::<f64>()).abs() < 1e-4);
        }
    }
}
