//! Products by gemm_stream.cu, our own kernel for few rows. The engine thread queues them, the capture thread
//! records them; `stream_tile.rs` says which builds there are.

use crate::CudaError;
use crate::builds::Variant;
use crate::contract::{Dims, GEMM_THREADS};
use crate::gemm::GemmArgs;
use crate::kernels::Kernels;
use crate::module::{Kernel, Launch, args};
use crate::registry::Entry;
use crate::shapes::GemmShape;
use crate::stream::Stream;
use crate::stream_tile::rows_a_group;

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
                let launch = Launch::linear(grid, GEMM_THREADS).shared(tile.shared_bytes(shape));
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
