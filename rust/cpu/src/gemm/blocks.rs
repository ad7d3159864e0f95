//! Products with GGUF blocks for few rows: codes become numbers in registers, and nothing else is written.
//! Decoding uses this. Gives the same bits as `unpack_codes` followed by `scaled::tile`.
//!
//! Four codes of an output lie a byte apart in a word (block_layout.rs). A mask leaves one of them where it is, as the
//! integer `code * 2^(8 j)`; the activation that meets it was divided by as much (`Prepared`), so that no shift is
//! needed: a mask, a conversion and a multiply-add for each register of weights.

use std::arch::x86_64::{__m256, __m512};

use ingle_model::WeightType;

use super::scaled::{Affine, GroupSums, fold};
use super::vector::{Vector, prefetch};
use crate::block_layout::{BlockLayout, layout};
use crate::panel::PANEL;
use crate::rows::Prepared;

/// Adds the product of `x` with whole blocks of a panel to `out[rows][32]`.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL exist. `out` holds 1 to 4 or 8 rows, `x` as many rows of at least `parts * 32` inputs, `panel`
/// the blocks of `weight_type` that hold `parts` stretches of 32 inputs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn tile_avx512(
    x: Prepared<'_>,
    (weight_type, panel): (WeightType, &[u8]),
    parts: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
    unsafe {
        match out.len() / PANEL {
            1 => any::<__m512, 1, 2>(x, (weight_type, panel), parts, out),
            2 => any::<__m512, 2, 2>(x, (weight_type, panel), parts, out),
            3 => any::<__m512, 3, 2>(x, (weight_type, panel), parts, out),
            4 => any::<__m512, 4, 2>(x, (weight_type, panel), parts, out),
            8 => any::<__m512, 8, 2>(x, (weight_type, panel), parts, out),
            rows => unreachable!("{rows} rows"),
        }
    }
}

/// As `tile_avx512`, for 1 to 4 rows.
///
/// # Safety
/// AVX2, FMA and F16C exist, and the lengths are as for `tile_avx512`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile_avx2(
    x: Prepared<'_>,
    (weight_type, panel): (WeightType, &[u8]),
    parts: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
    unsafe {
        match out.len() / PANEL {
            1 => any::<__m256, 1, 4>(x, (weight_type, panel), parts, out),
            2 => any::<__m256, 2, 4>(x, (weight_type, panel), parts, out),
            3 => any::<__m256, 3, 2>(x, (weight_type, panel), parts, out),
            _ => any::<__m256, 4, 2>(x, (weight_type, panel), parts, out),
        }
    }
}

/// Chooses the format.
///
/// # Safety
/// `V`'s instructions exist; the lengths are as for `tile_avx512` with `ROWS` rows.
#[inline(always)]
unsafe fn any<V: Vector, const ROWS: usize, const REGS: usize>(
    x: Prepared<'_>,
    (weight_type, panel): (WeightType, &[u8]),
    parts: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller promises the instructions and the lengths.
    unsafe {
        match weight_type {
            WeightType::Q4_0 => rows::<V, Q4_0, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q4_1 => rows::<V, Q4_1, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q5_0 => rows::<V, Q5_0, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q5_1 => rows::<V, Q5_1, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q8_0 => rows::<V, Q8_0, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q4K => rows::<V, Q4K, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q5K => rows::<V, Q5K, ROWS, REGS>(x, panel, parts, out),
            WeightType::Q6K => rows::<V, Q6K, ROWS, REGS>(x, panel, parts, out),
            _ => unreachable!("not a block format"),
        }
    }
}

/// A block format, so that each has functions of its own.
pub(super) trait Format {
    const TYPE: WeightType;
    const SIZES: BlockLayout = layout(Self::TYPE);
}

macro_rules! formats {
    ($($name:ident)*) => {
        $(
            pub(super) struct $name;
            impl Format for $name {
                const TYPE: WeightType = WeightType::$name;
            }
        )*
    };
}

formats!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4K Q5K Q6K);

