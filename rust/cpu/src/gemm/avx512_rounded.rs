//! Tiles of products with rounded activations, for AVX-512 with BF16 and VNNI: 12 rows by two registers of 16 columns.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtepi32_ps, _mm512_dpbf16_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps, _mm512_sub_epi32,
};

use super::columns::QuadCodes;
use super::vector::prefetch;
use crate::panel::PANEL;
use crate::rounding::{Rounded, STEP_INPUTS};

/// Calls the function made for as many rows as `out` has.
macro_rules! for_rows {
    ($out:expr, $body:ident $args:tt, $($count:literal)*) => {
        match $out.len() / PANEL {
            $($count => $body::<$count> $args,)*
            _ => unreachable!("rows of a tile"),
        }
    };
}

/// Adds products of bf16: `pairs` is `[pair of inputs][32]`.
///
/// # Safety
/// AVX-512 F, BW and BF16 exist. `out` holds 1 to 12 rows of 32, `x` as many rows of two inputs for each of `pairs`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn tile_halves(x: Rounded<'_>, pairs: &[u32], out: &mut [f32]) {
    // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
    unsafe { for_rows!(out, rows_halves(x, pairs, out.as_mut_ptr()), 1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// # Safety
/// As `tile_halves` with `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn rows_halves<const ROWS: usize>(x: Rounded<'_>, pairs: &[u32], out: *mut f32) {
    let (a, b) = (x.halves.as_ptr(), pairs.as_ptr());
    // SAFETY: the caller promises the features. Pair p of row r lies at r * stride + 2 p, the weights of a pair at 32 p:
    // all inside their slices, as are the rows of `out`. The two halves of a pair are read without alignment.
    unsafe {
        let mut sums = load::<ROWS>(out);
        for pair in 0..pairs.len() / PANEL {
            let at = b.add(pair * PANEL);
            if ROWS <= FEW {
                prefetch(at.wrapping_add(AHEAD).cast());
                prefetch(at.wrapping_add(AHEAD + 16).cast());
            }
            let w0 = bf16(_mm512_loadu_si512(at.cast()));
            let w1 = bf16(_mm512_loadu_si512(at.add(16).cast()));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = a.add(row * x.stride + 2 * pair).cast::<i32>().read_unaligned();
                let x = bf16(_mm512_set1_epi32(x));
                sums[0] = _mm512_dpbf16_ps(sums[0], w0, x);
                sums[1] = _mm512_dpbf16_ps(sums[1], w1, x);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm512_storeu_ps(out.add(row * PANEL), sums[0]);
            _mm512_storeu_ps(out.add(row * PANEL + 16), sums[1]);
        }
    }
}

/// # Safety
/// AVX-512 F exists, `out` holds `[ROWS][32]`.
#[target_feature(enable = "avx512f")]
unsafe fn load<const ROWS: usize>(out: *const f32) -> [[__m512; 2]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller promises the rows.
        unsafe {
            sums[0] = _mm512_loadu_ps(out.add(row * PANEL));
            sums[1] = _mm512_loadu_ps(out.add(row * PANEL + 16));
        }
    }
    sums
}

/// The same bits as pairs of bf16.
#[inline(always)]
fn bf16(words: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes for which every bit pattern is a value.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
}

/// Adds products of bytes and codes, as `rounded.rs` defines them.
///
/// # Safety
/// AVX-512 F, BW and VNNI exist. `out` holds 1 to 12 rows of 32, `x` as many rows with the inputs of `codes`, of which
/// there are whole stretches of 32 with their groups.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn tile_bytes(x: Rounded<'_>, codes: QuadCodes<'_>, out: &mut [f32]) {
    // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
    unsafe { for_rows!(out, rows_bytes(x, codes, out.as_mut_ptr()), 1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// # Safety
/// As `tile_bytes` with `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn rows_bytes<const ROWS: usize>(x: Rounded<'_>, codes: QuadCodes<'_>, out: *mut f32) {
    let QuadCodes { words, groups, group, offset, has_min } = codes;
    let (a, words, groups) = (x.bytes.as_ptr(), words.as_ptr(), groups.as_ptr());
    for index in 0..codes.words.len() / PANEL * 4 / group {
        // SAFETY: the caller promises the features. Four inputs of row r lie at r * stride + 4 q, their codes at 32 q, a
        // group's scales at 64 times its number and the minimums 32 behind them; a row has a step for every 32 and a sum
        // for every 16 inputs. All of these are inside their slices. Four bytes are read without alignment.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
            let inputs = |row: usize| {
                let at = x.sums.as_ptr().add(row * (x.stride / 16) + index * group / 16);
                if group == 32 { *at + *at.add(1) } else { *at }
            };
            for quad in index * group / 4..(index + 1) * group / 4 {
                let w0 = _mm512_loadu_si512(words.add(quad * PANEL).cast());
                let w1 = _mm512_loadu_si512(words.add(quad * PANEL + 16).cast());
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = a.add(row * x.stride + 4 * quad).cast::<i32>().read_unaligned();
                    let x = _mm512_set1_epi32(x);
                    sums[0] = _mm512_dpbusd_epi32(sums[0], w0, x);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], w1, x);
                }
            }
            let at = groups.add(index * 2 * PANEL);
            let scale = [_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16))];
            let min = [_mm512_loadu_ps(at.add(PANEL)), _mm512_loadu_ps(at.add(PANEL + 16))];
            let steps = x.steps.as_ptr().add(index * group / STEP_INPUTS);
            for (row, sums) in sums.iter().enumerate() {
                let step = *steps.add(row * (x.stride / STEP_INPUTS));
                let inputs = inputs(row);
                let excess = _mm512_set1_epi32(offset * inputs);
                let inputs = _mm512_set1_ps(step * inputs as f32);
                let step = _mm512_set1_ps(step);
                for (half, sum) in sums.iter().enumerate() {
                    let out = out.add(row * PANEL + half * 16);
                    let sum =
                        _mm512_mul_ps(step, _mm512_cvtepi32_ps(_mm512_sub_epi32(*sum, excess)));
                    let mut value = _mm512_fmadd_ps(scale[half], sum, _mm512_loadu_ps(out));
                    if has_min {
                        value = _mm512_fmadd_ps(min[half], inputs, value);
                    }
                    _mm512_storeu_ps(out, value);
                }
            }
        }
    }
}

/// Most rows for which weights come from memory, not from the cache.
const FEW: usize = 4;
/// Words ahead of the current ones: 4 KiB, as in avx512.rs.
const AHEAD: usize = 1024;
