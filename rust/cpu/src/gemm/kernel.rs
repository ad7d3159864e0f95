//! The product of a few rows of activations with 32 columns. All matrix arithmetic is done here,
//! for weights and for attention.
//!
//! Every element of the result is one chain `c = a[k] * b[k] + c` in rising k. Neither the number
//! of rows nor the way a caller splits k into several calls changes a bit of it, so a request's
//! output does not depend on its batch.

use std::ops::Range;

use ingle_model::WeightType;

use super::columns::Columns;
use crate::aligned::numbers;
use crate::block_layout::layout;
use crate::fp8_layout::{self, Stretch, stretches};
use crate::panel::{DIRECT_ROWS, PANEL, Panel, TILE_ROWS};
use crate::vector_path::{Kind, VectorPath};

/// Adds `a[rows, depth] * b[depth, 32]` to `out[rows][32]`. Row r of `a` starts at `r * a_stride`.
///
/// # Panics
/// If a slice is too short.
pub(crate) fn add_product(
    path: VectorPath,
    (a, a_stride): (&[f32], usize),
    b: Columns<'_>,
    depth: usize,
    out: &mut [f32],
) {
    if depth == 0 {
        return;
    }
    let rows = out.len() / PANEL;
    assert!(rows * PANEL == out.len());
    let mut row = 0;
    while row < rows {
        let count = (rows - row).min(TILE_ROWS);
        let a = &a[row * a_stride..];
        let out = &mut out[row * PANEL..][..count * PANEL];
        assert!(a.len() >= (count - 1) * a_stride + depth, "activations too short");
        let need = (depth - 1) * b.stride + PANEL / 2;
        assert!(b.first.len() >= need && b.second.len() >= need, "columns too short");
        match path.kind() {
            // SAFETY: the features were detected (`VectorPath::resolve`); the asserts above show that
            // rows of `a`, both halves of `b` and `out` hold what `count` and `depth` read and write.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { super::avx512::tile(a, a_stride, b, depth, out) },
            // SAFETY: AVX2 and FMA were detected (`VectorPath::resolve`); the asserts above show that rows
            // of `a`, both halves of `b` and `out` hold what `count` and `depth` read and write.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { super::avx2::tile(a, a_stride, b, depth, out) },
            Kind::Portable => portable_tile(a, a_stride, b, depth, out),
        }
        row += count;
    }
}

fn portable_tile(a: &[f32], a_stride: usize, b: Columns<'_>, depth: usize, out: &mut [f32]) {
    for (row, out) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        let a = &a[row * a_stride..][..depth];
        let mut sums = *out;
        for (k, a) in a.iter().enumerate() {
            let first = &b.first[k * b.stride..][..16];
            let second = &b.second[k * b.stride..][..16];
            for lane in 0..16 {
                sums[lane] += a * first[lane];
                sums[16 + lane] += a * second[lane];
            }
        }
        *out = sums;
    }
}

/// Whether `add_stored_product` exists for this path and format.
pub(crate) fn has_stored_kernel(path: VectorPath, weight_type: WeightType, depth: usize) -> bool {
    match path.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => match weight_type {
            WeightType::F32 | WeightType::Int4 | WeightType::F4E2M1 => false,
            WeightType::Bf16 => depth.is_multiple_of(2),
            _ => true,
        },
        _ => false,
    }
}

/// As `add_product` for at most `DIRECT_ROWS` rows and inputs `inputs` of a panel as it is stored, made
/// numbers in registers. `a` starts at the first of them.
///
/// # Panics
/// If there is no such kernel, the range cuts a block, or a slice is too short.
pub(crate) fn add_stored_product(
    path: VectorPath,
    (a, a_stride): (&[f32], usize),
    panel: Panel<'_>,
    inputs: Range<usize>,
    out: &mut [f32],
) {
    let Panel { weight_type, cols, group, bytes: panel, .. } = panel;
    let (rows, depth) = (out.len() / PANEL, inputs.len());
    assert!(rows * PANEL == out.len() && (1..=DIRECT_ROWS).contains(&rows));
    assert!(a.len() >= (rows - 1) * a_stride + depth, "activations too short");
    match (path.kind(), weight_type) {
        #[cfg(target_arch = "x86_64")]
        (Kind::Avx512, WeightType::Bf16) => {
            assert!(inputs.start.is_multiple_of(2) && depth.is_multiple_of(2), "half a pair");
            let panel = &numbers::<u16>(panel)[inputs.start * PANEL..inputs.end * PANEL];
            // SAFETY: `VectorPath::resolve` detected the features. The asserts show an even depth, 1 to 8
            // rows of `out` and the length of `a`; `panel` was cut to 32 numbers for each input.
            unsafe { super::avx512::tile_bf16(a, a_stride, panel, depth, out) };
        }
        #[cfg(target_arch = "x86_64")]
        (Kind::Avx512, WeightType::F16) => {
            let panel = &numbers::<u16>(panel)[inputs.start * PANEL..inputs.end * PANEL];
            // SAFETY: `VectorPath::resolve` detected the features. The asserts show 1 to 8 rows of `out` and
            // the length of `a`; `panel` was cut to 32 numbers for each input.
            unsafe { super::avx512::tile_f16(a, a_stride, panel, depth, out) };
        }
        #[cfg(target_arch = "x86_64")]
        (Kind::Avx512, WeightType::F8E4M3) => {
            let (scales, elements) = fp8_layout::parts(panel, cols, group);
            for Stretch { group, inputs: part } in stretches(inputs.clone(), group) {
                let a = &a[part.start - inputs.start..];
                let elements = &elements[part.start * PANEL..part.end * PANEL];
                let scales = &scales[group * PANEL..][..PANEL];
                // SAFETY: `VectorPath::resolve` detected the features. The asserts show 1 to 8 rows of
                // `out` and the length of `a`, which now begins at the part's inputs; `elements` was cut to
                // 32 for each of them and `scales` to 32.
                unsafe { super::avx512_fp8::tile(a, a_stride, (elements, scales), out) };
            }
        }
        #[cfg(target_arch = "x86_64")]
        (Kind::Avx512, _) if weight_type.block_elements() > 1 => {
            let sizes = layout(weight_type);
            let (first, last) = (inputs.start / sizes.elements, inputs.end / sizes.elements);
            let whole =
                first * sizes.elements == inputs.start && last * sizes.elements == inputs.end;
            assert!(whole, "part of a block");
            let panel = &panel[first * sizes.bytes..last * sizes.bytes];
            // SAFETY: `VectorPath::resolve` detected the features. The asserts show 1 to 8 rows of `out`,
            // the length of `a` and a depth of whole blocks; `panel` was cut to those blocks by the sizes of
            // the block layout, by which the kernel steps too.
            unsafe { super::avx512_blocks::tile(a, a_stride, (weight_type, panel), depth, out) };
        }
        _ => unreachable!("no kernel for {weight_type:?} as stored"),
    }
}
