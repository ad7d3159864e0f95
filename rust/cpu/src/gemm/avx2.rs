//! Tiles for AVX2 and FMA: 6 rows by two registers of 8 columns, 12 sums in registers.

use std::arch::x86_64::{
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::columns::Columns;
use crate::panel::PANEL;

/// See `kernel::add_product`.
///
/// # Safety
/// AVX2 and FMA exist. With rows = `out.len() / 32` in 1..=12: `a` holds `(rows - 1) * a_stride + depth`
/// numbers, each half of `b` `(depth - 1) * b.stride + 16`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn tile(
    a: &[f32],
    a_stride: usize,
    b: Columns<'_>,
    depth: usize,
    out: &mut [f32],
) {
    for (group, out) in out.chunks_mut(6 * PANEL).enumerate() {
        let a = &a[group * 6 * a_stride..];
        let count = out.len() / PANEL;
        for (half, b_half) in [b.first, b.second].into_iter().enumerate() {
            let out = &mut out[half * 16..];
            // SAFETY: this function's caller has AVX2 and FMA. From here `out` holds (count - 1) * 32 + 16
            // numbers or more. `a` begins at the first of `count` rows of the caller's, the last of which
            // holds `depth` numbers, and the caller promises (depth - 1) * b.stride + 16 for each half of `b`.
            unsafe {
                match count {
                    1 => rows::<1>(a, a_stride, (b_half, b.stride), depth, out),
                    2 => rows::<2>(a, a_stride, (b_half, b.stride), depth, out),
                    3 => rows::<3>(a, a_stride, (b_half, b.stride), depth, out),
                    4 => rows::<4>(a, a_stride, (b_half, b.stride), depth, out),
                    5 => rows::<5>(a, a_stride, (b_half, b.stride), depth, out),
                    _ => rows::<6>(a, a_stride, (b_half, b.stride), depth, out),
                }
            }
        }
    }
}

/// 16 columns.
///
/// # Safety
/// AVX2 and FMA exist; `a` holds `(ROWS - 1) * a_stride + depth` numbers, `b` `(depth - 1) * stride + 16`,
/// `out` `(ROWS - 1) * 32 + 16`.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    (b, b_stride): (&[f32], usize),
    depth: usize,
    out: &mut [f32],
) {
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    // SAFETY: the caller promises the lengths. Row r and input k of `a` lie at r * a_stride + k, row k of `b`
    // at k * b_stride with 16 numbers, row r of `out` at r * 32 with 16 numbers: all inside their slices.
    unsafe {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums[0] = _mm256_loadu_ps(out.add(row * PANEL));
            sums[1] = _mm256_loadu_ps(out.add(row * PANEL + 8));
        }
        for k in 0..depth {
            let b0 = _mm256_loadu_ps(b.add(k * b_stride));
            let b1 = _mm256_loadu_ps(b.add(k * b_stride + 8));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = _mm256_set1_ps(*a.add(row * a_stride + k));
                sums[0] = _mm256_fmadd_ps(x, b0, sums[0]);
                sums[1] = _mm256_fmadd_ps(x, b1, sums[1]);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm256_storeu_ps(out.add(row * PANEL), sums[0]);
            _mm256_storeu_ps(out.add(row * PANEL + 8), sums[1]);
        }
    }
}
