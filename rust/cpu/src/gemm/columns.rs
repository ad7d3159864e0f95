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

/// 32 columns of codes and what belongs to their groups.
#[derive(Clone, Copy)]
pub(super) struct QuadCodes<'a> {
    /// `[inputs / 4][32]` words: an unsigned byte for each of four inputs.
    pub(super) words: &'a [u32],
    /// `[inputs / group][scale, minimum][32]`
    pub(super) groups: &'a [f32],
    /// Inputs of a group: 16 or 32.
    pub(super) group: usize,
    /// What each code is too large by.
    pub(super) offset: i32,
    /// Whether minimums count; where not, they are not read.
    pub(super) has_min: bool,
}
