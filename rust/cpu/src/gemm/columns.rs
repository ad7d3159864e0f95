//! The right-hand side of a product, in the layout that the kernels read.

use crate::panel::PANEL;

/// The right-hand side: 32 columns in two halves of 16, which need not be adjacent.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    /// Row k of the first 16 columns is `first[k * stride..][..16]`.
    pub(crate) first: &'a [f32],
    /// The other 16.
    pub(crate) second: &'a [f32],
    /// Numbers from row to row.
    pub(crate) stride: usize,
}

impl<'a> Columns<'a> {
    /// A panel `[k][32]`.
    pub(crate) fn panel(panel: &'a [f32]) -> Self {
        Self { first: panel, second: &panel[16.min(panel.len())..], stride: PANEL }
    }
}
