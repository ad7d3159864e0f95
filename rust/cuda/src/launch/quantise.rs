//! Launches of quantise.cu.

use super::Launcher;
use crate::CudaError;
use crate::device_slice::{Act, DeviceSlice};
use crate::module::{Launch, args};
use crate::registry::Entry;

/// A product of e4m3 numbers: element (row, column) counts `row_scale[row] * scale[column]` times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    /// `[rows, n]`
    pub(crate) values: DeviceSlice<Act>,
    /// `[rows]`
    pub(crate) row_scale: DeviceSlice<f32>,
    /// `[n]`
    pub(crate) scale: DeviceSlice<f32>,
}

/// Rows of e4m3 numbers: row `i` counts `scale[i]` times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct E4m3Rows {
    /// `[rows, width]`
    pub(crate) values: DeviceSlice<u8>,
    /// `[rows]`
    pub(crate) scale: DeviceSlice<f32>,
}

/// Of rms_norm_quantise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmsNormQuantise {
    /// `[rows, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    /// Added to the residual first.
    pub(crate) raw: Option<Raw>,
    /// `[hidden_size]`
    pub(crate) weight: DeviceSlice<f32>,
    pub(crate) out: E4m3Rows,
    pub(crate) eps: f32,
}

/// Of act_mul_quantise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActMulQuantise {
    pub(crate) intermediate_size: u32,
    /// `[rows, 2 * intermediate_size]`
    pub(crate) gate_up: Raw,
    /// `[2 * intermediate_size]`
    pub(crate) bias: Option<DeviceSlice<f32>>,
    pub(crate) out: E4m3Rows,
    /// GATE_SILU or GATE_GELU_TANH.
    pub(crate) kind: u32,
}

impl Launcher<'_> {
    /// Queues the norm of `rows` rows, `block` threads each.
    pub(crate) fn rms_norm_quantise(
        &self,
        (rows, block): (u32, u32),
        a: &RmsNormQuantise,
    ) -> Result<(), CudaError> {
        holds!(a.residual, self.hidden(rows));
        holds!(a.weight, self.hidden(1));
        holds_rows(&a.out, rows, self.hidden(1));
        if let Some(raw) = &a.raw {
            holds_raw(raw, rows, self.hidden(1));
        }
        let kernel = self.kernels.only(Entry::RmsNormQuantise)?;
        // SAFETY: these are the parameters of rms_norm_quantise in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![
                    self.dims,
                    a.residual,
                    a.raw.map(|raw| raw.values),
                    a.raw.map(|raw| raw.row_scale),
                    a.raw.map(|raw| raw.scale),
                    a.weight,
                    a.out.values,
                    a.out.scale,
                    a.eps,
                ],
            )
        }
    }

    /// Queues the gate of `rows` rows.
    pub(crate) fn act_mul_quantise(&self, rows: u32, a: &ActMulQuantise) -> Result<(), CudaError> {
        let width = u64::from(a.intermediate_size);
        holds_raw(&a.gate_up, rows, 2 * width);
        holds_rows(&a.out, rows, width);
        if let Some(bias) = a.bias {
            holds!(bias, 2 * width);
        }
        let kernel = self.kernels.only(Entry::ActMulQuantise)?;
        let launch = Launch::linear(rows, GATE_THREADS).shared(2 * a.intermediate_size);
        // SAFETY: these are the parameters of act_mul_quantise in its order; the slices were checked above, and the
        // shared memory holds a row.
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![
                    self.dims,
                    a.gate_up.values,
                    a.gate_up.row_scale,
                    a.gate_up.scale,
                    a.bias,
                    a.out.values,
                    a.out.scale,
                    a.intermediate_size,
                    a.kind,
                ],
            )
        }
    }

    /// Queues the quantisation of `rows` rows of `width` elements.
    pub(crate) fn quantise_rows(
        &self,
        (rows, width): (u32, u32),
        x: DeviceSlice<Act>,
        out: &E4m3Rows,
    ) -> Result<(), CudaError> {
        holds!(x, u64::from(rows) * u64::from(width));
        holds_rows(out, rows, u64::from(width));
        let kernel = self.kernels.only(Entry::QuantiseRows)?;
        let block = (width / 8).next_multiple_of(32).clamp(32, 512);
        // SAFETY: these are the parameters of quantise_rows in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![self.dims, x, out.values, out.scale, width],
            )
        }
    }

    /// Queues `out = raw` over `rows` rows of the hidden size, with `add` `out += raw`.
    pub(crate) fn scaled_add_rows(
        &self,
        (rows, block): (u32, u32),
        out: DeviceSlice<f32>,
        raw: &Raw,
        add: bool,
    ) -> Result<(), CudaError> {
        holds!(out, self.hidden(rows));
        holds_raw(raw, rows, self.hidden(1));
        let kernel = self.kernels.only(Entry::ScaledAddRows)?;
        // SAFETY: these are the parameters of scaled_add_rows in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![self.dims, out, raw.values, raw.row_scale, raw.scale, u32::from(add)],
            )
        }
    }
}

/// Threads a row of act_mul_quantise.
const GATE_THREADS: u32 = 512;

fn holds_raw(raw: &Raw, rows: u32, width: u64) {
    holds!(raw.values, u64::from(rows) * width);
    holds!(raw.row_scale, u64::from(rows));
    holds!(raw.scale, width);
}

fn holds_rows(out: &E4m3Rows, rows: u32, width: u64) {
    holds!(out.values, u64::from(rows) * width);
    holds!(out.scale, u64::from(rows));
}
