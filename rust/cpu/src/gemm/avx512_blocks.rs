//! Multiplies a few rows by a panel of GGUF blocks and converts the codes in registers; decoding
//! uses this. Gives the same bits as `unpack` followed by `avx512::tile`.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_and_si512, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_permutex2var_ps, _mm512_permutexvar_ps,
    _mm512_rol_epi32, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_srai_epi32, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_epi32,
    _mm512_sub_ps, _mm512_ternarylogic_epi32,
};

use ingle_model::WeightType;

use crate::block_layout::{BlockLayout, layout};
use crate::panel::{DIRECT_ROWS, PANEL};

/// Adds `a[rows, depth] * panel` to `out[rows][32]`.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL exist. `weight_type` is a block format whose block divides `depth`. With rows
/// = `out.len() / 32` in 1..=8: `a` holds `(rows - 1) * a_stride + depth` numbers, `panel` `depth` inputs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
pub(super) unsafe fn tile(
    a: &[f32],
    a_stride: usize,
    (weight_type, panel): (WeightType, &[u8]),
    depth: usize,
    out: &mut [f32],
) {
    debug_assert!(out.len() <= DIRECT_ROWS * PANEL);
    // SAFETY: the caller promises the features, a `depth` of whole blocks and the lengths of `a` and `panel`;
    // `out` holds 32 numbers for each of the rows that select the instance, and at most 8 rows (asserted by
    // the one caller).
    unsafe {
        match out.len() / PANEL {
            1 => rows::<1>(a, a_stride, (weight_type, panel), depth, out),
            2 => rows::<2>(a, a_stride, (weight_type, panel), depth, out),
            3 => rows::<3>(a, a_stride, (weight_type, panel), depth, out),
            4 => rows::<4>(a, a_stride, (weight_type, panel), depth, out),
            5 => rows::<5>(a, a_stride, (weight_type, panel), depth, out),
            6 => rows::<6>(a, a_stride, (weight_type, panel), depth, out),
            7 => rows::<7>(a, a_stride, (weight_type, panel), depth, out),
            _ => rows::<8>(a, a_stride, (weight_type, panel), depth, out),
        }
    }
}

type Sums<const ROWS: usize> = [[__m512; 2]; ROWS];

/// # Safety
/// As `tile` with rows = `ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn rows<const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    (weight_type, panel): (WeightType, &[u8]),
    depth: usize,
    out: &mut [f32],
) {
    let sizes = layout(weight_type);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: the caller promises the lengths. `out` holds ROWS * 32 numbers. `depth` is a whole number of
    // blocks, so the block of each part lies in `panel`, and each row of `a` holds the part's 32 inputs.
    unsafe {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums[0] = _mm512_loadu_ps(out.as_ptr().add(row * PANEL));
            sums[1] = _mm512_loadu_ps(out.as_ptr().add(row * PANEL + 16));
        }
        let parts = sizes.elements / 32;
        for part in 0..depth / 32 {
            let block = panel.as_ptr().add(part / parts * sizes.bytes);
            let inputs = Inputs { a: a.as_ptr().add(part * 32), stride: a_stride };
            add_part(weight_type, sizes, block, part % parts, inputs, &mut sums);
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm512_storeu_ps(out.as_mut_ptr().add(row * PANEL), sums[0]);
            _mm512_storeu_ps(out.as_mut_ptr().add(row * PANEL + 16), sums[1]);
        }
    }
}

/// Activations of the 32 inputs at hand.
#[derive(Clone, Copy)]
struct Inputs {
    a: *const f32,
    stride: usize,
}

/// Scale and minimum of 32 outputs.
#[derive(Clone, Copy)]
struct Affine {
    scale: [__m512; 2],
    min: [__m512; 2],
}

