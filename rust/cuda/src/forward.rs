//! [5] The launches of a forward pass, from metadata to the last residual. Engine thread, or the capture
//! thread while it records.

use ingle_model::RopeStyle;

use crate::CudaError;
use crate::builds::Variant;
use crate::contract::{
    ATTENTION_THREADS, Dims, GATE_COLUMNS, MOE_ROUTE_TOKENS, MOE_TILE, PLAN_NOT_CAUSAL, PLAN_WHOLE,
    PROMPT_ROWS, QUERY_ROWS, ROPE_HALF_SPLIT, ROPE_HEADS, ROPE_INTERLEAVED,
};
use crate::gemm::GemmArgs;
use crate::model::{Model, StepShape};
use crate::module::{Launch, args};
use crate::registry::Entry;
use crate::shapes::{Shapes, activation_kind};
use crate::stream::Stream;
use crate::weights::{FeedForwardWeights, LayerWeights};

/// Addresses of one norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormArgs {
    /// `[*, hidden_size]` f32
    pub(crate) x: u64,
    /// `[rows]` u32, which rows of x; 0 for the first ones.
    pub(crate) row_index: u64,
    /// `[hidden_size]` f32
    pub(crate) weight: u64,
    /// `[rows, hidden_size]` device type
    pub(crate) out: u64,
}

impl Model {
    /// Queues a whole step: unpack the metadata, run the layers, sample.
    ///
    /// # Safety
    /// `shape` holds the step whose metadata the stream's earlier work brings to `buffers.meta`, and no
    /// other stream runs a step; or the stream is being captured for such steps.
    pub(crate) unsafe fn step(&self, stream: &Stream, shape: StepShape) -> Result<(), CudaError> {
        // SAFETY: the caller's promises.
        unsafe {
            self.layers(stream, shape)?;
            if shape.samples > 0 {
                self.sample_logits(stream, shape.samples)?;
                self.sample(stream, shape.samples, self.buffers.meta, self.buffers.logits)?;
            }
        }
        Ok(())
    }

