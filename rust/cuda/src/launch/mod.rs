//! [5] Launches kernels: one function per entry, the only place that builds its argument list. The
//! engine thread queues, the capture thread records.
//!
//! Each function asserts that its slices hold what the kernel reads and writes, in release builds too:
//! a few comparisons beside a launch, and a replayed graph makes none. The functions are safe to call:
//! a kernel touches only device memory, and the worst effect of wrong contents (an index) is a device
//! fault, which `CudaError` reports.

/// Asserts that a slice has at least this many elements.
macro_rules! holds {
    ($slice:expr, $elements:expr) => {
        assert!(
            $slice.len() >= $elements,
            "{}: {:?}, want {}",
            stringify!($slice),
            $slice,
            $elements
        )
    };
}

mod attention;
mod delta_net;
mod expert_norms;
mod experts;
mod four_bit;
mod gemm_stream;
mod pool;
mod quantise;
mod ranks;
mod rows;
mod sampler;
mod step;
mod token_input;

pub(crate) use attention::{Attention, AttentionPrefill, RopeKv};
pub(crate) use delta_net::{DeltaConv, DeltaNorm, DeltaStep, OutputGate};
pub(crate) use expert_norms::{ExpertInputs, ExpertJoin};
pub(crate) use experts::{ExpertPlaces, MoeGemm, Routing};
pub(crate) use four_bit::{FourBitExperts, GemmFourBit, GemmFourBitWgmma, WidenFourBit};
pub(crate) use gemm_stream::GemmStream;
pub(crate) use pool::PoolRows;
pub(crate) use quantise::{ActMulQuantise, E4m3Rows, Raw, RmsNormQuantise};
pub(crate) use ranks::{Exchange, RanksGather, RanksReduce};
pub(crate) use rows::{ActMul, EmbeddingGather, NormAddScaled, RmsNorm};
pub(crate) use sampler::{SampleFinish, SampleScan, Scores};
pub(crate) use step::{PromptPlans, RopeTable, StepPrepare};
pub(crate) use token_input::{TokenGate, TokenInput};

use crate::contract::Dims;
use crate::kernels::Kernels;
use crate::stream::Stream;

/// What every launch needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launcher<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) stream: &'a Stream,
    pub(crate) dims: &'a Dims,
}

#[cfg(test)]
mod tests;
