//! Products of activations with weight matrices, spread over the workers.

mod columns;
mod kernel;
mod rounded;
mod scaled;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_halves;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_blocks;
#[cfg(target_arch = "x86_64")]
mod avx512_fp8;
#[cfg(target_arch = "x86_64")]
mod avx512_rounded;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod vector;

use std::ops::Range;

use ingle_model::{Activation, WeightType};

pub(crate) use columns::Columns;
pub(crate) use kernel::add_product;

use self::kernel::{
    add_block_product, add_stored_product, block_tile_rows, has_block_kernel, has_stored_kernel,
};
use self::rounded::{add_rounded_product, rounded_form};
use self::scaled::{Codes, add_scaled_product};
use crate::aligned::numbers;
use crate::block_layout::{is_block_format, layout};
use crate::elementwise;
use crate::matrix::PackedMatrix;
use crate::panel::{
    DIRECT_ROWS, FEW_ROWS, K_BLOCK, K_BLOCK_STORED, PANEL, Panel, ROW_CHUNK, TILE_ROWS,
};
use crate::pool::Pool;
use crate::prepare::{prepare_rows, round_rows};
use crate::rounding::Form;
use crate::rows::{Prepared, Rows, Shared};
use crate::scratch::Scratch;
use crate::unpack::{unpack, unpack_codes};
use crate::vector_path::VectorPath;

/// `K_BLOCK` for few rows, where the block should stay in the first-level cache.
const K_BLOCK_FEW_ROWS: usize = 64;
/// Tasks for each thread, where the rows allow it, so that no thread waits long for another's last one.
const TASKS_PER_THREAD: usize = 4;
/// Rows that are worth widening weights for once more.
const ROWS_PER_CHUNK: usize = 8 * TILE_ROWS;

/// One product of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    /// Rows of the input, and of the output.
    pub(crate) rows: Range<usize>,
    /// What to compute from them.
    pub(crate) product: Product<'a>,
    /// First column of the output.
    pub(crate) out_col: usize,
}

/// What to compute.
#[derive(Clone, Debug)]
pub(crate) enum Product<'a> {
    /// `x * w`
    Plain(&'a PackedMatrix),
    /// `activation(x * gate) * (x * up)`
    Gated(Gated<'a>),
}

/// The first half of a feed-forward network.
#[derive(Clone, Debug)]
pub(crate) struct Gated<'a> {
    pub(crate) gate: &'a PackedMatrix,
    pub(crate) up: &'a PackedMatrix,
    pub(crate) gate_bias: Option<&'a [f32]>,
    pub(crate) up_bias: Option<&'a [f32]>,
    pub(crate) activation: Activation,
}

impl Product<'_> {
    /// The matrices, one or two.
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let (first, second) = match self {
            Self::Plain(matrix) => (*matrix, None),
            Self::Gated(gated) => (gated.up, Some(gated.gate)),
        };
        std::iter::once(first).chain(second)
    }

    fn num_panels(&self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.num_panels(),
            Self::Gated(gated) => gated.up.num_panels(),
        }
    }
}

