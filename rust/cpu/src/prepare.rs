//! What products need of their activations beside themselves, computed once for all outputs.

use std::ops::Range;

use crate::pool::Pool;
use crate::rounding::{Form, STEP_INPUTS, round_to_bytes, round_to_halves};
use crate::rows::Rows;
use crate::vector_path::{Arithmetic, VectorPath, per_path};

/// Makes rows ready for `Rows::prepared`: their first `depth` inputs, a multiple of 32. The scaled form only with `few`,
/// for products of few rows, which alone read it.
pub(crate) fn prepare_rows(
    pool: &mut Pool,
    path: VectorPath,
    x: &mut Rows,
    rows: Range<usize>,
    (depth, few): (usize, bool),
) {
    let [plain, scaled, sums] = x.parts();
    pool.for_rows(rows.len(), &|row| {
        let row = rows.start + row;
        // SAFETY: one call a row; the three buffers are different ones.
        unsafe {
            let plain = plain.row_part(row, 0, depth);
            prepare(path, plain, sums.row_part(row, 0, depth / 16));
            if few {
                scale(path, plain, scaled.row_part(row, 0, depth));
            }
        }
    });
}

/// Rounds the first `depth` inputs of rows (rounding.rs); for bytes a multiple of 32.
pub(crate) fn round_rows(
    pool: &mut Pool,
    path: VectorPath,
    x: &mut Rows,
    rows: Range<usize>,
    (depth, form): (usize, Form),
) {
    let stride = x.stride();
    let (data, parts) = x.rounding_parts();
    pool.for_rows(rows.len(), &|row| {
        let row = rows.start + row;
        let x = &data[row * stride..][..depth];
        // SAFETY: one call a row; the four buffers are different ones.
        unsafe {
            match form {
                Form::Halves => {
                    // A half of a pair without an input counts as zero.
                    let halves = parts.halves.row_part(row, 0, depth.next_multiple_of(2));
                    halves[depth / 2 * 2..].fill(0);
                    round_to_halves(path, x, halves);
                }
                Form::Bytes => round_to_bytes(
                    path,
                    x,
                    parts.bytes.row_part(row, 0, depth),
                    parts.steps.row_part(row, 0, depth / STEP_INPUTS),
                    parts.sums.row_part(row, 0, depth / 16),
                ),
            }
        }
    });
}

per_path! {
    /// Fills `sums` (see `Prepared`) from a row. Numbers smaller than `SMALLEST` become zero in `x`, so that dividing
    /// by a power of two is exact and all kernels agree.
    fn prepare(x: &mut [f32], sums: &mut [f32]) = prepare_body
}

#[inline(always)]
fn prepare_body<A: Arithmetic>(x: &mut [f32], sums: &mut [f32]) {
    for (x, sum) in x.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        // Hides that the next 16 follow: the compiler would compute many stretches at once, by gathers.
        let x = std::hint::black_box(x);
        for x in x.iter_mut() {
            *x = if x.abs() < SMALLEST { 0.0 } else { *x };
        }
        let eight: [f32; 8] = std::array::from_fn(|k| x[k] + x[k + 8]);
        let four: [f32; 4] = std::array::from_fn(|k| eight[k] + eight[k + 4]);
        *sum = (four[0] + four[2]) + (four[1] + four[3]);
    }
}

per_path! {
    /// Fills `scaled` (see `Prepared`) from a row that `prepare` has seen.
    fn scale(x: &[f32], scaled: &mut [f32]) = scale_body
}

#[inline(always)]
fn scale_body<A: Arithmetic>(x: &[f32], scaled: &mut [f32]) {
    for (x, scaled) in x.as_chunks::<16>().0.iter().zip(scaled.as_chunks_mut::<16>().0) {
        for k in 0..16 {
            scaled[k] = x[k] * FACTORS[k % 4];
        }
    }
}

/// One over the place of a code in its word (block_layout.rs).
const FACTORS: [f32; 4] = [1.0, 1.0 / 256.0, 1.0 / 65_536.0, 1.0 / 16_777_216.0];
/// 2^-100, as bits: 2^-24 of it is still a normal number.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn test_sums_and_scaled_numbers_are_exact_on_every_path() {
        let mut random = Random(5);
        let values = random.floats(64);
        for path in VectorPath::all() {
            let mut x = values.clone();
            x[3] = SMALLEST;
            x[7] = SMALLEST / 2.0;
            let (mut scaled, mut sums) = (vec![0.0; 64], vec![0.0; 4]);
            prepare(path, &mut x, &mut sums);
            scale(path, &x, &mut scaled);
            assert_eq!((x[3], x[7]), (SMALLEST, 0.0), "{}", path.name());
            for (k, (x, scaled)) in x.iter().zip(&scaled).enumerate() {
                assert_eq!(scaled * 2f32.powi(8 * (k as i32 % 4)), *x, "{}", path.name());
            }
            for (x, sum) in x.chunks(16).zip(&sums) {
                let want: f64 = x.iter().copied().map(f64::from).sum();
                assert!((f64::from(*sum) - want).abs() < 1e-6, "{}", path.name());
            }
        }
    }
}
