//! Products of rounded activations with GGUF blocks for few rows: codes become bytes in registers, and nothing else is
//! written. Decoding uses this. Gives the same bits as `unpack_quads` followed by `avx512_rounded::tile_bytes`.

use std::arch::x86_64::{
    __m128i, __m512, __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi32, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_or_si512, _mm512_rorv_epi32, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
    _mm512_sub_epi32, _mm512_xor_si512,
};

use ingle_model::WeightType;

use super::blocks::{
    Format, Place, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, affine, prefetch_lines,
};
use crate::panel::PANEL;
use crate::rounding::{Rounded, STEP_INPUTS};

/// Adds the product of `x` with whole blocks of a panel to `out[rows][32]`; all codes are too large by `offset`.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL and VNNI exist. `out` holds 1 to 4 or 8 rows, `x` as many rows of at least `parts * 32` inputs,
/// `panel` the blocks of `weight_type` that hold `parts` stretches of 32 inputs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tile_blocks(
    x: Rounded<'_>,
    (weight_type, panel): (WeightType, &[u8]),
    (parts, offset): (usize, i32),
    out: &mut [f32],
) {
    let blocks = (panel, parts, offset);
    // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
    unsafe {
        match out.len() / PANEL {
            1 => any::<1>(x, weight_type, blocks, out),
            2 => any::<2>(x, weight_type, blocks, out),
            3 => any::<3>(x, weight_type, blocks, out),
            4 => any::<4>(x, weight_type, blocks, out),
            8 => any::<8>(x, weight_type, blocks, out),
            rows => unreachable!("{rows} rows"),
        }
    }
}

/// Chooses the format.
///
/// # Safety
/// As `tile_blocks` with `ROWS` rows.
#[inline(always)]
unsafe fn any<const ROWS: usize>(
    x: Rounded<'_>,
    weight_type: WeightType,
    blocks: (&[u8], usize, i32),
    out: &mut [f32],
) {
    // SAFETY: the caller promises the instructions and the lengths.
    unsafe {
        match weight_type {
            WeightType::Q4_0 => rows::<Q4_0, ROWS>(x, blocks, out),
            WeightType::Q4_1 => rows::<Q4_1, ROWS>(x, blocks, out),
            WeightType::Q5_0 => rows::<Q5_0, ROWS>(x, blocks, out),
            WeightType::Q5_1 => rows::<Q5_1, ROWS>(x, blocks, out),
            WeightType::Q8_0 => rows::<Q8_0, ROWS>(x, blocks, out),
            WeightType::Q4K => rows::<Q4K, ROWS>(x, blocks, out),
            WeightType::Q5K => rows::<Q5K, ROWS>(x, blocks, out),
            WeightType::Q6K => rows::<Q6K, ROWS>(x, blocks, out),
            _ => unreachable!("not a block format"),
        }
    }
}

/// One stretch of 32 inputs after the other.
///
/// # Safety
/// As `any`.
#[inline(always)]
unsafe fn rows<F: Format, const ROWS: usize>(
    x: Rounded<'_>,
    (panel, parts, offset): (&[u8], usize, i32),
    out: &mut [f32],
) {
    let sizes = F::SIZES;
    // Hidden from the compiler as in blocks.rs.
    let pairs = std::hint::black_box(sizes.group / 8);
    for part in 0..parts {
        let block = panel.as_ptr().wrapping_add(part * 32 / sizes.elements * sizes.bytes);
        let place = Place { block, part: part % (sizes.elements / 32), pairs };
        // SAFETY: the caller promises `parts` stretches in `panel` and in the rows of `x`, and the rows of `out`.
        unsafe { stretch::<F, ROWS>(x.skip_inputs(part * 32), place, offset, out.as_mut_ptr()) }
    }
}

