//! Launches of kernels that work on one row at a time: embedding.cu, rms_norm.cu, activation.cu,
//! softcap.cu.

use super::Launcher;
use crate::CudaError;
use crate::contract::{GATE_COLUMNS, SAMPLE_CHUNK};
use crate::device_slice::{Act, DeviceSlice, Weight};
use crate::module::{Launch, args};
use crate::registry::Entry;
use crate::variant::Variant;

/// Of embedding_gather.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddingGather {
    /// `[rows]`
    pub(crate) token_ids: DeviceSlice<u32>,
    /// `[vocab_size, hidden_size]`
    pub(crate) table: DeviceSlice<Weight>,
    /// `[rows, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    pub(crate) scale: f32,
}

/// Of rms_norm_rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmsNorm {
    /// `[*, hidden_size]`
    pub(crate) x: DeviceSlice<f32>,
    /// `[rows]`: which rows of x; `None` for the first ones.
    pub(crate) row_index: Option<DeviceSlice<u32>>,
    /// `[hidden_size]`
    pub(crate) weight: DeviceSlice<f32>,
    /// `[rows, hidden_size]`
    pub(crate) out: DeviceSlice<Act>,
    pub(crate) eps: f32,
}

/// Of act_mul_rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActMul {
    pub(crate) intermediate_size: u32,
    /// `[rows, 2 * intermediate_size]`
    pub(crate) gate_up: DeviceSlice<Act>,
    /// `[2 * intermediate_size]`
    pub(crate) bias: Option<DeviceSlice<f32>>,
    /// `[rows, intermediate_size]`
    pub(crate) out: DeviceSlice<Act>,
    /// GATE_SILU or GATE_GELU_TANH.
    pub(crate) kind: u32,
    /// Of a clamped gate.
    pub(crate) limit: f32,
}

/// Of norm_add_scaled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormAddScaled {
    /// `[rows, hidden_size]`
    pub(crate) x: DeviceSlice<f32>,
    /// `[hidden_size]`
    pub(crate) weight: DeviceSlice<f32>,
    /// `[rows, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    /// `[1]`
    pub(crate) factor: Option<DeviceSlice<f32>>,
    /// `[rows, hidden_size]`: a copy of the sum.
    pub(crate) out: Option<DeviceSlice<Act>>,
    pub(crate) eps: f32,
}

