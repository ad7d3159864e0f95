//! Launches of pool.cu.

use super::Launcher;
use crate::CudaError;
use crate::device_slice::DeviceSlice;
use crate::module::{Launch, args};
use crate::registry::Entry;

/// Of pool_scale, then pool_rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolRows {
    /// StepHeader and its lists, words.
    pub(crate) step: DeviceSlice<u32>,
    /// `[tokens, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    /// `[tokens]`
    pub(crate) scale: DeviceSlice<f32>,
    /// `[hidden_size]`
    pub(crate) weight: DeviceSlice<f32>,
    /// `[num_slots, hidden_size]`
    pub(crate) sums: DeviceSlice<f32>,
    /// `[rows, hidden_size]`
    pub(crate) out: DeviceSlice<f32>,
    pub(crate) eps: f32,
}

impl Launcher<'_> {
    /// Queues the pooling of a step of `rows` rows and `tokens` padded token rows.
    pub(crate) fn pool(&self, tokens: u32, rows: u32, a: &PoolRows) -> Result<(), CudaError> {
        holds!(a.residual, self.hidden(tokens));
        holds!(a.scale, u64::from(tokens));
        holds!(a.weight, self.hidden(1));
        holds!(a.sums, self.hidden(self.dims.num_slots));
        holds!(a.out, self.hidden(rows));
        let scale = self.kernels.only(Entry::PoolScale)?;
        let pool = self.kernels.only(Entry::PoolRows)?;
        // SAFETY: these are the parameters of pool_scale and pool_rows in their order; the slices were checked
        // above, and the step's rows lie within its tokens (`metadata::pack`).
        unsafe {
            scale.launch(
                self.stream,
                Launch::linear(tokens, 256),
                args![self.dims, a.residual, a.scale, a.eps],
            )?;
            pool.launch(
                self.stream,
                Launch::plane(rows, self.dims.hidden_size.div_ceil(256), 256),
                args![self.dims, a.step, a.residual, a.scale, a.weight, a.sums, a.out],
            )
        }
    }
}
