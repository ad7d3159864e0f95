//! The builds of gemm_stream.cu, our own product for few rows, and which of them can serve a shape
//! on a card. Plain data; `tune.rs` measures them against cuBLASLt.

use crate::contract::{stream_ring_bytes, stream_sum_bytes, stream_x_stride};
use crate::dtypes::{ScaleMode, WeightDtype};
use crate::limits::DeviceLimits;
use crate::shapes::{GemmOut, GemmShape};

/// One build: the macros of gemm_stream.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamTile {
    /// Most rows of x: 8, 16, 32 or 64.
    pub(crate) rows: u32,
    /// Stages of the ring.
    pub(crate) stages: u32,
    /// Steps of 32 elements a stage.
    pub(crate) steps: u32,
    /// Whether x is in shared memory.
    pub(crate) x_shared: bool,
}

impl StreamTile {
    /// Dynamic shared memory of a block.
    pub(crate) fn shared_bytes(self, shape: GemmShape) -> u32 {
        let tiles = if shape.out == GemmOut::Gated { 2 } else { 1 };
        let x = if self.x_shared { self.rows * stream_x_stride(shape.k) } else { 0 };
        let ring = stream_ring_bytes(self.stages, self.steps, tiles);
        ring + stream_sum_bytes(self.rows, tiles) + x
    }
}

/// The builds that are tried. The first three were the best ones for some matrix of Llama-3.1-8B on an
/// H200 at up to 8 rows, the fourth at up to 16; the last ones fit the shared memory of sm_86.
pub(crate) const STREAM_TILES: [StreamTile; 6] = [
    StreamTile { rows: 8, stages: 4, steps: 4, x_shared: false },
    StreamTile { rows: 8, stages: 4, steps: 4, x_shared: true },
    StreamTile { rows: 8, stages: 4, steps: 2, x_shared: true },
    StreamTile { rows: 16, stages: 4, steps: 2, x_shared: true },
    StreamTile { rows: 8, stages: 2, steps: 2, x_shared: false },
    StreamTile { rows: 16, stages: 2, steps: 2, x_shared: false },
];

/// The builds that fit a card's shared memory for this shape. The small ones serve where the others do
/// not fit.
pub(crate) fn stream_tiles(
    limits: &DeviceLimits,
    shape: GemmShape,
) -> impl Iterator<Item = StreamTile> + use<> {
    let most = limits.shared_bytes_per_block;
    let is_small = |tile: &StreamTile| tile.stages == 2;
    let fits = move |tile: &StreamTile| tile.shared_bytes(shape) <= most;
    STREAM_TILES.into_iter().filter(move |tile| {
        let larger =
            STREAM_TILES.iter().filter(|other| other.rows == tile.rows && !is_small(other));
        fits(tile) && !(is_small(tile) && larger.clone().any(fits))
    })
}

/// Whether gemm_stream.cu can do a product.
pub(crate) fn is_streamed(shape: GemmShape) -> bool {
    let piece = if shape.weight == WeightDtype::E4m3 { 16 } else { 8 };
    let fits = shape.n.is_multiple_of(rows_a_group(shape)) && shape.k.is_multiple_of(piece);
    fits && !matches!(shape.scale, ScaleMode::Raw | ScaleMode::Group)
}

/// Whether a step of so many rows quantises what goes into e4m3 matrices. Fewer go through gemm_stream.cu, which
/// `deterministic` leaves out.
pub(crate) fn quantises(rows: u32, deterministic: bool) -> bool {
    deterministic || rows > WIDENED_ROWS
}

/// Most rows of x that any build takes.
pub(crate) const STREAM_ROWS: u32 = 16;
/// Most rows for which e4m3 weights are widened: at 16 rows of an 8B model on an H200 a step takes 5.4 ms so.
const WIDENED_ROWS: u32 = 8;

/// Rows of the weight that a block takes at once.
pub(crate) fn rows_a_group(shape: GemmShape) -> u32 {
    if shape.out == GemmOut::Gated { 32 } else { 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_build_takes_more_rows() {
        assert_eq!(STREAM_TILES.iter().map(|tile| tile.rows).max(), Some(STREAM_ROWS));
    }

    #[test]
    fn builds_fit_and_small_ones_serve_where_none_else_does() {
        let down = GemmShape::plain(4096, 14336, GemmOut::AddF32, WeightDtype::Bf16);
        let h200 = DeviceLimits::assumed((9, 0), 132, 228);
        let on_h200: Vec<_> = stream_tiles(&h200, down).collect();
        assert_eq!(on_h200, [STREAM_TILES[0], STREAM_TILES[5]]);
        let gated = GemmShape::plain(28672, 4096, GemmOut::Gated, WeightDtype::Bf16);
        assert_eq!(stream_tiles(&h200, gated).next(), Some(STREAM_TILES[2]));
        for kib in [100, 164, 228] {
            let card = DeviceLimits::assumed((8, 0), 108, kib);
            for rows in [8, 16] {
                assert!(stream_tiles(&card, gated).any(|tile| tile.rows == rows));
            }
        }
    }
}
