//! Products with rounded activations, for `CpuPrecision::Fast` alone (rounding.rs).
//!
//! With bf16 weights, the processor's dot product of bf16 pairs adds the products of two inputs to an f32, in rising
//! inputs. With block formats, for each group of 16 or 32 inputs, `s` is the exact sum of byte times code as a whole
//! number; then `out = scale * (step * s) + out` and, where there is a minimum, `out = min * (step * sum of bytes) + out`.
//! Neither the number of rows nor a split of the inputs changes a bit of either.

use std::ops::Range;

use ingle_model::WeightType;

use super::columns::QuadCodes;
use super::kernel::block_tile_rows;
use crate::block_layout::{is_block_format, layout};
use crate::panel::{FEW_ROWS, K_BLOCK, K_BLOCK_STORED, PANEL, Panel, TILE_ROWS};
use crate::rounding::{Form, Rounded};
use crate::unpack::{quad_offset, unpack_quads};
use crate::vector_path::VectorPath;

/// How activations are rounded for such a matrix; `None` where products are in f32.
pub(super) fn rounded_form(path: VectorPath, weight_type: WeightType) -> Option<Form> {
    match weight_type {
        _ if !path.is_fast() => None,
        WeightType::Bf16 => Some(Form::Halves),
        _ => is_block_format(weight_type).then_some(Form::Bytes),
    }
}

/// Adds the product of rounded rows and a panel to `out[rows][32]`. `codes` and `groups` have room for `K_BLOCK` inputs
/// (scratch.rs).
///
/// # Panics
/// If a slice is too short, or this processor has no fast path.
pub(super) fn add_rounded_product(
    (path, form): (VectorPath, Form),
    x: Rounded<'_>,
    panel: Panel<'_>,
    (codes, groups): (&mut [u32], &mut [f32]),
    out: &mut [f32],
) {
    let few = out.len() / PANEL <= FEW_ROWS;
    let block = if few { K_BLOCK_STORED } else { K_BLOCK };
    for start in (0..panel.cols).step_by(block) {
        let inputs = start..(start + block).min(panel.cols);
        let x = x.skip_inputs(start);
        match form {
            Form::Halves => {
                let pairs = inputs.start / 2 * PANEL..inputs.end.div_ceil(2) * PANEL;
                let pairs = &crate::aligned::numbers::<u32>(panel.bytes)[pairs];
                for (tile, out) in out.chunks_mut(TILE_ROWS * PANEL).enumerate() {
                    add_halves(x.skip_rows(tile * TILE_ROWS), pairs, out);
                }
            }
            Form::Bytes if few => add_few_rows(path, x, panel, inputs, out),
            Form::Bytes => {
                let sizes = layout(panel.weight_type);
                let words = &mut codes[..inputs.len() / 4 * PANEL];
                unpack_quads(path, panel, inputs, words, groups);
                let codes = QuadCodes {
                    words,
                    groups,
                    group: sizes.group,
                    offset: quad_offset(panel.weight_type),
                    has_min: sizes.has_min,
                };
                for (tile, out) in out.chunks_mut(TILE_ROWS * PANEL).enumerate() {
                    add_bytes(x.skip_rows(tile * TILE_ROWS), codes, out);
                }
            }
        }
    }
}

/// Adds products with bytes for few rows, whose codes are not unpacked to memory; the range has whole blocks.
fn add_few_rows(
    path: VectorPath,
    x: Rounded<'_>,
    panel: Panel<'_>,
    inputs: Range<usize>,
    out: &mut [f32],
) {
    let sizes = layout(panel.weight_type);
    let (first, last) = (inputs.start / sizes.elements, inputs.end / sizes.elements);
    let whole = first * sizes.elements == inputs.start && last * sizes.elements == inputs.end;
    assert!(whole, "part of a block");
    let blocks = (panel.weight_type, &panel.bytes[first * sizes.bytes..last * sizes.bytes]);
    let parts = (inputs.len() / 32, quad_offset(panel.weight_type));
    let (rows, mut row) = (out.len() / PANEL, 0);
    while row < rows {
        let count = block_tile_rows(path, rows - row);
        let (x, out) = (x.skip_rows(row), &mut out[row * PANEL..][..count * PANEL]);
        x.assert_holds(count, inputs.len());
        // SAFETY: a path is fast only where AVX-512 with VNNI was detected (`VectorPath::with`, `rounded_form`), and on
        // that path `block_tile_rows` gives 1 to 4 or 8 rows; the asserts show that `x` has as many with the inputs, and
        // whole blocks, to which the panel was cut.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            super::avx512_blocks::tile_blocks(x, blocks, parts, out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no fast path on this processor: {blocks:?} {parts:?} {x:?} {out:?}");
        row += count;
    }
}

/// A tile of up to `TILE_ROWS` rows; `pairs` is `[pair of inputs][32]`.
fn add_halves(x: Rounded<'_>, pairs: &[u32], out: &mut [f32]) {
    let rows = out.len() / PANEL;
    assert!(rows * PANEL == out.len() && (1..=TILE_ROWS).contains(&rows));
    assert!(pairs.len().is_multiple_of(PANEL), "part of a pair");
    x.assert_holds(rows, pairs.len() / PANEL * 2);
    // SAFETY: a path is fast only where AVX-512 with BF16 was detected (`VectorPath::with`, `rounded_form`); the asserts
    // show 1 to 12 whole rows of `out`, and that `x` has as many with the inputs of `pairs`.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        super::avx512_rounded::tile_halves(x, pairs, out);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no fast path on this processor");
}

/// A tile of up to `TILE_ROWS` rows.
fn add_bytes(x: Rounded<'_>, codes: QuadCodes<'_>, out: &mut [f32]) {
    let (rows, depth) = (out.len() / PANEL, codes.words.len() / PANEL * 4);
    assert!(rows * PANEL == out.len() && (1..=TILE_ROWS).contains(&rows));
    assert!(depth.is_multiple_of(32) && matches!(codes.group, 16 | 32), "part of a group");
    assert!(codes.groups.len() >= depth / codes.group * 2 * PANEL, "groups too short");
    x.assert_holds(rows, depth);
    // SAFETY: a path is fast only where AVX-512 with VNNI was detected (`VectorPath::with`, `rounded_form`); the asserts
    // show 1 to 12 whole rows of `out`, that `x` has as many with the inputs of `codes`, and whole groups.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        super::avx512_rounded::tile_bytes(x, codes, out);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no fast path on this processor");
}

#[cfg(test)]
mod tests;
