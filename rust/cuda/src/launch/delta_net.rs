//! Launches of delta_net.cu, delta_chunks.cu, output_gate.cu and shared_score.cu.

use ingle_model::DeltaNetSpec;

use super::Launcher;
use crate::CudaError;
use crate::builds::delta_net;
use crate::contract::{DELTA_COLUMNS, Dims, GATE_COLUMNS, NONE, delta_chunk_bytes};
use crate::device_slice::{Act, DeviceSlice};
use crate::module::{Launch, args};
use crate::registry::Entry;
use crate::state_pool::StateLayer;
use crate::variant::CHUNK_KEY_DIM;

/// What the kernels of a gated delta net share in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaStep {
    pub(crate) net: DeltaNetSpec,
    pub(crate) states: StateLayer,
    /// `[rows, stride]`
    pub(crate) projected: DeviceSlice<Act>,
    /// `channels + value_width`, and `2 * num_value_heads` more where it holds the scores.
    pub(crate) stride: u32,
    /// `[rows, channels]`
    pub(crate) mixed: DeviceSlice<Act>,
    /// `[rows, num_value_heads]`
    pub(crate) factors: DeviceSlice<[f32; 2]>,
    /// `[rows, num_key_heads]`
    pub(crate) dots: DeviceSlice<f32>,
    /// `[rows, value_width]`
    pub(crate) read: DeviceSlice<f32>,
    /// `[rows]`
    pub(crate) slot_of_token: DeviceSlice<u32>,
    /// Rows of so many tokens or more are left to delta_chunks, if there are any.
    pub(crate) chunk_from: Option<u32>,
}

/// Of delta_conv, besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaConv {
    /// `[rows, 2 * num_value_heads]`, where they are apart
    pub(crate) scores: Option<DeviceSlice<f32>>,
    /// `[channels, conv_kernel]`
    pub(crate) conv: DeviceSlice<f32>,
    /// `[num_value_heads]` each
    pub(crate) log_rate: DeviceSlice<f32>,
    pub(crate) decay_bias: DeviceSlice<f32>,
    /// `[rows]`
    pub(crate) positions: DeviceSlice<u32>,
}

/// Of delta_norm, besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNorm {
    /// `[value_dim]`
    pub(crate) norm: DeviceSlice<f32>,
    /// `[rows, value_width]`
    pub(crate) gated: DeviceSlice<Act>,
    pub(crate) eps: f32,
}

/// Of output_gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputGate {
    pub(crate) head_dim: u32,
    /// `[rows, (2 * num_heads + 2 * num_kv_heads) * head_dim]`
    pub(crate) qkv: DeviceSlice<Act>,
    /// Scales of its rows and columns if it is a raw product.
    pub(crate) scales: Option<(DeviceSlice<f32>, DeviceSlice<f32>)>,
    /// `[rows, num_heads * head_dim]`
    pub(crate) attended: DeviceSlice<Act>,
}

impl DeltaStep {
    fn check(&self, rows: u32) {
        let (rows, net) = (u64::from(rows), &self.net);
        let (channels, values) = (u64::from(net.channels()), u64::from(net.value_width()));
        holds!(self.projected, rows * u64::from(self.stride));
        assert!(u64::from(self.stride) >= channels + values, "{self:?}");
        holds!(self.mixed, rows * channels);
        holds!(self.factors, rows * u64::from(net.num_value_heads));
        holds!(self.dots, rows * u64::from(net.num_key_heads));
        holds!(self.read, rows * values);
        holds!(self.slot_of_token, rows);
    }
}

