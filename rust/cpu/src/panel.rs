//! Sizes shared by weights, activations and kernels, and the layout of one panel of weights. Plain data.

use ingle_model::WeightType;

/// Outputs of a weight panel: what two 512-bit registers hold in f32.
pub(crate) const PANEL: usize = 32;
/// Rows that a tile holds in registers on the widest path.
pub(crate) const TILE_ROWS: usize = 12;
/// Rows of a tile whose weights are widened on the way to registers, which takes some of them.
pub(crate) const DIRECT_ROWS: usize = 8;
/// Inputs whose weights are widened at once if there are many rows; 192 KiB in f32, for the second-level cache.
pub(crate) const K_BLOCK: usize = 1536;
/// Most rows whose weights become numbers in registers.
pub(crate) const FEW_ROWS: usize = 2 * DIRECT_ROWS;
/// `K_BLOCK` for few rows, whose tiles should find it in the first-level cache; whole blocks of every format.
pub(crate) const K_BLOCK_STORED: usize = 256;
/// Most rows of a task; its results of 32 columns take 72 KiB. A prompt of 512 widens its weights once.
pub(crate) const ROW_CHUNK: usize = 48 * TILE_ROWS;
/// Most rows of logits that exist at once.
pub const LOGIT_ROWS: usize = 64;

/// 32 outputs of a matrix and what is needed to read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) weight_type: WeightType,
    /// Inputs.
    pub(crate) cols: usize,
    /// Inputs that share a scale; for fp8 and 4-bit codes only.
    pub(crate) group: usize,
    /// The group of each input; empty if they lie side by side.
    pub(crate) column_groups: &'a [u32],
    pub(crate) bytes: &'a [u8],
}
