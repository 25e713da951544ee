//! A step of training: gradient descent on one layer, which reads and writes every weight once.

use crate::Item;
use crate::linear::tile;

/// One step of gradient descent on half the squared error of `weight x` against `target`: row `o` of
/// the weights (`nr_out` rows of `nr_in`, row-major) becomes `row - rate * (row x - target[o]) * x`.
/// The items share the rows.
///
/// # Safety
/// `x` (`nr_in`) and `target` (`nr_out`) are readable and not written during the launch; `weight` is
/// readable and writable, does not overlap them, and nobody else uses it during the launch.
pub unsafe fn descend(
    item: Item,
    weight: *mut f32,
    x: *const f32,
    target: *const f32,
    nr_in: usize,
    nr_out: usize,
    rate: f32,
) {
    for o in item.share(nr_out) {
        let row = weight.wrapping_add(o * nr_in);
        // SAFETY: a row, the vector and an output of the caller's; the shares don't overlap.
        unsafe {
            let [[y]] = tile([x], [row.cast_const()], nr_in);
            let step = rate * (y - target.add(o).read());
            for i in 0..nr_in {
                let weight = row.add(i);
                weight.write(weight.read() - step * x.add(i).read());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::norm::test_numbers;

    #[test]
    fn steps_come_closer_and_do_not_depend_on_the_grid() {
        let (nr_in, nr_out) = (37, 11);
        let (x, target) = (test_numbers(1, nr_in), test_numbers(2, nr_out));
        let run = |count, steps| {
            let mut weight = test_numbers(3, nr_in * nr_out);
            for _ in 0..steps {
                for index in 0..count {
                    let (item, w) = (Item::new(index, count), weight.as_mut_ptr());
                    // SAFETY: vectors of these shapes.
                    unsafe { descend(item, w, x.as_ptr(), target.as_ptr(), nr_in, nr_out, 0.02) };
                }
            }
            weight
        };
        assert_eq!(run(1, 3), run(4, 3));
        let error = |weight: &[f32]| {
            let rows = weight.chunks(nr_in).zip(&target);
            let off = rows.map(|(row, t)| row.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>() - t);
            off.map(|off| off * off).sum::<f32>()
        };
        let errors = [0, 1, 2, 8].map(|steps| error(&run(1, steps)));
        assert!(errors.is_sorted_by(|a, b| a > b), "{errors:?}");
    }
}
