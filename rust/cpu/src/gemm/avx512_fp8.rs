//! Few rows times a panel of fp8, whose elements become numbers in registers: what decoding runs on.
//! Gives the same bits as `unpack` followed by `avx512::tile`.

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_and_si512, _mm512_castsi512_si256,
    _mm512_cvtepi8_epi16, _mm512_cvtph_ps, _mm512_extracti64x4_epi64, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_epi16, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi16, _mm512_storeu_ps,
};

use crate::panel::{DIRECT_ROWS, PANEL};

/// Adds `a[rows, depth] * (elements * scales)` to `out[rows][32]`: elements `[depth][32]`, scales `[32]`.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL exist. With rows = `out.len() / 32` in 1..=8 and depth = `elements.len() / 32`:
/// `a` holds `(rows - 1) * a_stride + depth` numbers, `scales` 32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
pub(super) unsafe fn tile(a: &[f32], a_stride: usize, weights: (&[u8], &[f32]), out: &mut [f32]) {
    debug_assert!(out.len() <= DIRECT_ROWS * PANEL);
    // SAFETY: the caller promises the features and the lengths of `a` and `weights`; `out` holds 32 numbers
    // for each of the rows that select the instance, and at most 8 rows (asserted by the one caller).
    unsafe {
        match out.len() / PANEL {
            1 => rows::<1>(a, a_stride, weights, out),
            2 => rows::<2>(a, a_stride, weights, out),
            3 => rows::<3>(a, a_stride, weights, out),
            4 => rows::<4>(a, a_stride, weights, out),
            5 => rows::<5>(a, a_stride, weights, out),
            6 => rows::<6>(a, a_stride, weights, out),
            7 => rows::<7>(a, a_stride, weights, out),
            _ => rows::<8>(a, a_stride, weights, out),
        }
    }
}

/// An element's exponent and mantissa, moved to the place of an f16's, are its value divided by 256: both
/// are exact, and so is 256 times the scale, so the product rounds once as the value times the scale does.
///
/// # Safety
/// As `tile` with rows = `ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn rows<const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    (elements, scales): (&[u8], &[f32]),
    out: &mut [f32],
) {
    let depth = elements.len() / PANEL;
    let (a, elements, out) = (a.as_ptr(), elements.as_ptr(), out.as_mut_ptr());
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // All bits but the second, where the sign stands once more.
    let kept = _mm512_set1_epi16(0xbfff_u16.cast_signed());
    // SAFETY: the caller promises the lengths. `out` holds ROWS * 32 numbers and `scales` 32; row r and input k
    // of `a` lie at r * a_stride + k, input k of `elements` at 32 k: all inside their slices. A prefetch may
    // point anywhere, and `wrapping_add` makes no claim about the address.
    unsafe {
        let times = _mm512_set1_ps(256.0);
        let scale0 = _mm512_mul_ps(_mm512_loadu_ps(scales.as_ptr()), times);
        let scale1 = _mm512_mul_ps(_mm512_loadu_ps(scales.as_ptr().add(16)), times);
        for (row, sums) in sums.iter_mut().enumerate() {
            sums[0] = _mm512_loadu_ps(out.add(row * PANEL));
            sums[1] = _mm512_loadu_ps(out.add(row * PANEL + 16));
        }
        for k in 0..depth {
            let at = elements.add(k * PANEL);
            if k % 2 == 0 {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH).cast::<i8>());
            }
            let words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast()));
            let halves = _mm512_and_si512(_mm512_slli_epi16::<7>(words), kept);
            let b0 = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
            let b1 = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves));
            let (b0, b1) = (_mm512_mul_ps(b0, scale0), _mm512_mul_ps(b1, scale1));
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

/// Bytes ahead of the current ones, as for bf16.
const PREFETCH: usize = 4096;