impl Launcher<'_> {
    /// Elements of `rows` rows of the hidden size.
    pub(super) fn hidden(&self, rows: u32) -> u64 {
        u64::from(rows) * u64::from(self.dims.hidden_size)
    }

    /// Elements of `rows` rows of the vocabulary.
    pub(super) fn vocab(&self, rows: u32) -> u64 {
        u64::from(rows) * u64::from(self.dims.vocab_size)
    }

    /// Queues the embedding of `rows` tokens.
    pub(crate) fn embedding_gather(&self, rows: u32, a: &EmbeddingGather) -> Result<(), CudaError> {
        holds!(a.token_ids, u64::from(rows));
        holds!(a.table, self.vocab(1) * self.hidden(1));
        holds!(a.residual, self.hidden(rows));
        let kernel = self.kernels.only(Entry::EmbeddingGather)?;
        // SAFETY: these are the parameters of embedding_gather in its order; the slices were checked above, and
        // step_prepare gives no id outside the vocabulary.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, 256),
                args![self.dims, a.token_ids, a.table, a.residual, a.scale],
            )
        }
    }

    /// Queues the norm of `rows` rows, `block` threads each.
    pub(crate) fn rms_norm_rows(
        &self,
        rows: u32,
        block: u32,
        a: &RmsNorm,
    ) -> Result<(), CudaError> {
        match a.row_index {
            Some(row_index) => holds!(row_index, u64::from(rows)),
            None => holds!(a.x, self.hidden(rows)),
        }
        holds!(a.weight, self.hidden(1));
        holds!(a.out, self.hidden(rows));
        let kernel = self.kernels.only(Entry::RmsNormRows)?;
        // SAFETY: these are the parameters of rms_norm_rows in its order; the slices were checked above, and
        // listed rows are token rows of the step (`metadata::pack`).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![self.dims, a.x, a.row_index, a.weight, a.out, a.eps],
            )
        }
    }

    /// Queues `residual += norm(x) * weight` over `rows` rows.
    pub(crate) fn rms_norm_add(
        &self,
        (rows, block): (u32, u32),
        x: DeviceSlice<f32>,
        weight: DeviceSlice<f32>,
        residual: DeviceSlice<f32>,
        eps: f32,
    ) -> Result<(), CudaError> {
        holds!(x, self.hidden(rows));
        holds!(weight, self.hidden(1));
        holds!(residual, self.hidden(rows));
        let kernel = self.kernels.only(Entry::RmsNormAdd)?;
        // SAFETY: these are the parameters of rms_norm_add in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![self.dims, x, weight, residual, eps],
            )
        }
    }

    /// Queues `residual = (residual + norm(x) * weight) * factor` over `rows` rows.
    pub(crate) fn norm_add_scaled(
        &self,
        (rows, block): (u32, u32),
        a: &NormAddScaled,
    ) -> Result<(), CudaError> {
        holds!(a.x, self.hidden(rows));
        holds!(a.weight, self.hidden(1));
        holds!(a.residual, self.hidden(rows));
        if let Some(factor) = a.factor {
            holds!(factor, 1);
        }
        if let Some(out) = a.out {
            holds!(out, self.hidden(rows));
        }
        let kernel = self.kernels.only(Entry::NormAddScaled)?;
        // SAFETY: these are the parameters of norm_add_scaled in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![self.dims, a.x, a.weight, a.residual, a.factor, a.out, a.eps],
            )
        }
    }

    /// Queues `out = x` in the type of activations over `rows` rows.
    pub(crate) fn cast_rows(
        &self,
        (rows, block): (u32, u32),
        x: DeviceSlice<f32>,
        out: DeviceSlice<Act>,
    ) -> Result<(), CudaError> {
        holds!(x, self.hidden(rows));
        holds!(out, self.hidden(rows));
        let kernel = self.kernels.only(Entry::CastRows)?;
        // SAFETY: these are the parameters of cast_rows in its order; the slices were checked above.
        unsafe { kernel.launch(self.stream, Launch::linear(rows, block), args![self.dims, x, out]) }
    }

    /// Queues `residual += bias` over `rows` rows.
    pub(crate) fn bias_add_rows(
        &self,
        (rows, block): (u32, u32),
        residual: DeviceSlice<f32>,
        bias: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        holds!(residual, self.hidden(rows));
        holds!(bias, self.hidden(1));
        let kernel = self.kernels.only(Entry::BiasAddRows)?;
        // SAFETY: these are the parameters of bias_add_rows in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![self.dims, residual, bias],
            )
        }
    }

    /// Queues the gate of `rows` rows.
    pub(crate) fn act_mul_rows(
        &self,
        rows: u32,
        build: Variant,
        a: &ActMul,
    ) -> Result<(), CudaError> {
        let width = u64::from(a.intermediate_size);
        holds!(a.gate_up, u64::from(rows) * 2 * width);
        holds!(a.out, u64::from(rows) * width);
        if let Some(bias) = a.bias {
            holds!(bias, 2 * width);
        }
        let kernel = self.kernels.build(Entry::ActMulRows, build)?;
        let dims = build.dims(*self.dims);
        let launch = Launch::plane(rows, a.intermediate_size.div_ceil(GATE_COLUMNS), 256);
        // SAFETY: these are the parameters of act_mul_rows in its order; the slices were checked above against
        // the width that the kernel was built for.
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![&dims, a.gate_up, a.bias, a.out, a.kind, a.limit],
            )
        }
    }

    /// Queues the cap of `rows` rows of logits.
    pub(crate) fn softcap_rows(
        &self,
        rows: u32,
        logits: DeviceSlice<f32>,
        cap: f32,
    ) -> Result<(), CudaError> {
        holds!(logits, self.vocab(rows));
        let kernel = self.kernels.only(Entry::SoftcapRows)?;
        let launch = Launch::plane(self.dims.vocab_size.div_ceil(SAMPLE_CHUNK), rows, 256);
        // SAFETY: these are the parameters of softcap_rows in its order; the logits were checked above.
        unsafe { kernel.launch(self.stream, launch, args![self.dims, logits, cap]) }
    }
}