impl Launcher<'_> {
    /// Queues the convolution of `rows` rows, and what each token takes from and adds to the states.
    pub(crate) fn delta_conv(
        &self,
        rows: u32,
        step: &DeltaStep,
        a: &DeltaConv,
    ) -> Result<(), CudaError> {
        let net = &step.net;
        step.check(rows);
        let heads = u64::from(net.num_value_heads);
        match a.scores {
            Some(scores) => holds!(scores, u64::from(rows) * 2 * heads),
            None => assert!(step.stride >= net.input_rows(), "{step:?}"),
        }
        holds!(a.conv, u64::from(net.channels()) * u64::from(net.conv_kernel));
        holds!(a.log_rate, heads);
        holds!(a.decay_bias, heads);
        holds!(a.positions, u64::from(rows));
        step.states.check(self.dims.num_slots);
        let kernel = self.kernels.build(Entry::DeltaConv, delta_net(net))?;
        let items = net.num_key_heads + net.num_value_heads;
        let states = step.states;
        // SAFETY: these are the parameters of delta_conv in its order; the slices were checked above, and the states
        // hold a place for each slot, of which step_prepare names no other.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::plane(rows, items.div_ceil(WARPS), 32 * WARPS),
                args![
                    self.dims,
                    step.projected,
                    a.scores,
                    a.conv,
                    a.log_rate,
                    a.decay_bias,
                    a.positions,
                    step.slot_of_token,
                    states.base,
                    states.place_stride,
                    states.layer_offset,
                    net.num_key_heads,
                    net.num_value_heads,
                    step.stride,
                    step.mixed,
                    step.factors,
                    step.dots,
                ],
            )
        }
    }

    /// Queues the delta rule of a step of at most `most_rows` rows with `tokens` token rows, whose metadata is `meta`.
    pub(crate) fn delta_rule(
        &self,
        (tokens, most_rows): (u32, u32),
        step: &DeltaStep,
        meta: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        let net = &step.net;
        step.check(tokens);
        step.states.check(self.dims.num_slots);
        let kernel = self.kernels.build(Entry::DeltaRule, delta_net(net))?;
        let states = step.states;
        // SAFETY: these are the parameters of delta_rule in its order; the slices were checked above, and slots and
        // places of the metadata exist (`metadata::pack`).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::plane(net.value_width() / DELTA_COLUMNS, most_rows, 32 * WARPS),
                args![
                    self.dims,
                    meta,
                    step.projected,
                    step.mixed,
                    step.factors,
                    step.dots,
                    states.base,
                    states.place_stride,
                    states.layer_offset,
                    net.num_key_heads,
                    net.num_value_heads,
                    step.stride,
                    step.chunk_from.unwrap_or(NONE),
                    step.read,
                ],
            )
        }
    }

    /// Queues the delta rule of the long rows of a step, which `delta_rule` leaves out. Keys are at most
    /// `CHUNK_KEY_DIM` wide.
    pub(crate) fn delta_chunks(
        &self,
        (tokens, most_rows): (u32, u32),
        step: &DeltaStep,
        meta: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        let net = &step.net;
        step.check(tokens);
        step.states.check(self.dims.num_slots);
        assert!(net.key_dim <= CHUNK_KEY_DIM, "{step:?}");
        let kernel = self.kernels.build(Entry::DeltaChunks, delta_net(net))?;
        let states = step.states;
        let launch = Launch::plane(net.value_width() / DELTA_COLUMNS, most_rows, 32 * WARPS)
            .shared(delta_chunk_bytes(net.key_dim));
        // SAFETY: these are the parameters of delta_chunks in its order; the slices were checked above, slots and
        // places of the metadata exist (`metadata::pack`), and the build was allowed this shared memory.
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![
                    self.dims,
                    meta,
                    step.projected,
                    step.mixed,
                    step.factors,
                    states.base,
                    states.place_stride,
                    states.layer_offset,
                    net.num_key_heads,
                    net.num_value_heads,
                    step.stride,
                    step.chunk_from.unwrap_or(NONE),
                    step.read,
                ],
            )
        }
    }

    /// Queues norm and gate of `rows` rows.
    pub(crate) fn delta_norm(
        &self,
        rows: u32,
        step: &DeltaStep,
        a: &DeltaNorm,
    ) -> Result<(), CudaError> {
        let net = &step.net;
        step.check(rows);
        holds!(a.norm, u64::from(net.value_dim));
        holds!(a.gated, u64::from(rows) * u64::from(net.value_width()));
        let kernel = self.kernels.build(Entry::DeltaNorm, delta_net(net))?;
        // SAFETY: these are the parameters of delta_norm in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::plane(rows, net.num_value_heads.div_ceil(WARPS), 32 * WARPS),
                args![
                    self.dims,
                    step.projected,
                    step.read,
                    a.norm,
                    step.slot_of_token,
                    net.num_key_heads,
                    net.num_value_heads,
                    step.stride,
                    a.gated,
                    a.eps,
                ],
            )
        }
    }

    /// Queues the output gate of `rows` rows.
    pub(crate) fn output_gate(&self, rows: u32, a: &OutputGate) -> Result<(), CudaError> {
        let Dims { num_heads, num_kv_heads, .. } = *self.dims;
        let width = |heads: u32| u64::from(heads) * u64::from(a.head_dim);
        let qkv_width = width(2 * num_heads + 2 * num_kv_heads);
        holds!(a.qkv, u64::from(rows) * qkv_width);
        holds!(a.attended, u64::from(rows) * width(num_heads));
        if let Some((row_scale, scale)) = a.scales {
            holds!(row_scale, u64::from(rows));
            holds!(scale, qkv_width);
        }
        let kernel = self.kernels.only(Entry::OutputGate)?;
        let blocks = (num_heads * a.head_dim).div_ceil(GATE_COLUMNS);
        // SAFETY: these are the parameters of output_gate in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::plane(rows, blocks, 256),
                args![
                    self.dims,
                    a.qkv,
                    a.scales.map(|(row_scale, _)| row_scale),
                    a.scales.map(|(_, scale)| scale),
                    a.attended,
                    a.head_dim,
                ],
            )
        }
    }

    /// Queues the weight of a shared network on `rows` rows of its inner values, `[rows, width]`.
    pub(crate) fn shared_score(
        &self,
        (rows, width): (u32, u32),
        x: DeviceSlice<Act>,
        score: DeviceSlice<f32>,
        gated: DeviceSlice<Act>,
    ) -> Result<(), CudaError> {
        holds!(x, self.hidden(rows));
        holds!(score, self.hidden(1));
        holds!(gated, u64::from(rows) * u64::from(width));
        let kernel = self.kernels.only(Entry::SharedScore)?;
        // SAFETY: these are the parameters of shared_score in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, 256),
                args![self.dims, x, score, gated, width],
            )
        }
    }
}

/// Of a block of delta_net.cu.
const WARPS: u32 = 8;