/// Computes all items, whose outputs must not overlap. Where an item is in a block format, the rows of all items are
/// prepared first, which makes numbers below 2^-100 zero.
pub(crate) fn multiply(
    pool: &mut Pool,
    path: VectorPath,
    x: &mut Rows,
    items: &[Item<'_>],
    out: &mut Rows,
) {
    prepare(pool, path, x, items);
    let x = &*x;
    let mut panels = 0;
    for item in items {
        panels += item.product.num_panels();
    }
    let parts = (TASKS_PER_THREAD * pool.num_threads()).div_ceil(panels.max(1));
    let mut tasks = 0;
    for item in items {
        tasks += item.product.num_panels() * num_chunks(item.rows.len(), parts);
    }
    let out = out.shared();
    pool.run(tasks, &|task, scratch| {
        let (item, panel, rows) = locate(items, parts, task);
        run_task(path, x, item, (panel, rows), &out, scratch);
    });
}

/// Computes what all products need of their rows.
fn prepare(pool: &mut Pool, path: VectorPath, x: &mut Rows, items: &[Item<'_>]) {
    let first = items.iter().map(|item| item.rows.start).min().unwrap_or(0);
    let rows = first..items.iter().map(|item| item.rows.end).max().unwrap_or(0);
    let matrices = || items.iter().flat_map(|item| item.product.matrices());
    for form in [Form::Halves, Form::Bytes] {
        let rounds =
            |matrix: &&PackedMatrix| rounded_form(path, matrix.weight_type()) == Some(form);
        if let Some(matrix) = matrices().find(rounds) {
            round_rows(pool, path, x, rows.clone(), (matrix.cols(), form));
        }
    }
    let scales = |matrix: &&PackedMatrix| {
        let weight_type = matrix.weight_type();
        is_block_format(weight_type) && rounded_form(path, weight_type).is_none()
    };
    if let Some(matrix) = matrices().find(scales) {
        let few = items.iter().any(|item| item.rows.len() <= FEW_ROWS);
        prepare_rows(pool, path, x, rows, (matrix.cols(), few));
    }
}

/// `parts`, unless the rows are too many or too few for that.
fn num_chunks(rows: usize, parts: usize) -> usize {
    let most = rows.div_ceil(ROWS_PER_CHUNK);
    rows.div_ceil(ROW_CHUNK).max(parts.min(most))
}

/// Item, panel and rows of a task. Chunks of equal size, so that no worker is left with a long one.
fn locate<'a, 'b>(
    items: &'a [Item<'b>],
    parts: usize,
    mut task: usize,
) -> (&'a Item<'b>, usize, Range<usize>) {
    for item in items {
        let chunks = num_chunks(item.rows.len(), parts);
        let panels = item.product.num_panels();
        if task >= panels * chunks {
            task -= panels * chunks;
            continue;
        }
        let size = item.rows.len().div_ceil(chunks).next_multiple_of(TILE_ROWS);
        // The last chunk may be empty, since all sizes are rounded up.
        let start = (item.rows.start + task / panels * size).min(item.rows.end);
        return (item, task % panels, start..(start + size).min(item.rows.end));
    }
    unreachable!("task beyond the last item")
}

fn run_task(
    path: VectorPath,
    x: &Rows,
    item: &Item<'_>,
    (panel, rows): (usize, Range<usize>),
    out: &Shared<'_>,
    scratch: &mut Scratch,
) {
    if rows.is_empty() {
        return;
    }
    let Scratch { weights, codes, groups, out: product, gate, .. } = scratch;
    let mut unpacked = Unpacked { weights, codes, groups };
    let product = &mut product[..rows.len() * PANEL];
    let first = panel * PANEL;
    match &item.product {
        Product::Plain(matrix) => {
            panel_product(path, x, rows.clone(), (matrix, panel), &mut unpacked, product);
        }
        Product::Gated(gated) => {
            let gate = &mut gate[..rows.len() * PANEL];
            panel_product(path, x, rows.clone(), (gated.up, panel), &mut unpacked, product);
            panel_product(path, x, rows.clone(), (gated.gate, panel), &mut unpacked, gate);
            add_bias(gated.up_bias, first, product);
            add_bias(gated.gate_bias, first, gate);
            elementwise::gate(path, gated.activation, gate, product);
        }
    }
    for (row, values) in rows.zip(product.as_chunks::<PANEL>().0) {
        // SAFETY: a task alone has this panel of these rows (`locate`), items do not overlap, and the
        // stride of `Rows` leaves room for whole panels.
        let target = unsafe { out.row_part(row, item.out_col + first, PANEL) };
        if let Some(target) = target.first_chunk_mut::<PANEL>() {
            *target = *values;
        }
    }
}

/// Adds the bias of a panel's outputs to every row.
fn add_bias(bias: Option<&[f32]>, first: usize, values: &mut [f32]) {
    let Some(bias) = bias else { return };
    let bias = &bias[first..bias.len().min(first + PANEL)];
    for row in values.as_chunks_mut::<PANEL>().0 {
        for (value, bias) in row.iter_mut().zip(bias) {
            *value += bias;
        }
    }
}

/// Room for a part of a panel as numbers.
struct Unpacked<'a> {
    weights: &'a mut [f32],
    codes: &'a mut [u32],
    groups: &'a mut [f32],
}

