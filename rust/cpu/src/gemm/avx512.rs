//! Tiles for AVX-512: 12 rows by two registers of 16 columns, 24 sums in registers.

use std::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_and_si512,
    _mm512_castsi512_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::columns::Columns;
use crate::panel::PANEL;

/// Calls the function made for this many rows.
macro_rules! for_rows {
    ($rows:expr, $body:ident $args:tt, $($count:literal)*) => {
        match $rows {
            $($count => $body::<$count> $args,)*
            _ => unreachable!("rows of a tile"),
        }
    };
}

/// See `kernel::add_product`.
///
/// # Safety
/// AVX-512 F and BW exist. With rows = `out.len() / 32` in 1..=12: `a` holds `(rows - 1) * a_stride +
/// depth` numbers, each half of `b` `(depth - 1) * b.stride + 16`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn tile(
    a: &[f32],
    a_stride: usize,
    b: Columns<'_>,
    depth: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller promises AVX-512 F and BW and the lengths of `a` and `b`; `out` holds 32 numbers for
    // each of the rows that select the instance.
    unsafe {
        for_rows!(out.len() / PANEL, rows(a, a_stride, b, depth, out), 1 2 3 4 5 6 7 8 9 10 11 12)
    }
}

/// # Safety
/// As `tile` with rows = `ROWS`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn rows<const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    b: Columns<'_>,
    depth: usize,
    out: &mut [f32],
) {
    let (a, first, second) = (a.as_ptr(), b.first.as_ptr(), b.second.as_ptr());
    let out = out.as_mut_ptr();
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: the caller promises the lengths. `out` holds ROWS * 32 numbers; row r and input k of `a` lie at
    // r * a_stride + k, row k of each half of `b` at k * stride with 16 numbers: all inside their slices.
    unsafe {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums[0] = _mm512_loadu_ps(out.add(row * PANEL));
            sums[1] = _mm512_loadu_ps(out.add(row * PANEL + 16));
        }
        for k in 0..depth {
            let b0 = _mm512_loadu_ps(first.add(k * b.stride));
            let b1 = _mm512_loadu_ps(second.add(k * b.stride));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(row * a_stride + k));
                sums[0] = _mm512_fmadd_ps(x, b0, sums[0]);
                sums[1] = _mm512_fmadd_ps(x, b1, sums[1]);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm512_storeu_ps(out.add(row * PANEL), sums[0]);
            _mm512_storeu_ps(out.add(row * PANEL + 16), sums[1]);
        }
    }
}

/// See `kernel::add_product_bf16`.
///
/// # Safety
/// AVX-512 F and BW exist, `depth` is even. With rows = `out.len() / 32` in 1..=8: `a` holds `(rows - 1)
/// * a_stride + depth` numbers, `panel` `depth * 32`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn tile_bf16(
    a: &[f32],
    a_stride: usize,
    panel: &[u16],
    depth: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller promises AVX-512 F and BW, an even `depth` and the lengths of `a` and `panel`; `out`
    // holds 32 numbers for each of the rows that select the instance.
    unsafe {
        for_rows!(out.len() / PANEL, rows_bf16(a, a_stride, panel, depth, out), 1 2 3 4 5 6 7 8)
    }
}

/// # Safety
/// As `tile_bf16` with rows = `ROWS`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn rows_bf16<const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    panel: &[u16],
    depth: usize,
    out: &mut [f32],
) {
    let (a, panel, out) = (a.as_ptr(), panel.as_ptr(), out.as_mut_ptr());
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: the caller promises the lengths. `out` holds ROWS * 32 numbers; row r and input k of `a` lie at
    // r * a_stride + k; a pair of inputs takes 64 numbers of `panel`, which holds `depth` / 2 pairs. A prefetch
    // may point anywhere, and `wrapping_add` makes no claim about the address.
    unsafe {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums[0] = _mm512_loadu_ps(out.add(row * PANEL));
            sums[1] = _mm512_loadu_ps(out.add(row * PANEL + 16));
        }
        for pair in 0..depth / 2 {
            let at = panel.add(pair * 2 * PANEL);
            let ahead = at.wrapping_add(PREFETCH);
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast::<i8>());
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(32).cast::<i8>());
            let w0 = _mm512_loadu_si512(at.cast::<__m512i>());
            let w1 = _mm512_loadu_si512(at.add(32).cast::<__m512i>());
            let b0 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w0));
            let b1 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w1));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(row * a_stride + 2 * pair));
                sums[0] = _mm512_fmadd_ps(x, b0, sums[0]);
                sums[1] = _mm512_fmadd_ps(x, b1, sums[1]);
            }
            let b0 = _mm512_castsi512_ps(_mm512_and_si512(w0, upper));
            let b1 = _mm512_castsi512_ps(_mm512_and_si512(w1, upper));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(row * a_stride + 2 * pair + 1));
                sums[0] = _mm512_fmadd_ps(x, b0, sums[0]);
                sums[1] = _mm512_fmadd_ps(x, b1, sums[1]);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm512_storeu_ps(out.add(row * PANEL), sums[0]);
            _mm512_storeu_ps(out.add(row * PANEL + 16), sums[1]);
        }
    }
}

/// As `tile_bf16` for an f16 panel, any `depth`.
///
/// # Safety
/// AVX-512 F and BW exist. With rows = `out.len() / 32` in 1..=8: `a` holds `(rows - 1) * a_stride + depth`
/// numbers, `panel` `depth * 32`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn tile_f16(
    a: &[f32],
    a_stride: usize,
    panel: &[u16],
    depth: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller promises AVX-512 F and BW and the lengths of `a` and `panel`; `out` holds 32 numbers
    // for each of the rows that select the instance.
    unsafe {
        for_rows!(out.len() / PANEL, rows_f16(a, a_stride, panel, depth, out), 1 2 3 4 5 6 7 8)
    }
}

/// # Safety
/// As `tile_f16` with rows = `ROWS`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn rows_f16<const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    panel: &[u16],
    depth: usize,
    out: &mut [f32],
) {
    let (a, panel, out) = (a.as_ptr(), panel.as_ptr(), out.as_mut_ptr());
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: the caller promises the lengths. `out` holds ROWS * 32 numbers; row r and input k of `a` lie at
    // r * a_stride + k; an input takes 32 numbers of `panel`, which holds `depth` inputs. A prefetch may point
    // anywhere, and `wrapping_add` makes no claim about the address.
    unsafe {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums[0] = _mm512_loadu_ps(out.add(row * PANEL));
            sums[1] = _mm512_loadu_ps(out.add(row * PANEL + 16));
        }
        for k in 0..depth {
            let at = panel.add(k * PANEL);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH).cast::<i8>());
            let b0 = _mm512_cvtph_ps(_mm256_loadu_si256(at.cast::<__m256i>()));
            let b1 = _mm512_cvtph_ps(_mm256_loadu_si256(at.add(16).cast::<__m256i>()));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(row * a_stride + k));
                sums[0] = _mm512_fmadd_ps(x, b0, sums[0]);
                sums[1] = _mm512_fmadd_ps(x, b1, sums[1]);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm512_storeu_ps(out.add(row * PANEL), sums[0]);
            _mm512_storeu_ps(out.add(row * PANEL + 16), sums[1]);
        }
    }
}

/// Numbers ahead of the current ones: 4 KiB, measured best or equal on Zen 4 and Sapphire Rapids.
const PREFETCH: usize = 2048;
