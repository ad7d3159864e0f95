//! How gemm_stream.cu, our own product for few rows, is built and launched. `tune.rs` measures its builds
//! against cuBLASLt.

use ingle_model::ModelSpec;

use crate::CudaError;
use crate::dims::Dims;
use crate::gemm::{GemmArgs, GemmOut, GemmShape};
use crate::kernels::Kernels;
use crate::model::gemm_shapes;
use crate::module::{Kernel, Launch, args};
use crate::stream::Stream;

/// One build: the macros of gemm_stream.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamTile {
    /// Most rows of x: 8, 16, 32 or 64.
    pub(crate) rows: u32,
    /// Stages of the ring.
    pub(crate) stages: u32,
    /// Steps of 32 elements a stage.
    pub(crate) steps: u32,
    /// Whether x lies in shared memory.
    pub(crate) x_shared: bool,
}

impl StreamTile {
    /// Dynamic shared memory of a block.
    pub(crate) fn shared_bytes(self, shape: GemmShape) -> u32 {
        let tiles = if shape.out == GemmOut::Gated { 2 } else { 1 };
        let x_row = (2 * shape.k).next_multiple_of(128) + 64;
        let x = if self.x_shared { self.rows * x_row } else { 0 };
        self.stages * self.steps * tiles * 8192 + tiles * self.rows * 512 + x
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
    compute_capability: (u32, u32),
    shape: GemmShape,
) -> impl Iterator<Item = StreamTile> {
    let most = match compute_capability {
        (9, _) => 227 << 10,
        (8, 0) => 163 << 10,
        _ => 99 << 10,
    };
    let is_small = |tile: &StreamTile| tile.stages == 2;
    let fits = move |tile: &StreamTile| tile.shared_bytes(shape) <= most;
    STREAM_TILES.into_iter().filter(move |tile| {
        let larger =
            STREAM_TILES.iter().filter(|other| other.rows == tile.rows && !is_small(other));
        fits(tile) && !(is_small(tile) && larger.clone().any(fits))
    })
}

/// Products that gemm_stream.cu can do.
pub(crate) fn own_shapes(spec: &ModelSpec) -> Vec<GemmShape> {
    let (mut shapes, head) = gemm_shapes(spec);
    shapes.push(head);
    shapes.retain(|shape| shape.n.is_multiple_of(rows_a_group(*shape)) && shape.k % 8 == 0);
    shapes
}

/// Rows of the weight that a block takes at once.
fn rows_a_group(shape: GemmShape) -> u32 {
    if shape.out == GemmOut::Gated { 32 } else { 16 }
}

/// A product by gemm_stream.cu.
#[derive(Clone, Debug)]
pub(crate) struct OwnProduct {
    kernel: Kernel,
    dims: Dims,
    launch: Launch,
    rows: u32,
    activation: u32,
}

impl OwnProduct {
    /// The builds for at least `rows` rows, fewest rows first. `activation`: 0 SiLU, 1 GELU.
    pub(crate) fn all(
        kernels: &Kernels,
        dims: Dims,
        num_sms: u32,
        (rows, shape): (u32, GemmShape),
        activation: u32,
    ) -> Vec<Self> {
        let built = kernels.gemm_stream.iter().filter(|((s, _), _)| *s == shape);
        let enough = built.clone().map(|((_, tile), _)| tile.rows).filter(|most| *most >= rows);
        let Some(most) = enough.min() else { return Vec::new() };
        built
            .filter(|((_, tile), _)| tile.rows == most)
            .map(|((_, tile), kernel)| {
                let grid = num_sms.min(shape.n / rows_a_group(shape));
                let launch = Launch::linear(grid, 256).shared(tile.shared_bytes(shape));
                let dims = dims.gemm(shape.n, shape.k);
                Self { kernel: kernel.clone(), dims, launch, rows, activation }
            })
            .collect()
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses hold what `GemmArgs` says for this product's sizes.
    pub(crate) unsafe fn run(&self, stream: &Stream, args: GemmArgs) -> Result<(), CudaError> {
        let GemmArgs { x, w, out } = args;
        let args = args![&self.dims, x, w, out, self.rows, self.activation];
        // SAFETY: the caller's promise; the kernel was built for this n, k and at least `rows` rows.
        unsafe { self.kernel.launch(stream, self.launch, args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_fit_and_small_ones_serve_where_none_else_does() {
        let down = GemmShape { n: 4096, k: 14336, out: GemmOut::AddF32 };
        let on_h200: Vec<_> = stream_tiles((9, 0), down).collect();
        assert_eq!(on_h200, [STREAM_TILES[0], STREAM_TILES[5]]);
        let gated = GemmShape { n: 28672, k: 4096, out: GemmOut::Gated };
        assert_eq!(stream_tiles((9, 0), gated).next(), Some(STREAM_TILES[2]));
        for capability in [(8, 0), (8, 6), (9, 0)] {
            for rows in [8, 16] {
                assert!(stream_tiles(capability, gated).any(|tile| tile.rows == rows));
            }
        }
    }
}
