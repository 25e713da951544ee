//! Copying and zeroing frames with streaming stores: the bytes go to memory without passing
//! through (and emptying) the caches of the processor that copies.

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::*;

/// What the streaming loops handle at a time, and what the target must be aligned to.
const ROUND: usize = 256;

/// Below this many bytes a copy goes through the cache: it is small enough to be wanted there.
const SMALL: usize = 16 << 10;

/// Copies `len` bytes, at any alignment.
///
/// # Safety
/// Both ranges must be valid for the access and must not overlap.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let head = if len < SMALL { len } else { (to as usize).wrapping_neg() % ROUND };
    let body = (len - head) & !(ROUND - 1);
    let (tail, left) = (head + body, len - head - body);
    // SAFETY: the three parts lie in the caller's ranges; the middle one is aligned, and a multiple
    // of a round long.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, head);
        copy_rounds(to.add(head), from.add(head), body);
        core::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), left);
    }
}

/// # Safety
/// As [`copy`]. `to` and `len` must be multiples of `ROUND`.
unsafe fn copy_rounds(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature is there; the rest is the caller's promise.
            return unsafe { copy_avx512(to, from, len) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { copy_avx2(to, from, len) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
}

/// Fills `len` bytes with zero.
///
/// # Safety
/// The range must be valid for writes. `to` and `len` must be multiples of 256.
pub(crate) unsafe fn zero(to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is there; the rest is the caller's promise.
        return unsafe { zero_avx2(to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { core::ptr::write_bytes(to, 0, len) }
}

/// How far ahead of the copy the source is fetched, in bytes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_avx512(to: *mut u8, from: *const u8, len: usize) {
    for at in (0..len).step_by(256) {
        // SAFETY: `at + 256 <= len` by the caller's promise on `len`; a prefetch may name any
        // address; `to` is aligned for streaming stores.
        unsafe {
            let (source, target) = (from.add(at), to.add(at).cast::<__m512i>());
            for line in 0..4 {
                _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(AHEAD + 64 * line).cast());
            }
            let a = _mm512_loadu_si512(source.cast());
            let b = _mm512_loadu_si512(source.add(64).cast());
            let c = _mm512_loadu_si512(source.add(128).cast());
            let d = _mm512_loadu_si512(source.add(192).cast());
            _mm512_stream_si512(target, a);
            _mm512_stream_si512(target.add(1), b);
            _mm512_stream_si512(target.add(2), c);
            _mm512_stream_si512(target.add(3), d);
        }
    }
    _mm_sfence();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(to: *mut u8, from: *const u8, len: usize) {
    for at in (0..len).step_by(128) {
        // SAFETY: as in `copy_avx512`, with 128 for 256.
        unsafe {
            let (source, target) = (from.add(at), to.add(at).cast::<__m256i>());
            _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(AHEAD).cast());
            _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(AHEAD + 64).cast());
            let a = _mm256_loadu_si256(source.cast());
            let b = _mm256_loadu_si256(source.add(32).cast());
            let c = _mm256_loadu_si256(source.add(64).cast());
            let d = _mm256_loadu_si256(source.add(96).cast());
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target.add(1), b);
            _mm256_stream_si256(target.add(2), c);
            _mm256_stream_si256(target.add(3), d);
        }
    }
    _mm_sfence();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn zero_avx2(to: *mut u8, len: usize) {
    let zero = _mm256_setzero_si256();
    for at in (0..len).step_by(32) {
        // SAFETY: `at + 32 <= len`, aligned, by the caller's promise.
        unsafe { _mm256_stream_si256(to.add(at).cast(), zero) };
    }
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(256))]
    struct Block([u8; 4096]);

    fn pattern() -> Box<Block> {
        let mut block = Box::new(Block([0; 4096]));
        block.0.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31 + i / 256) as u8);
        block
    }

    type CopyFn = unsafe fn(*mut u8, *const u8, usize);

    fn variants() -> Vec<CopyFn> {
        let mut all: Vec<CopyFn> = vec![copy, copy_rounds];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the feature is there.
                all.push(|t, f, n| unsafe { copy_avx512(t, f, n) });
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the feature is there.
                all.push(|t, f, n| unsafe { copy_avx2(t, f, n) });
            }
        }
        all
    }

    #[test]
    fn every_variant_copies_exactly_the_range() {
        let from = pattern();
        for copy in variants() {
            let mut to = Box::new(Block([0xee; 4096]));
            // SAFETY: both blocks are valid for 256 + 3584 bytes and aligned.
            unsafe { copy(to.0.as_mut_ptr().add(256), from.0.as_ptr().add(1), 3584) };
            assert_eq!(to.0[256..3840], from.0[1..3585]);
            assert!(to.0[..256].iter().chain(&to.0[3840..]).all(|&b| b == 0xee));
        }
    }

    #[test]
    fn long_copies_at_odd_places_are_exact() {
        let from: Vec<u8> = (0..SMALL as u32 + 2000).map(|i| (i * 7 + i / 256) as u8).collect();
        for (at, skip, len) in [(1, 2, SMALL), (255, 0, SMALL + 1), (0, 1, SMALL + 511)] {
            let mut to = vec![0xee; SMALL + 2000];
            // SAFETY: the ranges lie in the vectors.
            unsafe { copy(to.as_mut_ptr().add(at), from.as_ptr().add(skip), len) };
            assert!(to[at..at + len] == from[skip..skip + len]);
            assert!(to[..at].iter().chain(&to[at + len..]).all(|&b| b == 0xee));
        }
    }

    #[test]
    fn zero_fills_exactly_the_range() {
        let mut to = pattern();
        // SAFETY: the block is valid for 256 + 512 bytes and aligned.
        unsafe { zero(to.0.as_mut_ptr().add(256), 512) };
        assert!(to.0[256..768].iter().all(|&b| b == 0));
        let fresh = pattern();
        assert_eq!(to.0[..256], fresh.0[..256]);
        assert_eq!(to.0[768..], fresh.0[768..]);
    }
}
