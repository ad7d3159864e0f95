//! How a matrix of 4-bit codes lies in a panel: scales and zeros first, then the codes.
//! ```text
//! [groups] f32 x 32     an output's scale stands in its lane
//! [groups] u8  x 32     zeros; 0 for F4E2M1
//! [in / 8] u32 x 32     codes: input k in word k / 8, bits 4 (k % 8) and up
//! ```
//! Input `k` is in group `k / group`, or as the matrix's list says.

use std::ops::Range;

use ingle_model::{GroupedRows, WeightType};

use crate::aligned::{numbers, numbers_mut};
use crate::fp8_layout::{Stretch, stretches};
use crate::panel::{PANEL, Panel};
use crate::vector_path::{Arithmetic, VectorPath, per_path};

/// Bytes of a panel.
pub(crate) fn panel_bytes(cols: usize, group: usize) -> usize {
    (cols.div_ceil(group) * 5 + cols / 8 * 4) * PANEL
}

/// Fills a panel from rows `rows` of what was read; at most 32.
pub(crate) fn pack_panel(
    (cols, group): (usize, usize),
    stored: &GroupedRows,
    rows: Range<usize>,
    panel: &mut [u8],
) {
    let (groups, words) = (cols.div_ceil(group), cols / 8);
    let (to_scales, rest) = panel.split_at_mut(groups * 4 * PANEL);
    let (to_zeros, to_codes) = rest.split_at_mut(groups * PANEL);
    let to_scales = numbers_mut::<f32>(to_scales);
    let to_codes = numbers_mut::<u32>(to_codes);
    for (lane, row) in rows.enumerate() {
        let scales = &stored.scales[row * groups..][..groups];
        for (scale, to) in scales.iter().zip(to_scales.as_chunks_mut::<PANEL>().0) {
            to[lane] = *scale;
        }
        let zeros = &stored.zeros[row * groups..][..groups];
        for (zero, to) in zeros.iter().zip(to_zeros.as_chunks_mut::<PANEL>().0) {
            to[lane] = *zero;
        }
        let codes = &stored.codes[row * words..][..words];
        for (code, to) in codes.iter().zip(to_codes.as_chunks_mut::<PANEL>().0) {
            to[lane] = *code;
        }
    }
}

/// Writes inputs `inputs` of a panel to `out` as `[input][32 outputs]`.
pub(crate) fn unpack(path: VectorPath, panel: Panel<'_>, inputs: Range<usize>, out: &mut [f32]) {
    let Panel { weight_type, cols, group, column_groups, bytes } = panel;
    let groups = cols.div_ceil(group);
    let (scales, rest) = bytes.split_at(groups * 4 * PANEL);
    let (zeros, codes) = rest.split_at(groups * PANEL);
    let (scales, codes) = (numbers::<f32>(scales), numbers::<u32>(codes));
    let mut widen = |group: usize, part: Range<usize>| {
        let out = &mut out[(part.start - inputs.start) * PANEL..(part.end - inputs.start) * PANEL];
        let lanes = group * PANEL..(group + 1) * PANEL;
        let (scales, zeros) = (&scales[lanes.clone()], &zeros[lanes]);
        match weight_type {
            WeightType::F4E2M1 => widen_floats(path, codes, part.start, scales, out),
            _ => widen_integers(path, codes, part.start, (scales, zeros), out),
        }
    };
    if column_groups.is_empty() {
        for Stretch { group, inputs } in stretches(inputs.clone(), group) {
            widen(group, inputs);
        }
    } else {
        for input in inputs.clone() {
            widen(column_groups[input] as usize, input..input + 1);
        }
    }
}

per_path! {
    fn widen_integers(
        codes: &[u32],
        first: usize,
        groups: (&[f32], &[u8]),
        out: &mut [f32],
    ) = widen_integers_body
}

/// The difference of codes is exact.
#[inline(always)]
fn widen_integers_body<A: Arithmetic>(
    codes: &[u32],
    first: usize,
    (scales, zeros): (&[f32], &[u8]),
    out: &mut [f32],
) {
    let (Some(scales), Some(zeros)) = (scales.first_chunk::<PANEL>(), zeros.first_chunk::<PANEL>())
    else {
        return;
    };
    for (input, out) in (first..).zip(out.as_chunks_mut::<PANEL>().0) {
        let Some(words) = codes[input / 8 * PANEL..].first_chunk::<PANEL>() else { return };
        for lane in 0..PANEL {
            let code = words[lane] >> (input % 8 * 4) & 15;
            let number = code.cast_signed() - i32::from(zeros[lane]);
            out[lane] = number as f32 * scales[lane];
        }
    }
}

per_path! {
    fn widen_floats(codes: &[u32], first: usize, scales: &[f32], out: &mut [f32]) = widen_floats_body
}

#[inline(always)]
fn widen_floats_body<A: Arithmetic>(codes: &[u32], first: usize, scales: &[f32], out: &mut [f32]) {
    let Some(scales) = scales.first_chunk::<PANEL>() else { return };
    for (input, out) in (first..).zip(out.as_chunks_mut::<PANEL>().0) {
        let Some(words) = codes[input / 8 * PANEL..].first_chunk::<PANEL>() else { return };
        for lane in 0..PANEL {
            let code = words[lane] >> (input % 8 * 4) & 15;
            // Exponent and mantissa in their places of an f32, whose exponent is 126 too small.
            let size = f32::from_bits((code & 7) << 22) * f32::from_bits(EXPONENT_126);
            let number = f32::from_bits(size.to_bits() | (code & 8) << 28);
            out[lane] = number * scales[lane];
        }
    }
}

/// 2^126, as bits.
const EXPONENT_126: u32 = (126 + 127) << 23;
