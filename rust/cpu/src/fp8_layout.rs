//! How an fp8 matrix lies in a panel: scales first, then the elements as stored.
//! ```text
//! [in / group] f32 x 32      the last group may be partial; an output's scale stands in its lane
//! [in]         u8 x 32
//! ```
//! `group`: inputs of an output that share a scale. One scale a matrix or a row is one group of all inputs.
//! Rows that share scales (blocks) each have a copy, so that a panel needs to know nothing of its neighbours.

use std::ops::Range;

use crate::aligned::{numbers, numbers_mut};
use crate::panel::PANEL;
use crate::vector_path::{Arithmetic, VectorPath, per_path};

/// Bytes of a panel.
pub(crate) fn panel_bytes(cols: usize, group: usize) -> usize {
    (cols.div_ceil(group) * 4 + cols) * PANEL
}

/// Scales and elements of a panel.
pub(crate) fn parts(panel: &[u8], cols: usize, group: usize) -> (&[f32], &[u8]) {
    let (scales, elements) = panel.split_at(cols.div_ceil(group) * 4 * PANEL);
    (numbers(scales), elements)
}

/// Fills a panel from elements `[rows, cols]` and scales `[rows, cols / group]`; at most 32 rows.
pub(crate) fn pack_panel(
    cols: usize,
    group: usize,
    (elements, scales): (&[u8], &[f32]),
    panel: &mut [u8],
) {
    let groups = cols.div_ceil(group);
    let (to_scales, to_elements) = panel.split_at_mut(groups * 4 * PANEL);
    let to_scales = numbers_mut::<f32>(to_scales);
    let rows = elements.chunks_exact(cols).zip(scales.chunks_exact(groups));
    for (lane, (elements, scales)) in rows.enumerate() {
        for (scale, to) in scales.iter().zip(to_scales.as_chunks_mut::<PANEL>().0) {
            to[lane] = *scale;
        }
        for (element, to) in elements.iter().zip(to_elements.as_chunks_mut::<PANEL>().0) {
            to[lane] = *element;
        }
    }
}

/// Writes inputs `inputs` of a panel to `out` as `[input][32 outputs]`.
pub(crate) fn unpack(
    path: VectorPath,
    (panel, cols, group): (&[u8], usize, usize),
    inputs: Range<usize>,
    out: &mut [f32],
) {
    let (scales, elements) = parts(panel, cols, group);
    for Stretch { group, inputs: part } in stretches(inputs.clone(), group) {
        let out = &mut out[(part.start - inputs.start) * PANEL..(part.end - inputs.start) * PANEL];
        let elements = &elements[part.start * PANEL..part.end * PANEL];
        widen(path, elements, &scales[group * PANEL..][..PANEL], out);
    }
}

/// Neighbouring inputs of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) group: usize,
    pub(crate) inputs: Range<usize>,
}

/// Cuts inputs at the borders of groups.
pub(crate) fn stretches(inputs: Range<usize>, group: usize) -> impl Iterator<Item = Stretch> {
    let groups =
        if inputs.is_empty() { 0..0 } else { inputs.start / group..inputs.end.div_ceil(group) };
    groups.map(move |index| {
        let start = inputs.start.max(index * group);
        Stretch { group: index, inputs: start..inputs.end.min((index + 1) * group) }
    })
}

per_path! {
    fn widen(elements: &[u8], scales: &[f32], out: &mut [f32]) = widen_body
}

#[inline(always)]
fn widen_body<A: Arithmetic>(elements: &[u8], scales: &[f32], out: &mut [f32]) {
    let Some(scales) = scales.first_chunk::<PANEL>() else { return };
    let inputs = elements.as_chunks::<PANEL>().0.iter().zip(out.as_chunks_mut::<PANEL>().0);
    for (elements, out) in inputs {
        for lane in 0..PANEL {
            let bits = u32::from(elements[lane]);
            // As `e4m3_to_f32` for numbers; loading refuses what is none.
            let size = f32::from_bits((bits & 0x7f) << 20) * f32::from_bits(EXPONENT_120);
            let value = f32::from_bits(size.to_bits() | (bits & 0x80) << 24);
            out[lane] = value * scales[lane];
        }
    }
}

/// 2^120, as bits.
const EXPONENT_120: u32 = (120 + 127) << 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_stretches_cover_all_inputs_and_cross_no_group() {
        let cut = |inputs, group| -> Vec<_> {
            stretches(inputs, group).map(|stretch| (stretch.group, stretch.inputs)).collect()
        };
        assert_eq!(cut(0..300, 128), [(0, 0..128), (1, 128..256), (2, 256..300)]);
        assert_eq!(cut(64..128, 128), [(0, 64..128)]);
        assert_eq!(cut(100..130, 40), [(2, 100..120), (3, 120..130)]);
        assert_eq!(cut(5..5, 8), []);
    }
}
