//! The launch of gemm_stream.cu.

use crate::CudaError;
use crate::contract::{Dims, GEMM_THREADS};
use crate::gemm::GemmArgs;
use crate::module::{Kernel, Launch, args};
use crate::stream::Stream;

/// One build of gemm_stream with everything that its launches have alike.
#[derive(Clone, Debug)]
pub(crate) struct GemmStream {
    pub(crate) kernel: Kernel,
    /// With the n and k of its product.
    pub(crate) dims: Dims,
    pub(crate) grid: u32,
    pub(crate) shared_bytes: u32,
    /// Rows of x, at most those of the build's tile.
    pub(crate) rows: u32,
    /// GATE_SILU or GATE_GELU_TANH.
    pub(crate) gate: u32,
}

impl GemmStream {
    /// Queues the product; `GemmArgs::check` has passed for its shape and rows.
    pub(crate) fn launch(&self, stream: &Stream, a: &GemmArgs) -> Result<(), CudaError> {
        let launch = Launch::linear(self.grid, GEMM_THREADS).shared(self.shared_bytes);
        let arguments = args![
            &self.dims,
            a.x.as_bytes(),
            a.w.as_bytes(),
            a.w.scale(),
            a.out.as_bytes(),
            self.rows,
            self.gate,
        ];
        // SAFETY: these are the parameters of gemm_stream in its order; the caller's check holds for the n and k
        // that the kernel was built for, and `OwnProduct::all` takes tiles of at least `rows` rows.
        unsafe { self.kernel.launch(stream, launch, arguments) }
    }
}