/// # Safety
/// `block` is one whole block of the format, `part` one of its stretches of 32 inputs, and `inputs` hold
/// 32 numbers for each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn add_part<const ROWS: usize>(
    weight_type: WeightType,
    sizes: BlockLayout,
    block: *const u8,
    part: usize,
    inputs: Inputs,
    sums: &mut Sums<ROWS>,
) {
    // SAFETY: the caller promises one whole block and 32 inputs a row. The header's fields and the part's words
    // lie where block_layout.rs says, all inside the block.
    unsafe {
        let words = block.add(sizes.header + part * sizes.words * PANEL * 4).cast::<u32>();
        let d = halves(block, 0);
        let none = [_mm512_setzero_ps(); 2];
        match weight_type {
            WeightType::Q4_0 => {
                nibbles::<ROWS, 4, 8>(words, Affine { scale: d, min: none }, inputs, sums)
            }
            WeightType::Q5_0 => {
                nibbles::<ROWS, 5, 16>(words, Affine { scale: d, min: none }, inputs, sums)
            }
            WeightType::Q4_1 => {
                let affine = Affine { scale: d, min: halves(block, 1) };
                nibbles::<ROWS, 4, 0>(words, affine, inputs, sums);
            }
            WeightType::Q5_1 => {
                let affine = Affine { scale: d, min: halves(block, 1) };
                nibbles::<ROWS, 5, 0>(words, affine, inputs, sums);
            }
            WeightType::Q8_0 => bytes(words, d, inputs, sums),
            WeightType::Q6K => {
                let scales = block.add((2 + part * 2) * PANEL);
                for half in 0..2 {
                    let scale = [0, 1].map(|side| {
                        let at = scales.add(half * PANEL + side * 16).cast();
                        let scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
                        _mm512_mul_ps(d[side], scale)
                    });
                    six_bits(words, half, scale, inputs, sums);
                }
            }
            _ => {
                let dmin = halves(block, 1);
                let field = |at: usize, d: [__m512; 2]| {
                    [0, 1].map(|side| {
                        let at = block.add((at + part) * PANEL + side * 16).cast();
                        let value = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(at)));
                        _mm512_mul_ps(d[side], value)
                    })
                };
                let min = field(12, dmin).map(|min| _mm512_sub_ps(_mm512_set1_ps(-0.0), min));
                let affine = Affine { scale: field(4, d), min };
                if weight_type == WeightType::Q4K {
                    nibbles::<ROWS, 4, 0>(words, affine, inputs, sums);
                } else {
                    nibbles::<ROWS, 5, 0>(words, affine, inputs, sums);
                }
            }
        }
    }
}

/// Field `field` of a header: f16 of 32 outputs.
///
/// # Safety
/// The header has that field.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn halves(block: *const u8, field: usize) -> [__m512; 2] {
    // SAFETY: a field is 64 bytes, and the caller promises that the header has it.
    unsafe {
        let at = block.add(field * 2 * PANEL);
        [
            _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
            _mm512_cvtph_ps(_mm256_loadu_si256(at.add(32).cast())),
        ]
    }
}

/// Adds the products of input `k` with 32 weights.
///
/// # Safety
/// `inputs` hold number `k` for each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn add<const ROWS: usize>(
    k: usize,
    weights: [__m512; 2],
    inputs: Inputs,
    sums: &mut Sums<ROWS>,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller promises that every row of `inputs` holds number `k`.
        let x = _mm512_set1_ps(unsafe { *inputs.a.add(row * inputs.stride + k) });
        sums[0] = _mm512_fmadd_ps(x, weights[0], sums[0]);
        sums[1] = _mm512_fmadd_ps(x, weights[1], sums[1]);
    }
}

