//! Small kernels to learn with.

use crate::Item;

/// Squares the `len` numbers at `data` in place.
///
/// # Safety
/// `data .. data + len` is readable and writable and nobody else uses it during the launch.
pub unsafe fn square(item: Item, data: *mut f32, len: usize) {
    let share = item.share(len);
    // SAFETY: within the caller's array; the shares of the items don't overlap.
    let data = unsafe { core::slice::from_raw_parts_mut(data.add(share.start), share.len()) };
    for x in data {
        *x *= *x;
    }
}

/// Stores `value` in the `len` numbers at `data`.
///
/// # Safety
/// `data .. data + len` is writable and nobody else uses it during the launch.
pub unsafe fn fill(item: Item, data: *mut f32, len: usize, value: f32) {
    for i in item.share(len) {
        // SAFETY: within the caller's array; the shares of the items don't overlap.
        unsafe { data.add(i).write(value) };
    }
}

/// Multiplies each of the `len` numbers at `data` by that at the same place of `factors`.
///
/// # Safety
/// As [`square`]; `factors .. factors + len` is readable, does not overlap `data`, and is not written
/// during the launch.
pub unsafe fn multiply(item: Item, data: *mut f32, factors: *const f32, len: usize) {
    for i in item.share(len) {
        // SAFETY: within the caller's arrays; the shares of the items don't overlap.
        unsafe { data.add(i).write(data.add(i).read() * factors.add(i).read()) };
    }
}

/// A node of a linked list. The list ends at a null pointer.
#[repr(C)]
#[derive(Debug)]
pub struct ListNode {
    /// The next node, or null.
    pub next: *const ListNode,
    /// What is summed.
    pub value: u64,
}

/// Follows the list from `head` (may be null) and stores the wrapping sum of the values at `out`. The
/// first work item does all of it; others return at once.
///
/// # Safety
/// Every node is readable, the list ends, `out` is writable, and nobody writes to them during the launch.
pub unsafe fn sum_list(item: Item, head: *const ListNode, out: *mut u64) {
    if item.index() != 0 {
        return;
    }
    let (mut node, mut sum) = (head, 0u64);
    while !node.is_null() {
        // SAFETY: a node of the caller's list.
        let here = unsafe { &*node };
        sum = sum.wrapping_add(here.value);
        node = here.next;
    }
    // SAFETY: promised by the caller.
    unsafe { out.write(sum) };
}

/// A node of a binary search tree: smaller keys are on the left.
#[repr(C)]
#[derive(Debug)]
pub struct TreeNode {
    /// The subtree of smaller keys, or null.
    pub left: *const TreeNode,
    /// The subtree of larger keys, or null.
    pub right: *const TreeNode,
    /// What is looked for.
    pub key: u64,
    /// What is found.
    pub value: u64,
}

/// What [`tree`] stores for a key that the tree lacks.
pub const NOT_FOUND: u64 = u64::MAX;

/// Looks up the `len` keys at `keys` in the tree under `root` (may be null) and stores the values, or
/// [`NOT_FOUND`], at `found`.
///
/// # Safety
/// Every node and key is readable and nobody writes to them during the launch; `found .. found + len`
/// is writable and nobody else uses it during the launch.
pub unsafe fn tree(
    item: Item,
    root: *const TreeNode,
    keys: *const u64,
    found: *mut u64,
    len: usize,
) {
    for i in item.share(len) {
        // SAFETY: within the caller's array of keys.
        let key = unsafe { keys.add(i).read() };
        let (mut node, mut value) = (root, NOT_FOUND);
        while !node.is_null() {
            // SAFETY: a node of the caller's tree.
            let here = unsafe { &*node };
            node = match key.cmp(&here.key) {
                core::cmp::Ordering::Less => here.left,
                core::cmp::Ordering::Greater => here.right,
                core::cmp::Ordering::Equal => {
                    value = here.value;
                    break;
                }
            };
        }
        // SAFETY: within the caller's array of results; the shares of the items don't overlap.
        unsafe { found.add(i).write(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null;

    #[test]
    fn square_and_fill_do_every_element_once() {
        for count in [1, 3, 100] {
            let mut data: Vec<f32> = (0..50u8).map(f32::from).collect();
            for index in 0..count {
                // SAFETY: the vector is ours.
                unsafe { square(Item::new(index, count), data.as_mut_ptr(), data.len()) };
            }
            assert!((0..50u8).zip(&data).all(|(i, x)| *x == f32::from(i) * f32::from(i)));
            for index in 0..count {
                // SAFETY: as above.
                unsafe { fill(Item::new(index, count), data.as_mut_ptr(), 49, -2.0) };
            }
            assert!(data[..49].iter().all(|x| *x == -2.0));
            assert_eq!(data[49], 2401.0);
        }
    }

    #[test]
    fn products_are_of_numbers_at_the_same_place() {
        let factors: Vec<f32> = (0..50u8).map(f32::from).collect();
        for count in [1, 3] {
            let mut data = vec![2.0; 50];
            for index in 0..count {
                let item = Item::new(index, count);
                // SAFETY: the vectors are ours, and this long.
                unsafe { multiply(item, data.as_mut_ptr(), factors.as_ptr(), 49) };
            }
            assert!((0..49u8).zip(&data).all(|(i, x)| *x == 2.0 * f32::from(i)));
            assert_eq!(data[49], 2.0);
        }
    }

    #[test]
    fn a_list_is_summed_by_the_first_item_alone() {
        let c = ListNode { next: null(), value: u64::MAX };
        let b = ListNode { next: &raw const c, value: 5 };
        let a = ListNode { next: &raw const b, value: 10 };
        let mut sum = 7;
        // SAFETY: a list on the stack, and the place of the sum.
        unsafe { sum_list(Item::new(1, 2), &raw const a, &raw mut sum) };
        assert_eq!(sum, 7);
        // SAFETY: as above.
        unsafe { sum_list(Item::new(0, 2), &raw const a, &raw mut sum) };
        assert_eq!(sum, 14);
        // SAFETY: an empty list.
        unsafe { sum_list(Item::new(0, 1), null(), &raw mut sum) };
        assert_eq!(sum, 0);
    }

    #[test]
    fn tree_finds_what_is_there_and_says_what_is_not() {
        let leaf = |key| TreeNode { left: null(), right: null(), key, value: key * 100 };
        let (low, high) = (leaf(1), leaf(9));
        let root = TreeNode { left: &raw const low, right: &raw const high, ..leaf(5) };
        let keys = [9, 1, 5, 6, 0];
        let mut found = [0; 5];
        for index in 0..2 {
            // SAFETY: tree and arrays are ours.
            unsafe {
                tree(Item::new(index, 2), &raw const root, keys.as_ptr(), found.as_mut_ptr(), 5);
            }
        }
        assert_eq!(found, [900, 100, 500, NOT_FOUND, NOT_FOUND]);
    }
}
