//! Converts the stored numbers of a panel to f32, exactly as the formats define them. Workers call
//! this for the part of a panel that they are about to multiply.

use std::ops::Range;

use ingle_model::WeightType;

use crate::aligned::numbers;
use crate::block_layout::layout;
use crate::fp8_layout;
use crate::grouped_layout;
use crate::panel::{PANEL, Panel};
use crate::vector_path::{Arithmetic, VectorPath, per_path};

/// Writes inputs `inputs` of a panel to `out` as `[input][32 outputs]`. For block formats the range
/// starts and ends at multiples of 32; for bf16 it starts at an even input.
pub(crate) fn unpack(path: VectorPath, panel: Panel<'_>, inputs: Range<usize>, out: &mut [f32]) {
    let out = &mut out[..inputs.len() * PANEL];
    if matches!(panel.weight_type, WeightType::Int4 | WeightType::F4E2M1) {
        return grouped_layout::unpack(path, panel, inputs, out);
    }
    let Panel { weight_type, cols, group, bytes: panel, .. } = panel;
    match weight_type {
        WeightType::F32 => {
            let panel = numbers::<f32>(panel);
            out.copy_from_slice(&panel[inputs.start * PANEL..inputs.end * PANEL]);
        }
        WeightType::F16 => {
            let panel = numbers::<u16>(panel);
            widen_f16(path, &panel[inputs.start * PANEL..inputs.end * PANEL], out);
        }
        WeightType::Bf16 => {
            let pairs = inputs.start / 2 * PANEL..inputs.end.div_ceil(2) * PANEL;
            widen_bf16(path, &numbers::<u32>(panel)[pairs], out);
        }
        WeightType::F8E4M3 => fp8_layout::unpack(path, (panel, cols, group), inputs, out),
        _ => {
            let sizes = layout(weight_type);
            for (input, out) in inputs.step_by(32).zip(out.as_chunks_mut::<BLOCK>().0) {
                let block = &panel[input / sizes.elements * sizes.bytes..][..sizes.bytes];
                let part = input % sizes.elements / 32;
                unpack_block(path, weight_type, block, part, out);
            }
        }
    }
}

/// f16 to f32 without tables or branches, so that it vectorises; exact for every value.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let bits = u32::from(half);
    let sign = (bits & 0x8000) << 16;
    // Moves the exponent by 112 with a product, which also makes subnormal halves normal.
    let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | sign | special)
}

per_path! {
    fn widen_f16(source: &[u16], out: &mut [f32]) = widen_f16_body
}

#[inline(always)]
fn widen_f16_body<A: Arithmetic>(source: &[u16], out: &mut [f32]) {
    for (half, value) in source.iter().zip(out) {
        *value = f16_to_f32(*half);
    }
}

per_path! {
    fn widen_bf16(pairs: &[u32], out: &mut [f32]) = widen_bf16_body
}

/// A word holds an even input's weight in its low half, the next one's in its high half.
#[inline(always)]
fn widen_bf16_body<A: Arithmetic>(pairs: &[u32], out: &mut [f32]) {
    for (words, out) in pairs.as_chunks::<PANEL>().0.iter().zip(out.chunks_mut(2 * PANEL)) {
        let (even, odd) = out.split_at_mut(PANEL);
        for (value, word) in even.iter_mut().zip(words) {
            *value = f32::from_bits(word << 16);
        }
        for (value, word) in odd.iter_mut().zip(words) {
            *value = f32::from_bits(word & 0xffff_0000);
        }
    }
}

const BLOCK: usize = 32 * PANEL;
type Lanes = [f32; PANEL];

/// Scale and minimum of 32 outputs for the first and the second 16 of 32 inputs.
#[derive(Clone, Copy)]
struct Affine {
    scale: [Lanes; 2],
    min: Lanes,
}

per_path! {
    fn unpack_block(weight_type: WeightType, block: &[u8], part: usize, out: &mut [f32; BLOCK])
        = unpack_block_body
}

