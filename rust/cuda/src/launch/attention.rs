//! Launches of rope_kv.cu and attention.cu.

use ingle_model::QueryScale;

use super::Launcher;
use crate::CudaError;
use crate::attention_kinds::AttentionKind;
use crate::contract::{Dims, ROPE_HEADS, attention_partial_floats, attention_threads};
use crate::device_slice::{Act, DeviceSlice};
use crate::kv_pool::KvLayer;
use crate::module::{Launch, args};
use crate::registry::Entry;
use crate::rope_build::RopeBuild;
use crate::sys::driver::TensorMap;
use crate::variant::Variant;

/// Of rope_kv_paged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeKv {
    /// `[rows, (num_heads + 2 * num_kv_heads) * head_dim]`, less the parts that the build has not; with an output gate, a
    /// gate behind each head of q
    pub(crate) qkv: DeviceSlice<Act>,
    /// Scales of its rows and columns if it is a raw product.
    pub(crate) scales: Option<(DeviceSlice<f32>, DeviceSlice<f32>)>,
    /// The same width.
    pub(crate) bias: Option<DeviceSlice<f32>>,
    /// `[head_dim]`, or of all heads
    pub(crate) q_norm: Option<DeviceSlice<f32>>,
    pub(crate) k_norm: Option<DeviceSlice<f32>>,
    /// `[max_model_len, pairs that rotate]`; `None`: no rotation.
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
    pub(crate) fn rope_kv(&self, rows: u32, build: RopeBuild, a: &RopeKv) -> Result<(), CudaError> {
        let RopeBuild { head_dim, rules, .. } = build;
        let variant = Variant::Rope(build);
        let dims = &variant.dims(*self.dims);
        let Dims { num_heads, num_kv_heads, .. } = *dims;
        let parts = rules.keys.count();
        let heads = num_heads + 2 * num_kv_heads * parts.min(1);
        let width = |heads: u32| u64::from(heads) * u64::from(head_dim);
        let columns = num_heads + parts * num_kv_heads;
        let columns = width(columns + if rules.output_gate { num_heads } else { 0 });
        holds!(a.qkv, u64::from(rows) * columns);
        holds!(a.q, u64::from(rows) * width(num_heads));
        holds!(a.positions, u64::from(rows));
        holds!(a.kv_slot, u64::from(rows));
        if let Some((row_scale, scale)) = a.scales {
            holds!(row_scale, u64::from(rows));
            holds!(scale, columns);
        }
        let normed = |heads| width(if rules.full_norm { heads } else { 1 });
        for (weight, elements) in [
            (a.bias, width(num_heads + parts * num_kv_heads)),
            (a.q_norm, normed(num_heads)),
            (a.k_norm, normed(num_kv_heads)),
        ] {
            if let Some(weight) = weight {
                holds!(weight, elements);
            }
        }
        let kernel = self.kernels.build(Entry::RopeKvPaged, variant)?;
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
                    dims,
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
        kind: &AttentionKind,
        a: &Attention,
    ) -> Result<(), CudaError> {
        let dims = &kind.build.dims(*self.dims);
        let (head_dim, sizes) = (kind.heads.head_dim, &kind.launch);
        let Dims { num_heads, num_slots, max_blocks, .. } = *dims;
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
        let kernel = self.kernels.build(Entry::AttentionPaged, kind.build)?;
        let threads = attention_threads(head_dim);
        let launch = Launch::linear(sizes.grid, threads).shared(sizes.shared_bytes);
        // SAFETY: these are the parameters of attention_paged in its order; the slices were checked above, the plan
        // is one that step_prepare wrote for this grid, and block tables name blocks of the pool.
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![
                    dims,
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
        kind: &AttentionKind,
        a: &Attention,
        prompts: &AttentionPrefill<'_>,
    ) -> Result<(), CudaError> {
        holds!(prompts.counter, 1);
        let missing = || CudaError::Unsupported("no kernel for prompt attention".to_owned());
        let sizes = kind.prompt.as_ref().ok_or_else(missing)?;
        let dims = &kind.prompt_build.dims(*self.dims);
        let kernel = self.kernels.build(Entry::AttentionPrefill, kind.prompt_build)?;
        // SAFETY: these are the parameters of attention_prefill in its order; `attention` has checked those that
        // both take, the plan is one that step_prepare wrote, and the map covers the pool's reserved addresses, of
        // which a plan names only blocks that are backed.
        unsafe {
            kernel.launch(
                self.stream,
                sizes.launch(),
                args![
                    dims,
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