/// One stretch of 32 inputs after the other.
///
/// # Safety
/// As `any`.
#[inline(always)]
unsafe fn rows<V: Vector, F: Format, const ROWS: usize, const REGS: usize>(
    x: Prepared<'_>,
    panel: &[u8],
    parts: usize,
    out: &mut [f32],
) {
    let sizes = F::SIZES;
    // The count is hidden from the compiler, which would unroll the loop and then run out of registers.
    let pairs = std::hint::black_box(sizes.group / 8);
    for part in 0..parts {
        let block = panel.as_ptr().wrapping_add(part * 32 / sizes.elements * sizes.bytes);
        let place = Place { block, part: part % (sizes.elements / 32), pairs };
        let inputs = Inputs {
            codes: if F::TYPE == WeightType::Q8_0 { x.plain } else { x.scaled }
                .as_ptr()
                .wrapping_add(part * 32),
            stride: x.stride,
            sums: x.sums.as_ptr().wrapping_add(part * 2),
            sums_stride: x.sums_stride,
        };
        // SAFETY: the caller promises `parts` stretches in `panel` and in the rows of `x`, and the rows of `out`.
        unsafe { stretch::<V, F, ROWS, REGS>(inputs, place, out.as_mut_ptr()) }
    }
}

/// The activations of a stretch: those that meet codes, and the sums of every 16, row by row.
#[derive(Clone, Copy)]
struct Inputs {
    codes: *const f32,
    stride: usize,
    sums: *const f32,
    sums_stride: usize,
}

/// One stretch of 32 inputs in its block.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) block: *const u8,
    pub(super) part: usize,
    /// Pairs of quads in a group.
    pub(super) pairs: usize,
}

/// # Safety
/// `V`'s instructions exist; `x` has 32 inputs and two sums for each of `ROWS` rows, `place` is a stretch of a whole
/// block, `out` holds `[ROWS][32]`.
#[inline(always)]
unsafe fn stretch<V: Vector, F: Format, const ROWS: usize, const REGS: usize>(
    x: Inputs,
    place: Place,
    out: *mut f32,
) {
    let sizes = F::SIZES;
    let words = place.block.wrapping_add(sizes.header + place.part * sizes.words * PANEL * 4);
    if place.part == 0 {
        prefetch_lines(place.block, sizes.header);
    }
    for column in (0..PANEL).step_by(REGS * V::LEN) {
        for group in 0..32 / sizes.group {
            let first = group * sizes.group / 8;
            // SAFETY: the caller promises the stretch, its inputs and their sums. A group's pairs of quads are pairs of
            // its stretch, and a column stays below 32.
            unsafe {
                let mut sums = [[V::zero(); REGS]; ROWS];
                for pair in first..first + place.pairs {
                    if column == 0 {
                        // A quarter of the stretch, spread over its arithmetic.
                        let bytes = sizes.words * PANEL;
                        prefetch_lines(words.wrapping_add(pair * bytes), bytes);
                    }
                    let words = words.add(column * sizes.column_bytes());
                    let a = x.codes.add(pair * 8);
                    quad::<V, F, ROWS, REGS, 0>(words, pair, (a, x.stride), &mut sums);
                    quad::<V, F, ROWS, REGS, 1>(words, pair, (a.add(4), x.stride), &mut sums);
                }
                let affine = affine::<V, F, REGS>(place, group, column);
                let inputs = GroupSums {
                    first: x.sums.add(group),
                    stride: x.sums_stride,
                    halves: sizes.group / 16,
                };
                fold(&affine, inputs, &sums, out.add(column));
            }
        }
    }
}

/// Asks for the lines that lie as far ahead of these as `AHEAD` says.
#[inline(always)]
pub(super) fn prefetch_lines(from: *const u8, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        prefetch(from.wrapping_add(AHEAD + at));
        at += 64;
    }
}

/// Adds the products of four inputs, quad `2 pair + ODD`; `a` points at the first of them in the first row.
///
/// # Safety
/// As `any`; `words` are those of a stretch, from the first output on.
#[inline(always)]
unsafe fn quad<V: Vector, F: Format, const ROWS: usize, const REGS: usize, const ODD: usize>(
    words: *const u8,
    pair: usize,
    (a, stride): (*const f32, usize),
    sums: &mut [[V; REGS]; ROWS],
) {
    for reg in 0..REGS {
        // SAFETY: the caller promises the words of this quad and four inputs for each row.
        unsafe {
            let words = words.add(reg * V::LEN * F::SIZES.column_bytes());
            let codes = codes::<V, F, ODD>(words, pair);
            for (j, codes) in codes.into_iter().enumerate() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = V::splat(*a.add(row * stride + j));
                    sums[reg] = a.mul_add(codes, sums[reg]);
                }
            }
        }
    }
}

