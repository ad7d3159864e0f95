//! The products of a model, each ready to run for every padded row count: by cuBLASLt or by our own
//! kernels for few rows, as `tune.rs` measured. A step only looks a product up. cuBLASLt's
//! heuristics are never called while a graph is being recorded, because that fails from 13.3 on.

use std::collections::HashMap;

use crate::CudaError;
use crate::device_slice::DeviceSlice;
use crate::four_bit_gemm::{FourBitProduct, WidenedProduct};
use crate::gemm::{GemmArgs, Problem};
use crate::shapes::GemmShape;
use crate::stream::Stream;
use crate::stream_gemm::OwnProduct;
use crate::sys::cublaslt::MatmulAlgo;

/// How a product is computed.
#[derive(Debug)]
pub(crate) enum Product {
    /// By cuBLASLt.
    Library {
        /// Descriptors for its row count.
        problem: Problem,
        /// The measured pick.
        algo: MatmulAlgo,
    },
    /// By gemm_stream.cu.
    Own(OwnProduct),
    /// By gemm_four_bit.cu.
    FourBit(FourBitProduct),
    /// By cuBLASLt with a widened matrix.
    Widened(WidenedProduct),
    /// Not at all: its operands are checked alone.
    #[cfg(test)]
    Checked(u32, GemmShape),
}

impl Product {
    /// Queues the product; `workspace` has `WORKSPACE_BYTES`.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        args: &GemmArgs,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        match self {
            Self::Library { problem, algo } => problem.run(stream, algo, args, workspace),
            Self::Own(own) => own.run(stream, args),
            Self::FourBit(own) => own.run(stream, args),
            Self::Widened(widened) => widened.run(stream, args, workspace),
            #[cfg(test)]
            Self::Checked(rows, shape) => {
                args.check(*rows, *shape);
                Ok(())
            }
        }
    }
}

/// All products of a model, by padded row count.
#[derive(Debug)]
pub(crate) struct Products {
    products: HashMap<(u32, GemmShape), Product>,
    workspace: DeviceSlice<u8>,
}

impl Products {
    /// Products that share one workspace of `WORKSPACE_BYTES`; they run one after another.
    pub(crate) fn new(
        products: HashMap<(u32, GemmShape), Product>,
        workspace: DeviceSlice<u8>,
    ) -> Self {
        Self { products, workspace }
    }

    /// Whether this product was made.
    pub(crate) fn has(&self, m: u32, shape: GemmShape) -> bool {
        self.products.contains_key(&(m, shape))
    }

    /// Queues a product on the stream that all steps share, or on one that is being captured.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        m: u32,
        shape: GemmShape,
        args: GemmArgs,
    ) -> Result<(), CudaError> {
        let product = self.products.get(&(m, shape)).ok_or_else(|| {
            CudaError::Unsupported(format!("no plan for a product of {m} rows, {shape:?}"))
        })?;
        product.run(stream, &args, self.workspace)
    }
}
