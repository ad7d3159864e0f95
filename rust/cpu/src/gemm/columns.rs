//! The right-hand side of a product as the kernels read it.

use crate::panel::PANEL;

/// The right-hand side: 32 columns in two halves of 16, which need not lie together.
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