/// `out[rows][32] = x[rows] * panel`.
fn panel_product(
    path: VectorPath,
    x: &Rows,
    rows: Range<usize>,
    (matrix, panel): (&PackedMatrix, usize),
    unpacked: &mut Unpacked<'_>,
    out: &mut [f32],
) {
    out.fill(0.0);
    let (stride, depth) = (x.stride(), matrix.cols());
    let panel = matrix.panel(panel);
    if let Some(form) = rounded_form(path, panel.weight_type) {
        let room = (&mut *unpacked.codes, &mut *unpacked.groups);
        return add_rounded_product((path, form), x.rounded(rows), panel, room, out);
    }
    if is_block_format(panel.weight_type) {
        return block_product(path, x.prepared(rows.start), panel, unpacked, out);
    }
    let weights = &mut *unpacked.weights;
    let x = &x.data()[rows.start * stride..];
    if panel.weight_type == WeightType::F32 {
        let columns = Columns::panel(numbers::<f32>(panel.bytes));
        return add_product(path, (x, stride), columns, depth, out);
    }
    if rows.len() <= FEW_ROWS && has_stored_kernel(path, panel.weight_type, depth) {
        // In blocks, so that the second tile finds its weights in the first-level cache and the next
        // ones arrive meanwhile.
        for start in (0..depth).step_by(K_BLOCK_STORED) {
            let end = (start + K_BLOCK_STORED).min(depth);
            let tiles = x.chunks(DIRECT_ROWS * stride).zip(out.chunks_mut(DIRECT_ROWS * PANEL));
            for (x, out) in tiles {
                add_stored_product(path, (&x[start..], stride), panel, start..end, out);
            }
        }
        return;
    }
    let block = if rows.len() <= TILE_ROWS { K_BLOCK_FEW_ROWS } else { K_BLOCK };
    for start in (0..depth).step_by(block) {
        let end = (start + block).min(depth);
        unpack(path, panel, start..end, weights);
        add_product(path, (&x[start..], stride), Columns::panel(weights), end - start, out);
    }
}

/// As `panel_product` for a block format; `out` is zero.
fn block_product(
    path: VectorPath,
    x: Prepared<'_>,
    panel: Panel<'_>,
    unpacked: &mut Unpacked<'_>,
    out: &mut [f32],
) {
    let sizes = layout(panel.weight_type);
    let few = out.len() / PANEL <= FEW_ROWS && has_block_kernel(path);
    let block = if few { K_BLOCK_STORED } else { K_BLOCK };
    for start in (0..panel.cols).step_by(block) {
        let inputs = start..(start + block).min(panel.cols);
        let x = x.skip_inputs(start);
        if few {
            // In blocks, so that the next tile finds its weights in the first-level cache.
            let rows = out.len() / PANEL;
            let mut row = 0;
            while row < rows {
                let count = block_tile_rows(path, rows - row);
                let out = &mut out[row * PANEL..][..count * PANEL];
                add_block_product(path, x.skip_rows(row), panel, inputs.clone(), out);
                row += count;
            }
            continue;
        }
        let codes = &mut unpacked.weights[..inputs.len() * PANEL];
        unpack_codes(path, panel, inputs, codes, unpacked.groups);
        let (groups, has_min) = (&*unpacked.groups, sizes.has_min || sizes.offset > 0);
        add_scaled_product(path, x, Codes { codes, groups, group: sizes.group, has_min }, out);
    }
}

#[cfg(test)]
mod read_speed;
#[cfg(test)]
mod tests;