/// `value = scale * (code - offset) + min`. Products of a stored scale and a code are exact in f32
/// (at most 24 bits) wherever a minimum is added, so fused and separate arithmetic agree.
#[inline(always)]
fn unpack_block_body<A: Arithmetic>(
    weight_type: WeightType,
    block: &[u8],
    part: usize,
    out: &mut [f32; BLOCK],
) {
    let sizes = layout(weight_type);
    let offset = f32::from(sizes.offset);
    let Affine { scale, min } = affine(weight_type, block, part);
    codes_of(weight_type, block, part, out);
    for (k, out) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        let scale = &scale[k / 16];
        for lane in 0..PANEL {
            out[lane] = if sizes.has_min {
                A::mul_add(out[lane], scale[lane], min[lane])
            } else {
                (out[lane] - offset) * scale[lane]
            };
        }
    }
}

per_path! {
    /// As `unpack` for a block format, but leaves numbers as codes, unsigned where the format subtracts an
    /// offset. `groups` gets scales and minimums of each group of inputs as `[group][2][32 outputs]`: the value is
    /// `scale * code + min`, where what the offset subtracts is part of the minimum.
    pub(crate) fn unpack_codes(
        panel: Panel<'_>,
        inputs: Range<usize>,
        out: &mut [f32],
        groups: &mut [f32],
    ) = unpack_codes_body
}

#[inline(always)]
fn unpack_codes_body<A: Arithmetic>(
    panel: Panel<'_>,
    inputs: Range<usize>,
    out: &mut [f32],
    groups: &mut [f32],
) {
    let sizes = layout(panel.weight_type);
    let offset = f32::from(sizes.offset);
    let groups = groups.as_chunks_mut::<PANEL>().0.chunks_exact_mut(2 * 32 / sizes.group);
    let parts = inputs.step_by(32).zip(out.as_chunks_mut::<BLOCK>().0);
    for ((input, out), groups) in parts.zip(groups) {
        let block = &panel.bytes[input / sizes.elements * sizes.bytes..][..sizes.bytes];
        let part = input % sizes.elements / 32;
        codes_of(panel.weight_type, block, part, out);
        let Affine { scale, min } = affine(panel.weight_type, block, part);
        for (group, lanes) in groups.chunks_exact_mut(2).enumerate() {
            lanes[0] = scale[group];
            for lane in 0..PANEL {
                lanes[1][lane] =
                    if sizes.has_min { min[lane] } else { -offset * scale[group][lane] };
            }
        }
    }
}

/// What the codes that `unpack_quads` writes are too large by.
pub(crate) fn quad_offset(weight_type: WeightType) -> i32 {
    let sizes = layout(weight_type);
    if sizes.words == 8 { 128 } else { i32::from(sizes.offset) }
}

per_path! {
    /// As `unpack_codes`, with the codes of four inputs as unsigned bytes of a word: `[input / 4][32 outputs]`. Minimums
    /// are the format's own: what an offset takes away is not part of them.
    pub(crate) fn unpack_quads(
        panel: Panel<'_>,
        inputs: Range<usize>,
        words: &mut [u32],
        groups: &mut [f32],
    ) = unpack_quads_body
}

#[inline(always)]
fn unpack_quads_body<A: Arithmetic>(
    panel: Panel<'_>,
    inputs: Range<usize>,
    words: &mut [u32],
    groups: &mut [f32],
) {
    let sizes = layout(panel.weight_type);
    let groups = groups.as_chunks_mut::<PANEL>().0.chunks_exact_mut(2 * 32 / sizes.group);
    let parts = inputs.step_by(32).zip(words.as_chunks_mut::<{ 8 * PANEL }>().0);
    for ((input, words), groups) in parts.zip(groups) {
        let block = &panel.bytes[input / sizes.elements * sizes.bytes..][..sizes.bytes];
        let part = input % sizes.elements / 32;
        let stored = &block[sizes.header + part * sizes.words * PANEL * 4..];
        quads_of(sizes.words, &stored[..sizes.words * PANEL * 4], words);
        let Affine { scale, min } = affine(panel.weight_type, block, part);
        for (group, lanes) in groups.chunks_exact_mut(2).enumerate() {
            lanes[0] = scale[group];
            lanes[1] = min;
        }
    }
}