/// # Safety
/// As `any`; `x` starts at the 32 inputs of the stretch.
#[inline(always)]
unsafe fn stretch<F: Format, const ROWS: usize>(
    x: Rounded<'_>,
    place: Place,
    offset: i32,
    out: *mut f32,
) {
    let sizes = F::SIZES;
    let words = place.block.wrapping_add(sizes.header + place.part * sizes.words * PANEL * 4);
    if place.part == 0 {
        prefetch_lines(place.block, sizes.header);
    }
    for group in 0..32 / sizes.group {
        let first = group * sizes.group / 8;
        // SAFETY: the caller promises the stretch and its inputs with their step and sums. A group's pairs of quads are
        // pairs of its stretch. Four bytes are read without alignment.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
            for pair in first..first + place.pairs {
                let bytes = sizes.words * PANEL;
                prefetch_lines(words.wrapping_add(pair * bytes), bytes);
                for odd in 0..2 {
                    let codes = [codes::<F>(words, pair, odd, 0), codes::<F>(words, pair, odd, 16)];
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let at = x.bytes.as_ptr().add(row * x.stride + pair * 8 + odd * 4);
                        let x = _mm512_set1_epi32(at.cast::<i32>().read_unaligned());
                        sums[0] = _mm512_dpbusd_epi32(sums[0], codes[0], x);
                        sums[1] = _mm512_dpbusd_epi32(sums[1], codes[1], x);
                    }
                }
            }
            let affine = affine::<__m512, F, 2>(place, group, 0);
            for (row, sums) in sums.iter().enumerate() {
                let at = x.sums.as_ptr().add(row * (x.stride / 16) + group);
                let inputs = if sizes.group == 32 { *at + *at.add(1) } else { *at };
                let step = *x.steps.as_ptr().add(row * (x.stride / STEP_INPUTS));
                let excess = _mm512_set1_epi32(offset * inputs);
                let inputs = _mm512_set1_ps(step * inputs as f32);
                let step = _mm512_set1_ps(step);
                for (half, sum) in sums.iter().enumerate() {
                    let out = out.add(row * PANEL + half * 16);
                    let sum =
                        _mm512_mul_ps(step, _mm512_cvtepi32_ps(_mm512_sub_epi32(*sum, excess)));
                    let mut value = _mm512_fmadd_ps(affine.scale[half], sum, _mm512_loadu_ps(out));
                    if sizes.has_min {
                        value = _mm512_fmadd_ps(affine.min[half], inputs, value);
                    }
                    _mm512_storeu_ps(out, value);
                }
            }
        }
    }
}

/// The codes of quad `2 pair + odd` for 16 outputs from `column` on, an unsigned byte for each input.
///
/// # Safety
/// As `any`; `words` are those of a stretch, from the first output on.
#[inline(always)]
unsafe fn codes<F: Format>(words: *const u8, pair: usize, odd: usize, column: usize) -> __m512i {
    let quad = 2 * pair + odd;
    // SAFETY: the words of this quad lie where block_layout.rs says, and the caller promises them.
    unsafe {
        if F::SIZES.words == 8 {
            let line = words.add(quad * 4 * PANEL + column);
            let byte = |input: usize| {
                _mm512_cvtepu8_epi32(_mm_loadu_si128(line.add(input * PANEL).cast::<__m128i>()))
            };
            let low = _mm512_or_si512(byte(0), _mm512_slli_epi32::<8>(byte(1)));
            let high =
                _mm512_or_si512(_mm512_slli_epi32::<16>(byte(2)), _mm512_slli_epi32::<24>(byte(3)));
            // Signed bytes become unsigned ones.
            let sign = _mm512_set1_epi32(0x8080_8080_u32.cast_signed());
            return _mm512_xor_si512(_mm512_or_si512(low, high), sign);
        }
        let words = words.cast::<u32>().add(column);
        let load = |line: usize| _mm512_loadu_si512(words.add(line * PANEL).cast());
        let mut low = load(pair);
        if odd == 1 {
            low = _mm512_srli_epi32::<4>(low);
        }
        let low = _mm512_and_si512(low, _mm512_set1_epi32(0x0f0f_0f0f));
        let (high, turn, bits) = match F::SIZES.words {
            4 => return low,
            5 => (load(4), quad, 0x1010_1010),
            _ => (load(4 + pair / 2), quad % 4 * 2, 0x3030_3030),
        };
        let high = _mm512_rorv_epi32(high, _mm512_set1_epi32(turn as i32));
        _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi32(bits)))
    }
}