/// 32 inputs with four bits each, or five with `WORDS` = 5. The code selects its float from a table, so
/// that no integer is converted.
///
/// # Safety
/// `words` are `WORDS` times 32, `inputs` hold 32 numbers for each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn nibbles<const ROWS: usize, const WORDS: usize, const OFFSET: i32>(
    words: *const u32,
    affine: Affine,
    inputs: Inputs,
    sums: &mut Sums<ROWS>,
) {
    let codes: [f32; 32] = std::array::from_fn(|code| (code as i32 - OFFSET) as f32);
    let low_mask = _mm512_set1_epi32(15);
    // SAFETY: word w of output n lies at 32 w + n, and the caller promises `WORDS` words of 32 outputs and 32
    // inputs a row, of which `add` gets 0 to 31. `codes` holds both halves of the table.
    unsafe {
        let table = [_mm512_loadu_ps(codes.as_ptr()), _mm512_loadu_ps(codes.as_ptr().add(16))];
        // Bit k of the fifth word must be at bit 4 when input k is next.
        let mut high = [0, 1].map(|side| {
            let word = _mm512_loadu_si512(words.add((WORDS - 1) * PANEL + side * 16).cast());
            _mm512_rol_epi32::<4>(word)
        });
        for word in 0..4 {
            let mut low: [__m512i; 2] =
                [0, 1].map(|side| _mm512_loadu_si512(words.add(word * PANEL + side * 16).cast()));
            for index in 0..8 {
                let weights = [0, 1].map(|side| {
                    let code = if WORDS == 5 {
                        // Low four bits from `low`, the rest from `high`; the table looks at five.
                        let code =
                            _mm512_ternarylogic_epi32::<0xCA>(low_mask, low[side], high[side]);
                        _mm512_permutex2var_ps(table[0], code, table[1])
                    } else {
                        _mm512_permutexvar_ps(low[side], table[0])
                    };
                    if OFFSET == 0 {
                        _mm512_fmadd_ps(code, affine.scale[side], affine.min[side])
                    } else {
                        _mm512_mul_ps(code, affine.scale[side])
                    }
                });
                add(word * 8 + index, weights, inputs, sums);
                for side in 0..2 {
                    low[side] = _mm512_srli_epi32::<4>(low[side]);
                    if WORDS == 5 {
                        high[side] = _mm512_ror_epi32::<1>(high[side]);
                    }
                }
            }
        }
    }
}

/// Inputs 16 to 31 of a stretch (`half` = 1) or 0 to 15 with six bits each.
///
/// # Safety
/// `words` are six times 32, `inputs` hold 32 numbers for each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn six_bits<const ROWS: usize>(
    words: *const u32,
    half: usize,
    scale: [__m512; 2],
    inputs: Inputs,
    sums: &mut Sums<ROWS>,
) {
    let (low_mask, six) = (_mm512_set1_epi32(15), _mm512_set1_epi32(63));
    let offset = _mm512_set1_epi32(32);
    // SAFETY: word w of output n lies at 32 w + n, and the caller promises six words of 32 outputs and 32 inputs
    // a row: this reads words up to 5 and inputs up to 31.
    unsafe {
        let load = |word: usize, side: usize| -> __m512i {
            _mm512_loadu_si512(words.add(word * PANEL + side * 16).cast())
        };
        let mut high = [0, 1].map(|side| _mm512_rol_epi32::<4>(load(4 + half, side)));
        for word in 2 * half..2 * half + 2 {
            let mut low = [0, 1].map(|side| load(word, side));
            for index in 0..8 {
                let weights = [0, 1].map(|side| {
                    let code = _mm512_ternarylogic_epi32::<0xCA>(low_mask, low[side], high[side]);
                    let code = _mm512_sub_epi32(_mm512_and_si512(code, six), offset);
                    _mm512_mul_ps(_mm512_cvtepi32_ps(code), scale[side])
                });
                add(word * 8 + index, weights, inputs, sums);
                for side in 0..2 {
                    low[side] = _mm512_srli_epi32::<4>(low[side]);
                    high[side] = _mm512_ror_epi32::<2>(high[side]);
                }
            }
        }
    }
}

/// 32 inputs with a signed byte each.
///
/// # Safety
/// `words` are eight times 32, `inputs` hold 32 numbers for each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn bytes<const ROWS: usize>(
    words: *const u32,
    scale: [__m512; 2],
    inputs: Inputs,
    sums: &mut Sums<ROWS>,
) {
    // SAFETY: word w of output n lies at 32 w + n, and the caller promises eight words of 32 outputs and 32
    // inputs a row: this reads words up to 7 and inputs up to 31.
    unsafe {
        for word in 0..8 {
            let packed: [__m512i; 2] =
                [0, 1].map(|side| _mm512_loadu_si512(words.add(word * PANEL + side * 16).cast()));
            let mut one = |index: usize, codes: [__m512i; 2]| {
                let weights = [0, 1].map(|side| {
                    let code = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(codes[side]));
                    _mm512_mul_ps(code, scale[side])
                });
                add(word * 4 + index, weights, inputs, sums);
            };
            one(0, packed.map(|word| _mm512_slli_epi32::<24>(word)));
            one(1, packed.map(|word| _mm512_slli_epi32::<16>(word)));
            one(2, packed.map(|word| _mm512_slli_epi32::<8>(word)));
            one(3, packed);
        }
    }
}
