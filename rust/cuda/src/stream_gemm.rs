//! Products by gemm_stream.cu, our own kernel for few rows. The engine thread queues them, the
//! capture thread records them. `stream_tile.rs` lists the builds.

use crate::CudaError;
use crate::contract::Dims;
use crate::gemm::GemmArgs;
use crate::kernels::Kernels;
use crate::launch::GemmStream;
use crate::registry::Entry;
use crate::shapes::GemmShape;
use crate::stream::Stream;
use crate::stream_tile::rows_a_group;
use crate::variant::Variant;

/// A product by gemm_stream.cu.
#[derive(Clone, Debug)]
pub(crate) struct OwnProduct {
    shape: GemmShape,
    launch: GemmStream,
}

impl OwnProduct {
    /// The builds for at least `rows` rows, fewest rows first. `gate`: GATE_SILU or GATE_GELU_TANH.
    pub(crate) fn all(
        kernels: &Kernels,
        dims: Dims,
        num_sms: u32,
        (rows, shape): (u32, GemmShape),
        gate: u32,
    ) -> Vec<Self> {
        let built = || {
            kernels.builds(Entry::GemmStream).filter_map(|(variant, kernel)| match variant {
                Variant::Stream { shape: of, tile } if of == shape => Some((tile, kernel)),
                _ => None,
            })
        };
        let enough = built().map(|(tile, _)| tile.rows).filter(|most| *most >= rows);
        let Some(most) = enough.min() else { return Vec::new() };
        built()
            .filter(|(tile, _)| tile.rows == most)
            .map(|(tile, kernel)| {
                let grid = num_sms.min(shape.n / rows_a_group(shape));
                let dims = dims.gemm(shape.n, shape.k);
                let shared_bytes = tile.shared_bytes(shape);
                let kernel = kernel.clone();
                let launch = GemmStream { kernel, dims, grid, shared_bytes, rows, gate };
                Self { shape, launch }
            })
            .collect()
    }

    /// Queues the product.
    pub(crate) fn run(&self, stream: &Stream, args: &GemmArgs) -> Result<(), CudaError> {
        args.check(self.launch.rows, self.shape);
        self.launch.launch(stream, args)
    }
}
