//! Launches of token_input.cu.

use super::Launcher;
use crate::CudaError;
use crate::device_slice::{Act, DeviceSlice, Weight};
use crate::module::{Launch, args};
use crate::registry::Entry;

/// Of token_input_rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenInput {
    pub(crate) num_layers: u32,
    /// Numbers for a layer.
    pub(crate) size: u32,
    /// `[rows, num_layers * size]`: the projection, and the result.
    pub(crate) x: DeviceSlice<Act>,
    /// `[rows]`
    pub(crate) token_ids: DeviceSlice<u32>,
    /// `[vocab_size, num_layers * size]`
    pub(crate) table: DeviceSlice<Weight>,
    /// `[size]`
    pub(crate) norm: DeviceSlice<f32>,
    /// Factors of the projection and of rows of the table.
    pub(crate) projected: f32,
    pub(crate) embedded: f32,
    pub(crate) eps: f32,
}

/// Of token_gate_rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenGate {
    pub(crate) num_layers: u32,
    pub(crate) layer: u32,
    pub(crate) size: u32,
    /// `[rows, size]`
    pub(crate) gate: DeviceSlice<Act>,
    /// `[rows, num_layers * size]`
    pub(crate) x: DeviceSlice<Act>,
    /// `[rows, size]`
    pub(crate) out: DeviceSlice<Act>,
    /// GATE_SILU or GATE_GELU_TANH.
    pub(crate) kind: u32,
}

impl Launcher<'_> {
    /// Queues what all layers get of `rows` tokens.
    pub(crate) fn token_input_rows(&self, rows: u32, a: &TokenInput) -> Result<(), CudaError> {
        let all = u64::from(a.num_layers) * u64::from(a.size);
        holds!(a.x, u64::from(rows) * all);
        holds!(a.token_ids, u64::from(rows));
        holds!(a.table, self.vocab(1) * all);
        holds!(a.norm, u64::from(a.size));
        let kernel = self.kernels.only(Entry::TokenInputRows)?;
        // SAFETY: these are the parameters of token_input_rows in its order; the slices were checked above, and
        // step_prepare gives no id outside the vocabulary.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::plane(rows, a.num_layers.div_ceil(8), 256),
                args![
                    self.dims,
                    a.x,
                    a.token_ids,
                    a.table,
                    a.norm,
                    a.num_layers,
                    a.size,
                    a.projected,
                    a.embedded,
                    a.eps
                ],
            )
        }
    }

    /// Queues the gate of a layer's part of `rows` rows.
    pub(crate) fn token_gate_rows(&self, rows: u32, a: &TokenGate) -> Result<(), CudaError> {
        let size = u64::from(a.size);
        holds!(a.gate, u64::from(rows) * size);
        holds!(a.x, u64::from(rows) * u64::from(a.num_layers) * size);
        holds!(a.out, u64::from(rows) * size);
        let kernel = self.kernels.only(Entry::TokenGateRows)?;
        // SAFETY: these are the parameters of token_gate_rows in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, 128),
                args![self.dims, a.gate, a.x, a.out, a.num_layers, a.layer, a.size, a.kind],
            )
        }
    }
}
