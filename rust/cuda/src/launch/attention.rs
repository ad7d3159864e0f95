//! Launches of rope_kv.cu and attention.cu.

use ingle_model::QueryScale;

use super::Launcher;
use crate::CudaError;
use crate::attention_launch::AttentionLaunch;
use crate::builds::Variant;
use crate::contract::{ATTENTION_THREADS, Dims, ROPE_HEADS, attention_partial_floats};
use crate::device_slice::{Act, DeviceSlice};
use crate::kv_pool::KvLayer;
use crate::module::{Launch, args};
use crate::prompt_launch::PromptLaunch;
use crate::registry::Entry;
use crate::sys::driver::TensorMap;

/// Of rope_kv_paged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeKv {
    /// `[rows, (num_heads + 2 * num_kv_heads) * head_dim]`; with an output gate, a gate behind each head of q
    pub(crate) qkv: DeviceSlice<Act>,
    /// Scales of its rows and columns if it is a raw product.
    pub(crate) scales: Option<(DeviceSlice<f32>, DeviceSlice<f32>)>,
    /// The same width.
    pub(crate) bias: Option<DeviceSlice<f32>>,
    /// `[head_dim]`, or of all heads
    pub(crate) q_norm: Option<DeviceSlice<f32>>,
    pub(crate) k_norm: Option<DeviceSlice<f32>>,
    /// `[max_model_len, rotary_dim / 2]`; `None`: no rotation.
    pub(crate) table: Option<DeviceSlice<[f32; 2]>>,
    /// `[rows]` each
    pub(crate) positions: DeviceSlice<u32>,
    pub(crate) kv_slot: DeviceSlice<u32>,
    /// `[rows, num_heads * head_dim]`
    pub(crate) q: DeviceSlice<Act>,
    pub(crate) kv: KvLayer,
    pub(crate) eps: f32,
    /// ROPE_HALF_SPLIT or ROPE_INTERLEAVED.
    pub(crate) style: u32,
    pub(crate) query_scale: Option<QueryScale>,
}

/// Of attention_paged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// `[rows, num_heads * head_dim]` each
    pub(crate) q: DeviceSlice<Act>,
    pub(crate) out: DeviceSlice<Act>,
    /// One plan of step_prepare, words.
    pub(crate) plan: DeviceSlice<u32>,
    /// `[num_slots, max_blocks]`
    pub(crate) block_table: DeviceSlice<u32>,
    pub(crate) kv: KvLayer,
    /// Two partial results a block of the grid.
    pub(crate) partials: DeviceSlice<f32>,
    /// `[grid]`, zero.
    pub(crate) counters: DeviceSlice<u32>,
    pub(crate) scale: f32,
    /// 0 for none.
    pub(crate) softcap: f32,
    /// 0 for none.
    pub(crate) window: u32,
    /// `[num_heads]`, for the builds with sinks
    pub(crate) sinks: Option<DeviceSlice<f32>>,
}

/// Arguments of attention_prefill in addition to those of `Attention`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionPrefill<'a> {
    /// One prompt plan of step_prepare, words.
    pub(crate) plan: DeviceSlice<u32>,
    /// The layer's view of the KV pool.
    pub(crate) kv_map: &'a TensorMap,
    /// One, zero.
    pub(crate) counter: DeviceSlice<u32>,
}

