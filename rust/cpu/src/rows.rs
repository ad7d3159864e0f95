//! Row-major matrices of activations.

use std::ops::Range;

use crate::panel::PANEL;
use crate::rounding::{Rounded, Rounding, RoundingParts};
pub(crate) use crate::shared::Shared;

/// `[capacity, stride]` f32, of which each row's first `cols` are used.
///
/// The stride is a multiple of `PANEL`, so whole panels can be stored, and never a multiple of 4 KiB,
/// so that the twelve rows of a tile do not fall into one set of the first-level cache.
#[derive(Debug)]
pub(crate) struct Rows {
    data: Vec<f32>,
    stride: usize,
    /// `[capacity][stride]`, `[capacity][stride / 16]`: see `Prepared`. No page is touched unless a product needs it.
    scaled: Vec<f32>,
    sums: Vec<f32>,
    rounded: Rounding,
}

/// Rows as products with block formats read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared<'a> {
    /// From the first row on; each row begins `stride` numbers behind the last one.
    pub(crate) plain: &'a [f32],
    /// The same with input `k` divided by `2^(8 (k % 4))`.
    pub(crate) scaled: &'a [f32],
    pub(crate) stride: usize,
    /// The sum of every 16 inputs; a row has `sums_stride` of them.
    pub(crate) sums: &'a [f32],
    pub(crate) sums_stride: usize,
}

impl Prepared<'_> {
    /// Without the rows before `row`.
    pub(crate) fn skip_rows(self, row: usize) -> Self {
        let skip = row * self.stride;
        Self {
            plain: &self.plain[skip..],
            scaled: &self.scaled[skip..],
            sums: &self.sums[row * self.sums_stride..],
            ..self
        }
    }

    /// Without the inputs before `input`, a multiple of 32.
    pub(crate) fn skip_inputs(self, input: usize) -> Self {
        Self {
            plain: &self.plain[input..],
            scaled: &self.scaled[input..],
            sums: &self.sums[input / 16..],
            ..self
        }
    }

    /// # Panics
    /// If there are fewer than `rows` rows of `depth` inputs.
    pub(crate) fn assert_holds(self, rows: usize, depth: usize) {
        let need = (rows - 1) * self.stride + depth;
        assert!(self.plain.len() >= need && self.scaled.len() >= need, "activations too short");
        let sums = (rows - 1) * self.sums_stride + depth / 16;
        assert!(self.sums.len() >= sums, "sums of activations too short");
    }
}

impl Rows {
    pub(crate) fn zeroed(rows: usize, cols: usize) -> Self {
        let mut stride = cols.next_multiple_of(PANEL);
        if stride.is_multiple_of(512) {
            stride += PANEL;
        }
        let len = rows * stride;
        Self {
            data: vec![0.0; len],
            stride,
            scaled: vec![0.0; len],
            sums: vec![0.0; len / 16],
            rounded: Rounding::zeroed(len),
        }
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn data(&self) -> &[f32] {
        &self.data
    }

    /// The first `cols` of a row.
    pub(crate) fn row(&self, row: usize, cols: usize) -> &[f32] {
        &self.data[row * self.stride..][..cols]
    }

    pub(crate) fn row_mut(&mut self, row: usize, cols: usize) -> &mut [f32] {
        &mut self.data[row * self.stride..][..cols]
    }

    /// What `Prepared` shows, to be written by prepare.rs: the rows, their scaled form and their sums.
    pub(crate) fn parts(&mut self) -> [Shared<'_>; 3] {
        let stride = self.stride;
        [
            Shared::rows(&mut self.data, stride),
            Shared::rows(&mut self.scaled, stride),
            Shared::rows(&mut self.sums, stride / 16),
        ]
    }

    /// All rows from `first` on, of which those that the caller reads must have been prepared.
    pub(crate) fn prepared(&self, first: usize) -> Prepared<'_> {
        Prepared {
            plain: &self.data,
            scaled: &self.scaled,
            stride: self.stride,
            sums: &self.sums,
            sums_stride: self.stride / 16,
        }
        .skip_rows(first)
    }

    /// The rows, and where rounding.rs writes what it makes of them.
    pub(crate) fn rounding_parts(&mut self) -> (&[f32], RoundingParts<'_>) {
        (&self.data, self.rounded.parts(self.stride))
    }

    /// Rows that have been rounded in the form that the caller reads.
    pub(crate) fn rounded(&self, rows: Range<usize>) -> Rounded<'_> {
        self.rounded.rows(self.stride, rows)
    }

    pub(crate) fn shared(&mut self) -> Shared<'_> {
        Shared::rows(&mut self.data, self.stride)
    }
}
