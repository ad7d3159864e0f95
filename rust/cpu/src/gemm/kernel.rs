//! The product of a few rows of activations with 32 columns. All matrix arithmetic is done here,
//! for weights and for attention; products with block formats have a definition of their own (scaled.rs).
//!
//! Every element of the result is one chain `c = a[k] * b[k] + c` in rising k. Neither the number
//! of rows nor the way a caller splits k into several calls changes a bit of it, so a request's
//! output does not depend on its batch.

use std::ops::Range;

use ingle_model::WeightType;

use super::columns::Columns;
use crate::aligned::numbers;
use crate::block_layout::{is_block_format, layout};
use crate::fp8_layout::{self, Stretch, stretches};
use crate::panel::{DIRECT_ROWS, PANEL, Panel, TILE_ROWS};
use crate::rows::Prepared;
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
            _ => !is_block_format(weight_type),
        },
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => match weight_type {
            WeightType::F16 => true,
            WeightType::Bf16 => depth.is_multiple_of(2),
            _ => false,
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
            // SAFETY: `VectorPath::resolve` detected the features. The asserts show 1 to 4 or 8 rows of `out` and
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
                // SAFETY: `VectorPath::resolve` detected the features. The asserts show 1 to 4 or 8 rows of
                // `out` and the length of `a`, which now begins at the part's inputs; `elements` was cut to
                // 32 for each of them and `scales` to 32.
                unsafe { super::avx512_fp8::tile(a, a_stride, (elements, scales), out) };
            }
        }
        #[cfg(target_arch = "x86_64")]
        (Kind::Avx2, WeightType::Bf16 | WeightType::F16) => {
            let panel = &numbers::<u16>(panel)[inputs.start * PANEL..inputs.end * PANEL];
            let pairs = inputs.start.is_multiple_of(2) && depth.is_multiple_of(2);
            assert!(pairs || weight_type == WeightType::F16, "half a pair");
            // SAFETY: `VectorPath::resolve` detected the features. The asserts show the rows of `out`, the length
            // of `a` and an even depth for bf16; `panel` was cut to 32 numbers for each input.
            unsafe {
                if weight_type == WeightType::Bf16 {
                    super::avx2_halves::tile::<true>(a, a_stride, panel, depth, out);
                } else {
                    super::avx2_halves::tile::<false>(a, a_stride, panel, depth, out);
                }
            }
        }
        _ => unreachable!("no kernel for {weight_type:?} as stored"),
    }
}

/// Whether `add_block_product` exists for this path; it has all block formats.
pub(crate) fn has_block_kernel(path: VectorPath) -> bool {
    path.kind() != Kind::Portable
}

/// How many of `rows` rows one call of `add_block_product` takes. Each number is an instance of each format's kernel.
pub(crate) fn block_tile_rows(path: VectorPath, rows: usize) -> usize {
    match (path.kind(), rows) {
        #[cfg(target_arch = "x86_64")]
        (Kind::Avx2, _) => rows.min(4),
        (_, 8..) => 8,
        _ => rows.min(4),
    }
}

/// As `add_scaled_product` for as many rows as `block_tile_rows` says and inputs `inputs` of a panel in a block format, whose
/// codes become numbers in registers. `x` starts at the first of the inputs.
///
/// # Panics
/// If there is no such kernel, the range cuts a block, or a slice is too short.
pub(crate) fn add_block_product(
    path: VectorPath,
    x: Prepared<'_>,
    panel: Panel<'_>,
    inputs: Range<usize>,
    out: &mut [f32],
) {
    let rows = out.len() / PANEL;
    assert!(rows * PANEL == out.len() && block_tile_rows(path, rows) == rows && rows > 0);
    x.assert_holds(rows, inputs.len());
    let sizes = layout(panel.weight_type);
    let (first, last) = (inputs.start / sizes.elements, inputs.end / sizes.elements);
    let whole = first * sizes.elements == inputs.start && last * sizes.elements == inputs.end;
    assert!(whole, "part of a block");
    let blocks = (panel.weight_type, &panel.bytes[first * sizes.bytes..last * sizes.bytes]);
    let parts = inputs.len() / 32;
    match path.kind() {
        // SAFETY: the features were detected (`VectorPath::resolve`). The asserts show 1 to 4 or 8 rows of `out`, that
        // `x` has as many with the inputs, and whole blocks, to which the panel was cut.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { super::blocks::tile_avx512(x, blocks, parts, out) },
        // SAFETY: AVX2, FMA and F16C were detected (`VectorPath::resolve`). The asserts show 1 to 4 rows of `out`, that
        // `x` has as many with the inputs, and whole blocks, to which the panel was cut.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { super::blocks::tile_avx2(x, blocks, parts, out) },
        Kind::Portable => unreachable!("no kernel of blocks"),
    }
}
