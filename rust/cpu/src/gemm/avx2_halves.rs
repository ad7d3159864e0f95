//! Products with bf16 and f16 weights for few rows, widened in registers, for AVX2. Gives the same bits as `unpack`
//! followed by `avx2::tile`.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use super::vector::prefetch;
use crate::panel::PANEL;

/// Adds `a[rows, depth] * panel` to `out[rows][32]`; `panel` is bf16 in pairs of inputs, or f16.
///
/// # Safety
/// AVX2, FMA and F16C exist. With rows = `out.len() / 32`: `a` holds `(rows - 1) * a_stride + depth` numbers, `panel`
/// `depth * 32`. For bf16, `depth` is even.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<const BF16: bool>(
    a: &[f32],
    a_stride: usize,
    panel: &[u16],
    depth: usize,
    out: &mut [f32],
) {
    for (index, out) in out.chunks_mut(4 * PANEL).enumerate() {
        let a = &a[index * 4 * a_stride..];
        // SAFETY: the caller promises the features and the lengths; from its first row on, `a` holds the rows of this
        // part of `out`, whose number selects the instance.
        unsafe {
            match out.len() / PANEL {
                1 => rows::<BF16, 1, 4>(a, a_stride, panel, depth, out),
                2 => rows::<BF16, 2, 4>(a, a_stride, panel, depth, out),
                3 => rows::<BF16, 3, 2>(a, a_stride, panel, depth, out),
                _ => rows::<BF16, 4, 2>(a, a_stride, panel, depth, out),
            }
        }
    }
}

/// # Safety
/// As `tile` with rows = `ROWS`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const BF16: bool, const ROWS: usize, const REGS: usize>(
    a: &[f32],
    a_stride: usize,
    panel: &[u16],
    depth: usize,
    out: &mut [f32],
) {
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    for column in (0..PANEL).step_by(REGS * 8) {
        // SAFETY: the caller promises the lengths. Row r and input k of `a` lie at r * a_stride + k. A pair of inputs
        // takes 64 numbers of `panel`: for bf16 a word for each output, for f16 a line of 32 for each input. Columns
        // stay below 32.
        unsafe {
            let out = out.as_mut_ptr().add(column);
            let mut sums = [[_mm256_setzero_ps(); REGS]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (reg, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_loadu_ps(out.add(row * PANEL + reg * 8));
                }
            }
            let step = if BF16 { 2 } else { 1 };
            for k in (0..depth).step_by(step) {
                let line = panel.as_ptr().add(k * PANEL);
                let a = a.as_ptr().add(k);
                if column == 0 {
                    prefetch(line.wrapping_add(AHEAD).cast());
                    if BF16 {
                        prefetch(line.wrapping_add(AHEAD + 32).cast());
                    }
                }
                for reg in 0..REGS {
                    let at = column + reg * 8;
                    if BF16 {
                        let words = _mm256_loadu_si256(line.add(2 * at).cast::<__m256i>());
                        let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
                        add(reg, even, (a, a_stride), &mut sums);
                        let odd = _mm256_castsi256_ps(_mm256_and_si256(words, upper));
                        add(reg, odd, (a.add(1), a_stride), &mut sums);
                    } else {
                        let halves = _mm_loadu_si128(line.add(at).cast());
                        add(reg, _mm256_cvtph_ps(halves), (a, a_stride), &mut sums);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (reg, sum) in sums.iter().enumerate() {
                    _mm256_storeu_ps(out.add(row * PANEL + reg * 8), *sum);
                }
            }
        }
    }
}

/// Adds the products of one input to register `reg` of every row.
///
/// # Safety
/// AVX2 and FMA exist; `a` points at the input of the first of `ROWS` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add<const ROWS: usize, const REGS: usize>(
    reg: usize,
    weights: __m256,
    (a, stride): (*const f32, usize),
    sums: &mut [[__m256; REGS]; ROWS],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller promises the input of every row.
        let a = _mm256_set1_ps(unsafe { *a.add(row * stride) });
        sums[reg] = _mm256_fmadd_ps(a, weights, sums[reg]);
    }
}

/// Numbers ahead of the current ones: 2 KiB, as in blocks.rs.
const AHEAD: usize = 1024;