impl Launcher<'_> {
    /// Queues bias, head norms, rotation and the KV write of `rows` rows.
    pub(crate) fn rope_kv(&self, rows: u32, build: Variant, a: &RopeKv) -> Result<(), CudaError> {
        let Variant::Rope { head_dim, full_norm, output_gate, .. } = build else {
            return Err(CudaError::Unsupported(format!("rope_kv was not built as {build:?}")));
        };
        let Dims { num_heads, num_kv_heads, .. } = *self.dims;
        let heads = num_heads + 2 * num_kv_heads;
        let width = |heads: u32| u64::from(heads) * u64::from(head_dim);
        let columns = width(heads + if output_gate { num_heads } else { 0 });
        holds!(a.qkv, u64::from(rows) * columns);
        holds!(a.q, u64::from(rows) * width(num_heads));
        holds!(a.positions, u64::from(rows));
        holds!(a.kv_slot, u64::from(rows));
        if let Some((row_scale, scale)) = a.scales {
            holds!(row_scale, u64::from(rows));
            holds!(scale, columns);
        }
        let normed = |heads| width(if full_norm { heads } else { 1 });
        for (weight, elements) in [
            (a.bias, width(heads)),
            (a.q_norm, normed(num_heads)),
            (a.k_norm, normed(num_kv_heads)),
        ] {
            if let Some(weight) = weight {
                holds!(weight, elements);
            }
        }
        let kernel = self.kernels.build(Entry::RopeKvPaged, build)?;
        let scale =
            a.query_scale.unwrap_or(QueryScale { beta: 0.0, length: 1, without_rope: false });
        let launch = Launch::plane(rows, heads.div_ceil(ROPE_HEADS), 256);
        // SAFETY: these are the parameters of rope_kv_paged in its order; the slices were checked above, the table
        // covers every position that `metadata::pack` lets through, and kv_slot names blocks of the pool.
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![
                    self.dims,
                    a.qkv,
                    a.scales.map(|(row_scale, _)| row_scale),
                    a.scales.map(|(_, scale)| scale),
                    a.bias,
                    a.q_norm,
                    a.k_norm,
                    a.table,
                    a.positions,
                    a.kv_slot,
                    a.q,
                    a.kv.base,
                    a.kv.block_stride,
                    a.kv.layer_offset,
                    a.eps,
                    a.style,
                    scale.beta,
                    scale.length,
                ],
            )
        }
    }

    /// Queues attention over the rows of the plan, `rows` with padding.
    pub(crate) fn attention(
        &self,
        rows: u32,
        head_dim: u32,
        sizes: &AttentionLaunch,
        a: &Attention,
    ) -> Result<(), CudaError> {
        let Dims { num_heads, num_slots, max_blocks, .. } = *self.dims;
        let width = u64::from(num_heads) * u64::from(head_dim);
        let grid = u64::from(sizes.grid);
        holds!(a.q, u64::from(rows) * width);
        holds!(a.out, u64::from(rows) * width);
        holds!(a.block_table, u64::from(num_slots) * u64::from(max_blocks));
        holds!(a.partials, 2 * grid * attention_partial_floats(head_dim));
        holds!(a.counters, grid);
        if let Some(sinks) = a.sinks {
            holds!(sinks, u64::from(num_heads));
        }
        let kernel = self.kernels.only(Entry::AttentionPaged)?;
        let launch = Launch::linear(sizes.grid, ATTENTION_THREADS).shared(sizes.shared_bytes);
        // SAFETY: these are the parameters of attention_paged in its order; the slices were checked above, the plan
        // is one that step_prepare wrote for this grid, and block tables name blocks of the pool.
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![
                    self.dims,
                    a.q,
                    a.out,
                    a.plan,
                    a.block_table,
                    a.kv.base,
                    a.kv.block_stride,
                    a.kv.layer_offset,
                    a.partials,
                    a.counters,
                    a.scale,
                    a.softcap,
                    a.window,
                    a.sinks,
                ],
            )
        }
    }

    /// Queues attention over the prompts of a step, behind `attention`, whose plan leaves them out; `a` is what
    /// that took.
    pub(crate) fn attention_prefill(
        &self,
        sizes: &PromptLaunch,
        a: &Attention,
        prompts: &AttentionPrefill<'_>,
    ) -> Result<(), CudaError> {
        holds!(prompts.counter, 1);
        let kernel = self.kernels.only(Entry::AttentionPrefill)?;
        // SAFETY: these are the parameters of attention_prefill in its order; `attention` has checked those that
        // both take, the plan is one that step_prepare wrote, and the map covers the pool's reserved addresses, of
        // which a plan names only blocks that are backed.
        unsafe {
            kernel.launch(
                self.stream,
                sizes.launch(),
                args![
                    self.dims,
                    a.q,
                    a.out,
                    prompts.plan,
                    a.block_table,
                    prompts.kv_map,
                    prompts.counter,
                    a.scale,
                    a.softcap,
                    a.window,
                    a.sinks,
                ],
            )
        }
    }
}