    /// Queues everything up to the last layer's residual.
    ///
    /// # Safety
    /// As `step`.
    pub(crate) unsafe fn layers(&self, stream: &Stream, shape: StepShape) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let rows = shape.tokens;
        debug_assert!(rows <= self.buckets.largest() && u64::from(rows) <= self.sizes.tokens);
        // SAFETY: addresses and sizes are those of `Buffers`, `Weights` and the KV pool, which were
        // laid out for at least `rows` rows; argument lists follow the contracts of the .cu files.
        unsafe {
            self.prepare(stream, shape)?;
            self.kernels.only(Entry::EmbeddingGather)?.launch(
                stream,
                Launch::linear(rows, 256),
                args![
                    &self.dims,
                    buffers.token_ids,
                    self.weights.embedding,
                    buffers.residual,
                    self.spec.embedding_scale
                ],
            )?;
            for (index, layer) in self.weights.layers.iter().enumerate() {
                self.attention_part(stream, shape, index, layer)?;
                self.feed_forward_part(stream, rows, layer)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As `layers`.
    unsafe fn prepare(&self, stream: &Stream, shape: StepShape) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let num_plans = self.windows.len() as u32;
        let whole = if self.deterministic { PLAN_WHOLE } else { 0 };
        let prompt_tile = self.prompt_attention.as_ref().map_or(0, |prompt| prompt.launch.kv_tile);
        let split = u32::from(shape.has_prompts);
        let sees_all = if self.spec.attention.causal { 0 } else { PLAN_NOT_CAUSAL };
        // SAFETY: as `layers`; the plan sizes are the ones that the buffer was laid out with.
        unsafe {
            self.kernels.only(Entry::StepPrepareTokens)?.launch(
                stream,
                Launch::linear(1 + num_plans * (1 + split), 1024),
                args![
                    &self.dims,
                    buffers.meta,
                    buffers.last_token,
                    buffers.block_table,
                    buffers.token_ids,
                    buffers.positions,
                    buffers.slot_of_token,
                    buffers.kv_slot,
                    buffers.sample_rows,
                    buffers.windows,
                    buffers.plans,
                    self.sizes.plan_words,
                    self.sizes.plan_entries,
                    shape.tokens,
                    shape.samples,
                    self.attention.grid,
                    QUERY_ROWS,
                    self.attention.kv_tile,
                    whole | sees_all,
                    num_plans,
                    buffers.prompt_plans,
                    self.sizes.prompt_words,
                    buffers.prompt_counters,
                    self.weights.layers.len() as u32,
                    PROMPT_ROWS,
                    prompt_tile,
                    split,
                ],
            )
        }
    }

    /// # Safety
    /// As `layers`.
    unsafe fn attention_part(
        &self,
        stream: &Stream,
        shape: StepShape,
        index: usize,
        layer: &LayerWeights,
    ) -> Result<(), CudaError> {
        let rows = shape.tokens;
        let (buffers, spec) = (&self.buffers, &self.spec);
        let shapes = Shapes::of(spec);
        let layer_offset = index as u64 * self.kv.layer_stride;
        let heads = spec.num_attention_heads + 2 * spec.num_kv_heads;
        let window = spec.layers[index].window.unwrap_or(0);
        let plan_index = self.windows.iter().position(|&w| w == window).unwrap_or(0) as u64;
        let plan = buffers.plans + plan_index * u64::from(self.sizes.plan_words) * 4;
        let style = match spec.rope.style {
            RopeStyle::HalfSplit => ROPE_HALF_SPLIT,
            RopeStyle::Interleaved => ROPE_INTERLEAVED,
        };
        // SAFETY: as `layers`.
        unsafe {
            self.norm(stream, rows, self.layer_norm(layer.input_norm))?;
            let args = GemmArgs { x: buffers.normed, w: layer.qkv, out: buffers.qkv };
            self.gemms.run(stream, rows, shapes.qkv, args)?;
            self.kernels.only(Entry::RopeKvPaged)?.launch(
                stream,
                Launch::plane(rows, heads.div_ceil(ROPE_HEADS), 256),
                args![
                    &self.dims,
                    buffers.qkv,
                    layer.qkv_bias,
                    layer.q_norm,
                    layer.k_norm,
                    buffers.rope_table,
                    buffers.positions,
                    buffers.kv_slot,
                    buffers.q,
                    self.kv.base,
                    self.kv.block_stride,
                    layer_offset,
                    spec.norm.eps,
                    style,
                ],
            )?;
            self.kernels.only(Entry::AttentionPaged)?.launch(
                stream,
                Launch::linear(self.attention.grid, ATTENTION_THREADS)
                    .shared(self.attention.shared_bytes),
                args![
                    &self.dims,
                    buffers.q,
                    buffers.attended,
                    plan,
                    buffers.block_table,
                    self.kv.base,
                    self.kv.block_stride,
                    layer_offset,
                    buffers.partials,
                    buffers.counters,
                    spec.attention.scale,
                    spec.attention.logit_softcap.unwrap_or(0.0),
                    window,
                ],
            )?;
            if shape.has_prompts {
                self.prompt_attention(stream, index, plan_index, window)?;
            }
            let args = GemmArgs { x: buffers.attended, w: layer.output, out: self.branch() };
            self.gemms.run(stream, rows, shapes.output, args)?;
            self.join(stream, rows, layer.output_bias, layer.post_attention_norm)
        }
    }

    /// Behind `attention`, whose plan leaves prompts out.
    ///
    /// # Safety
    /// As `layers`.
    unsafe fn prompt_attention(
        &self,
        stream: &Stream,
        index: usize,
        plan_index: u64,
        window: u32,
    ) -> Result<(), CudaError> {
        let (buffers, spec) = (&self.buffers, &self.spec);
        let missing = || CudaError::Unsupported("no kernel for prompt attention".to_owned());
        let prompt = self.prompt_attention.as_ref().ok_or_else(missing)?;
        // SAFETY: as `layers`; the map covers the pool's reserved addresses, and a plan names blocks that
        // are backed.
        unsafe {
            self.kernels.only(Entry::AttentionPrefill)?.launch(
                stream,
                prompt.launch.launch(),
                args![
                    &self.dims,
                    buffers.q,
                    buffers.attended,
                    buffers.prompt_plans + plan_index * u64::from(self.sizes.prompt_words) * 4,
                    buffers.block_table,
                    &prompt.kv_maps[index],
                    buffers.prompt_counters + index as u64 * 4,
                    spec.attention.scale,
                    spec.attention.logit_softcap.unwrap_or(0.0),
                    window,
                ],
            )
        }
    }

    /// # Safety
    /// As `layers`.
    unsafe fn feed_forward_part(
        &self,
        stream: &Stream,
        rows: u32,
        layer: &LayerWeights,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let shapes = Shapes::of(&self.spec);
        // SAFETY: as `layers`.
        unsafe {
            self.norm(stream, rows, self.layer_norm(layer.feed_forward_norm))?;
            match layer.feed_forward {
                FeedForwardWeights::Dense {
                    gate_up,
                    gate_up_bias,
                    down,
                    down_bias,
                    intermediate_size,
                } => {
                    let gated = shapes.gated(intermediate_size);
                    if self.gemms.has(rows, gated) {
                        let args = GemmArgs { x: buffers.normed, w: gate_up, out: buffers.gated };
                        self.gemms.run(stream, rows, gated, args)?;
                    } else {
                        let args = GemmArgs { x: buffers.normed, w: gate_up, out: buffers.gate_up };
                        self.gemms.run(stream, rows, shapes.gate_up(intermediate_size), args)?;
                        self.gate(stream, rows, intermediate_size, gate_up_bias)?;
                    }
                    let args = GemmArgs { x: buffers.gated, w: down, out: self.branch() };
                    self.gemms.run(stream, rows, shapes.down(intermediate_size), args)?;
                    self.join(stream, rows, down_bias, layer.post_feed_forward_norm)
                }
                FeedForwardWeights::Moe { router, gate_up, down, spec } => {
                    let shape = shapes.router(spec.num_experts);
                    let args =
                        GemmArgs { x: buffers.normed, w: router, out: buffers.router_logits };
                    self.gemms.run(stream, rows, shape, args)?;
                    self.experts(stream, rows, spec, gate_up, down)
                }
            }
        }
    }

    /// Where a projection back to the hidden size goes.
    fn branch(&self) -> u64 {
        if self.spec.post_norms { self.buffers.branch } else { self.buffers.residual }
    }

    /// What follows such a projection: its bias and, where the model has one, the norm behind it.
    unsafe fn join(
        &self,
        stream: &Stream,
        rows: u32,
        bias: u64,
        post_norm: u64,
    ) -> Result<(), CudaError> {
        let branch = self.branch();
        let launch = Launch::linear(rows, self.norm_block(rows));
        // SAFETY: as `layers`; `branch` holds `rows` rows of the hidden size.
        unsafe {
            if bias != 0 {
                let args = args![&self.dims, branch, bias];
                self.kernels.only(Entry::BiasAddRows)?.launch(stream, launch, args)?;
            }
            if post_norm != 0 {
                let residual = self.buffers.residual;
                let args = args![&self.dims, branch, post_norm, residual, self.spec.norm.eps];
                self.kernels.only(Entry::RmsNormAdd)?.launch(stream, launch, args)?;
            }
        }
        Ok(())
    }

    /// Norm of `rows` rows.
    ///
    /// # Safety
    /// As `layers`; the buffers hold at least `rows` rows.
    pub(crate) unsafe fn norm(
        &self,
        stream: &Stream,
        rows: u32,
        norm: NormArgs,
    ) -> Result<(), CudaError> {
        let NormArgs { x, row_index, weight, out } = norm;
        // SAFETY: the caller's promises.
        unsafe {
            self.kernels.only(Entry::RmsNormRows)?.launch(
                stream,
                Launch::linear(rows, self.norm_block(rows)),
                args![&self.dims, x, row_index, weight, out, self.spec.norm.eps],
            )
        }
    }

    fn layer_norm(&self, weight: u64) -> NormArgs {
        let buffers = &self.buffers;
        NormArgs { x: buffers.residual, row_index: 0, weight, out: buffers.normed }
    }

    /// Threads a row of a norm: many where rows are few and time is latency (one H200, hidden size 4096:
    /// 2.2 us with 1024, 2.8 us with 256). The order of a row's sum follows from it.
    fn norm_block(&self, rows: u32) -> u32 {
        let most = match rows {
            _ if self.deterministic => 512,
            0..=256 => 1024,
            257..1024 => 512,
            _ => 256,
        };
        (self.spec.hidden_size / 4).next_multiple_of(32).clamp(32, most)
    }

    /// # Safety
    /// As `layers`.
    unsafe fn gate(
        &self,
        stream: &Stream,
        rows: u32,
        intermediate_size: u32,
        bias: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let kernel = self.kernels.build(Entry::ActMulRows, Variant::Gate { intermediate_size })?;
        let dims = Dims { intermediate_size, ..self.dims };
        let activation = activation_kind(&self.spec);
        // SAFETY: as `layers`.
        unsafe {
            kernel.launch(
                stream,
                Launch::plane(rows, intermediate_size.div_ceil(GATE_COLUMNS), 256),
                args![&dims, buffers.gate_up, bias, buffers.gated, activation],
            )
        }
    }

    /// # Safety
    /// As `layers`.
    unsafe fn experts(
        &self,
        stream: &Stream,
        rows: u32,
        spec: ingle_model::MoeSpec,
        gate_up: u64,
        down: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let (experts, chosen) = (spec.num_experts, spec.experts_per_token);
        let variant = |gemm_n, gemm_k| Variant::Experts {
            num_experts: experts,
            experts_per_token: chosen,
            gemm_n,
            gemm_k,
        };
        let dims = Dims { num_experts: experts, experts_per_token: chosen, ..self.dims };
        let entries = rows * chosen;
        let product = |n: u32, k: u32, x: u64, w: u64, out: u64, gather: u32| {
            let kernel = self.kernels.build(Entry::MoeGemm, variant(n, k))?;
            let dims = dims.gemm(n, k);
            let launch =
                Launch::plane(n.div_ceil(MOE_TILE), entries.div_ceil(MOE_TILE) + experts, 128);
            let (offsets, sorted) = (buffers.expert_offsets, buffers.expert_sorted);
            // SAFETY: as `layers`; x and out have `entries` rows of k and n columns.
            unsafe {
                kernel.launch(stream, launch, args![&dims, x, w, out, offsets, sorted, gather])
            }
        };
        let (hidden, inner) = (self.spec.hidden_size, spec.intermediate_size);
        let entry = |entry| self.kernels.build(entry, variant(hidden, inner));
        // SAFETY: as `layers`.
        unsafe {
            entry(Entry::MoeRoute)?.launch(
                stream,
                Launch::linear(rows.div_ceil(MOE_ROUTE_TOKENS), 128),
                args![
                    &dims,
                    buffers.router_logits,
                    buffers.expert_ids,
                    buffers.expert_weights,
                    u32::from(spec.normalise_top_k),
                    rows,
                ],
            )?;
            let (offsets, sorted) = (buffers.expert_offsets, buffers.expert_sorted);
            entry(Entry::MoeSort)?.launch(
                stream,
                Launch::linear(experts, 256),
                args![&dims, buffers.expert_ids, entries, offsets, sorted, buffers.expert_place],
            )?;
            product(2 * inner, hidden, buffers.normed, gate_up, buffers.gate_up, 1)?;
            self.gate(stream, entries, inner, 0)?;
            product(hidden, inner, buffers.gated, down, buffers.expert_out, 0)?;
            let residual = self.branch();
            entry(Entry::MoeCombine)?.launch(
                stream,
                Launch::linear(rows, 256),
                args![
                    &dims,
                    buffers.expert_out,
                    buffers.expert_place,
                    buffers.expert_weights,
                    residual,
                ],
            )
        }
    }
}