/// The words of 32 inputs.
#[inline(always)]
fn quads_of(num_words: usize, stored: &[u8], words: &mut [u32; 8 * PANEL]) {
    for (quad, words) in words.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        // As in `expand`.
        let words = std::hint::black_box(words);
        if num_words == 8 {
            let lines = stored[quad * 4 * PANEL..].as_chunks::<PANEL>().0;
            for (lane, word) in words.iter_mut().enumerate() {
                let four = [lines[0][lane], lines[1][lane], lines[2][lane], lines[3][lane]];
                *word = u32::from_le_bytes(four) ^ 0x8080_8080;
            }
            continue;
        }
        let stored = numbers::<u32>(stored).as_chunks::<PANEL>().0;
        let low = &stored[quad / 2];
        for (word, low) in words.iter_mut().zip(low) {
            *word = low >> (quad % 2 * 4) & 0x0f0f_0f0f;
        }
        let (line, turn, bits) = match num_words {
            5 => (4, quad, 0x1010_1010),
            6 => (4 + quad / 4, quad % 4 * 2, 0x3030_3030),
            _ => continue,
        };
        for (word, high) in words.iter_mut().zip(&stored[line]) {
            *word |= high.rotate_right(turn as u32) & bits;
        }
    }
}

/// Scales and minimums of part `part` of a block, without what an offset adds.
#[inline(always)]
fn affine(weight_type: WeightType, block: &[u8], part: usize) -> Affine {
    let d = halves(block, 0);
    match weight_type {
        WeightType::Q4_1 | WeightType::Q5_1 => Affine { scale: [d, d], min: halves(block, 1) },
        WeightType::Q4K | WeightType::Q5K => {
            let dmin = halves(block, 1);
            let scales = &block[(4 + part) * PANEL..][..PANEL];
            let mins = &block[(12 + part) * PANEL..][..PANEL];
            let (mut scale, mut min) = (ZERO, ZERO);
            for lane in 0..PANEL {
                scale[lane] = d[lane] * f32::from(scales[lane]);
                min[lane] = -(dmin[lane] * f32::from(mins[lane]));
            }
            Affine { scale: [scale, scale], min }
        }
        WeightType::Q6K => {
            let scales = &block[(2 + part * 2) * PANEL..][..2 * PANEL];
            let (mut first, mut second) = (ZERO, ZERO);
            for lane in 0..PANEL {
                first[lane] = d[lane] * f32::from(scales[lane].cast_signed());
                second[lane] = d[lane] * f32::from(scales[PANEL + lane].cast_signed());
            }
            Affine { scale: [first, second], min: ZERO }
        }
        _ => Affine { scale: [d, d], min: ZERO },
    }
}

/// The codes of part `part` of a block.
#[inline(always)]
fn codes_of(weight_type: WeightType, block: &[u8], part: usize, out: &mut [f32; BLOCK]) {
    let sizes = layout(weight_type);
    let stored = &block[sizes.header + part * sizes.words * PANEL * 4..][..sizes.words * PANEL * 4];
    match sizes.words {
        4 => expand::<4>(numbers::<u32>(stored), out),
        5 => expand::<5>(numbers::<u32>(stored), out),
        6 => expand::<6>(numbers::<u32>(stored), out),
        _ => {
            for (code, value) in stored.iter().zip(out) {
                *value = f32::from(code.cast_signed());
            }
        }
    }
}