/// The codes of four inputs, each times a power of two where `Prepared::scaled` has its inverse.
///
/// # Safety
/// As `quad`; `words` start at the first of `V::LEN` outputs.
#[inline(always)]
unsafe fn codes<V: Vector, F: Format, const ODD: usize>(words: *const u8, pair: usize) -> [V; 4] {
    let quad = 2 * pair + ODD;
    // SAFETY: the words of this quad lie where block_layout.rs says, and the caller promises them.
    unsafe {
        if F::SIZES.words == 8 {
            let line = words.add(quad * 4 * PANEL);
            return [
                V::signed_bytes(line),
                V::signed_bytes(line.add(PANEL)),
                V::signed_bytes(line.add(2 * PANEL)),
                V::signed_bytes(line.add(3 * PANEL)),
            ];
        }
        let words = words.cast::<u32>();
        let mut low = V::words(words.add(pair * PANEL));
        if ODD == 1 {
            low = V::right(low, 4);
        }
        let (bits, mask) = match F::SIZES.words {
            4 => (low, 15),
            5 => {
                let high = V::turn_right(V::words(words.add(4 * PANEL)), quad as i32);
                (V::or(V::and(low, 0x0f0f_0f0f), V::and(high, 0x1010_1010)), 31)
            }
            _ => {
                let high = V::words(words.add((4 + pair / 2) * PANEL));
                let high = V::turn_right(high, (quad % 4 * 2) as i32);
                (V::or(V::and(low, 0x0f0f_0f0f), V::and(high, 0x3030_3030)), 63)
            }
        };
        [
            V::to_floats(V::and(bits, mask)),
            V::to_floats(V::and(bits, mask << 8)),
            V::to_floats(V::and(bits, mask << 16)),
            V::to_floats(V::and(bits, mask << 24)),
        ]
    }
}

/// Scales and minimums of `REGS` registers of outputs.
///
/// # Safety
/// `V`'s instructions exist; `place` is a stretch of a whole block, with group `group`; outputs from `column` on exist.
#[inline(always)]
pub(super) unsafe fn affine<V: Vector, F: Format, const REGS: usize>(
    place: Place,
    group: usize,
    column: usize,
) -> Affine<V, REGS> {
    let Place { block, part, .. } = place;
    let has_min = F::SIZES.has_min || F::SIZES.offset > 0;
    // SAFETY: the header's fields lie where block_layout.rs says, each with one element for each output.
    unsafe {
        let mut affine = Affine { scale: [V::zero(); REGS], min: [V::zero(); REGS], has_min };
        for reg in 0..REGS {
            let lane = column + reg * V::LEN;
            let halves = block.add(lane * 2).cast::<u16>();
            let bytes = block.add(lane);
            let d = V::halves(halves);
            let (scale, min) = match F::TYPE {
                WeightType::Q4_1 | WeightType::Q5_1 => (d, V::halves(halves.add(PANEL))),
                WeightType::Q4K | WeightType::Q5K => {
                    let min = V::halves(halves.add(PANEL));
                    let min = min.mul(V::bytes(bytes.add((12 + part) * PANEL)));
                    (d.mul(V::bytes(bytes.add((4 + part) * PANEL))), min.mul(V::splat(-1.0)))
                }
                _ => {
                    let scale = if F::TYPE == WeightType::Q6K {
                        d.mul(V::signed_bytes(bytes.add((2 + part * 2 + group) * PANEL)))
                    } else {
                        d
                    };
                    // What is subtracted from codes becomes the minimum.
                    (scale, scale.mul(V::splat(-f32::from(F::SIZES.offset))))
                }
            };
            affine.scale[reg] = scale;
            affine.min[reg] = min;
        }
        affine
    }
}

/// Bytes ahead of the current ones: 1, 2 and 4 KiB were equal on Zen 4.
const AHEAD: usize = 2048;