/// Field `field` of a block header, f16 for each output.
#[inline(always)]
fn halves(block: &[u8], field: usize) -> Lanes {
    let source = numbers::<u16>(&block[field * 2 * PANEL..][..2 * PANEL]);
    let mut lanes = ZERO;
    for (lane, half) in lanes.iter_mut().zip(source) {
        *lane = f16_to_f32(*half);
    }
    lanes
}

/// 32 inputs whose codes have four bits and, by the number of words, none, one or two more.
#[inline(always)]
fn expand<const WORDS: usize>(words: &[u32], out: &mut [f32; BLOCK]) {
    for (k, out) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        // Hides that the next line follows: the compiler would compute columns, not lines, at once.
        let out = std::hint::black_box(out);
        let (quad, byte) = (k / 4, (k % 4 * 8) as u32);
        let low = &words.as_chunks::<PANEL>().0[k / 8];
        let shift = byte + (quad % 2 * 4) as u32;
        match WORDS {
            4 => {
                for lane in 0..PANEL {
                    out[lane] = (low[lane] >> shift & 15).cast_signed() as f32;
                }
            }
            _ => {
                let (word, place, bits) =
                    if WORDS == 5 { (4, quad, 1) } else { (4 + quad / 4, quad % 4 * 2, 3) };
                let high = &words.as_chunks::<PANEL>().0[word];
                let (turn, bits) = (byte + place as u32, bits << 4);
                for lane in 0..PANEL {
                    let high = high[lane].rotate_right(turn) & bits;
                    out[lane] = (low[lane] >> shift & 15 | high).cast_signed() as f32;
                }
            }
        }
    }
}

const ZERO: Lanes = [0.0; PANEL];

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::matrix::PackedMatrix;
    use crate::testing::{ALL_TYPES, Random, random_fp8_matrix, random_matrix};

    #[test]
    fn test_every_format_unpacks_to_the_reference_values_on_every_path() {
        let mut random = Random(1);
        for weight_type in ALL_TYPES {
            let block = weight_type.block_elements();
            let widths = if block == 1 { [1, 70, 257] } else { [block, 2 * block, 3 * block] };
            for (rows, cols) in [1, 32, 75].into_iter().zip(widths) {
                let (matrix, values) = random_matrix(&mut random, weight_type, rows, cols);
                check(&matrix, &values, &format!("{weight_type:?} [{rows}, {cols}]"));
            }
        }
    }

    #[test]
    fn test_fp8_unpacks_to_elements_times_scales_on_every_path() {
        let mut random = Random(2);
        for (rows, cols) in [(1, 1), (32, 70), (75, 257)] {
            for block in [(rows, cols), (1, cols), (128, 128), (40, 48), (1, 32)] {
                let (matrix, values) = random_fp8_matrix(&mut random, (rows, cols), block);
                check(&matrix, &values, &format!("[{rows}, {cols}] in blocks of {block:?}"));
            }
        }
    }

    fn check(matrix: &PackedMatrix, values: &[f32], context: &str) {
        let cols = matrix.cols();
        let rows = values.len() / cols;
        for path in VectorPath::all() {
            let context = format!("{context} {}", path.name());
            for panel in 0..matrix.num_panels() {
                let mut out = vec![0.0; cols * PANEL];
                unpack(path, matrix.panel(panel), 0..cols, &mut out);
                for (row, lane) in (panel * PANEL..rows).zip(0..PANEL) {
                    for k in 0..cols {
                        let (ours, want) = (out[k * PANEL + lane], values[row * cols + k]);
                        assert!(ours == want, "{context}: {ours} at {row}, {k}: {want}");
                    }
                }
            }
            let mut row = vec![0.0; cols];
            matrix.read_row(path, rows - 1, &mut row);
            assert_eq!(row, values[(rows - 1) * cols..], "{context}");
        }
    }

    #[test]
    fn test_every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, want) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours == want || (ours.is_nan() && want.is_nan()), "{bits:#x}: {ours} {want}");
        }
    }
}
