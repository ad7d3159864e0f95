//! A loaded model on the device and the launches of its forward pass. The engine thread launches, the
//! capture thread records; both only read this.

use std::sync::Arc;

use ingle_model::{Activation, ModelSpec, RopeStyle};

use crate::CudaError;
use crate::arena::Region;
use crate::buffers::{BufferSizes, Buffers, LIST_ROWS, OUT_BYTES, QUERY_ROWS, SAMPLE_CHUNK};
use crate::context::Context;
use crate::dims::{Buckets, Dims, EngineDims};
use crate::gemm::{GemmArgs, GemmOut, GemmShape};
use crate::kernels::{AttentionLaunch, Kernels};
use crate::kv_pool::KvPool;
use crate::module::{Launch, args};
use crate::product::Products;
use crate::stream::Stream;
use crate::weights::{FeedForwardWeights, LayerWeights, Weights};

/// Everything that a forward pass uses, at addresses that never change.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) context: Arc<Context>,
    pub(crate) spec: ModelSpec,
    pub(crate) dims: Dims,
    pub(crate) engine: EngineDims,
    pub(crate) attention: AttentionLaunch,
    pub(crate) sizes: BufferSizes,
    pub(crate) buckets: Buckets,
    pub(crate) buffers: Buffers,
    pub(crate) weights: Weights,
    pub(crate) kernels: Kernels,
    pub(crate) gemms: Products,
    /// Windows of the attention plans; 0 is none.
    pub(crate) windows: Vec<u32>,
    pub(crate) kv: KvPool,
    /// Attention splits no row, so that its sums do not depend on the batch.
    pub(crate) deterministic: bool,
    /// Weights, then buffers: kept mapped as long as the addresses above are used.
    pub(crate) _regions: Vec<Region>,
}

/// Padded sizes of a step: what a graph is keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StepShape {
    /// Padded token rows.
    pub(crate) tokens: u32,
    /// Padded sample rows; 0 if the step samples nothing.
    pub(crate) samples: u32,
}

/// The products of the layers with the row counts of tokens, and the head's with those of samples.
pub(crate) fn gemm_shapes(spec: &ModelSpec) -> (Vec<GemmShape>, GemmShape) {
    use ingle_model::FeedForwardSpec;
    let shapes = Shapes::of(spec);
    let mut layers = vec![shapes.qkv, shapes.output];
    for layer in &spec.layers {
        match layer.feed_forward {
            FeedForwardSpec::Dense { intermediate_size, bias } => {
                layers.extend([shapes.gate_up(intermediate_size), shapes.down(intermediate_size)]);
                if !bias {
                    layers.push(shapes.gated(intermediate_size));
                }
            }
            FeedForwardSpec::Moe(moe) => layers.push(shapes.router(moe.num_experts)),
        }
    }
    layers.sort_unstable();
    layers.dedup();
    (layers, shapes.head)
}

/// The gate as kernels name it.
pub(crate) fn activation_kind(spec: &ModelSpec) -> u32 {
    match spec.activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    }
}

/// Shapes of a model's products.
pub(crate) struct Shapes {
    pub(crate) qkv: GemmShape,
    pub(crate) output: GemmShape,
    pub(crate) head: GemmShape,
    hidden: u32,
    /// Into the residual stream, or into `branch` where a norm comes between.
    into_residual: GemmOut,
}

impl Shapes {
    pub(crate) fn of(spec: &ModelSpec) -> Self {
        let hidden = spec.hidden_size;
        let q_width = spec.num_attention_heads * spec.head_dim;
        let qkv_width = q_width + 2 * spec.num_kv_heads * spec.head_dim;
        let into_residual = if spec.post_norms { GemmOut::F32 } else { GemmOut::AddF32 };
        Self {
            qkv: GemmShape { n: qkv_width, k: hidden, out: GemmOut::Device },
            output: GemmShape { n: hidden, k: q_width, out: into_residual },
            head: GemmShape { n: spec.vocab_size, k: hidden, out: GemmOut::F32 },
            hidden,
            into_residual,
        }
    }

    pub(crate) fn gate_up(&self, intermediate_size: u32) -> GemmShape {
        GemmShape { n: 2 * intermediate_size, k: self.hidden, out: GemmOut::Device }
    }

    /// The same with the gate applied.
    pub(crate) fn gated(&self, intermediate_size: u32) -> GemmShape {
        GemmShape { out: GemmOut::Gated, ..self.gate_up(intermediate_size) }
    }

    pub(crate) fn down(&self, intermediate_size: u32) -> GemmShape {
        GemmShape { n: self.hidden, k: intermediate_size, out: self.into_residual }
    }

    pub(crate) fn router(&self, num_experts: u32) -> GemmShape {
        GemmShape { n: num_experts, k: self.hidden, out: GemmOut::F32 }
    }
}

impl Model {
    /// Sample rows that a step of `tokens` padded rows is padded to: coarse, so that few graphs serve all
    /// steps; the head over padding costs less than 2 % of a step.
    pub(crate) fn padded_samples(&self, tokens: u32, samples: u32) -> u32 {
        match samples {
            0 => 0,
            _ if tokens <= LIST_ROWS => tokens,
            1..=256 => samples.next_multiple_of(64),
            _ => samples.next_multiple_of(128),
        }
    }

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
        // SAFETY: addresses and sizes are those of `Buffers`, `Weights` and the KV pool, which were
        // laid out for at least `rows` rows; argument lists follow the contracts of the .cu files.
        unsafe {
            self.prepare(stream, shape)?;
            self.kernels.embedding_gather.launch(
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
                self.attention_part(stream, rows, index, layer)?;
                self.feed_forward_part(stream, rows, layer)?;
            }
        }
        Ok(())
    }

    unsafe fn prepare(&self, stream: &Stream, shape: StepShape) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let num_plans = self.windows.len() as u32;
        // SAFETY: as `layers`; the plan sizes are the ones that the buffer was laid out with.
        unsafe {
            self.kernels.step_prepare.launch(
                stream,
                Launch::linear(1 + num_plans, 1024),
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
                    u32::from(self.deterministic),
                ],
            )
        }
    }

    unsafe fn attention_part(
        &self,
        stream: &Stream,
        rows: u32,
        index: usize,
        layer: &LayerWeights,
    ) -> Result<(), CudaError> {
        let (buffers, spec) = (&self.buffers, &self.spec);
        let shapes = Shapes::of(spec);
        let layer_offset = index as u64 * self.kv.layer_stride;
        let heads = spec.num_attention_heads + 2 * spec.num_kv_heads;
        let window = spec.layers[index].window.unwrap_or(0);
        let plan = self.windows.iter().position(|&w| w == window).unwrap_or(0) as u64;
        let plan = buffers.plans + plan * u64::from(self.sizes.plan_words) * 4;
        let style = match spec.rope.style {
            RopeStyle::HalfSplit => 0u32,
            RopeStyle::Interleaved => 1,
        };
        // SAFETY: as `layers`.
        unsafe {
            self.norm(stream, rows, buffers.residual, 0, layer.input_norm, buffers.normed)?;
            let args = GemmArgs { x: buffers.normed, w: layer.qkv, out: buffers.qkv };
            self.gemms.run(stream, rows, shapes.qkv, args)?;
            self.kernels.rope_kv.launch(
                stream,
                Launch::plane(rows, heads.div_ceil(8), 256),
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
            self.kernels.attention.launch(
                stream,
                Launch::linear(self.attention.grid, 128).shared(self.attention.shared_bytes),
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
            let args = GemmArgs { x: buffers.attended, w: layer.output, out: self.branch() };
            self.gemms.run(stream, rows, shapes.output, args)?;
            self.join(stream, rows, layer.output_bias, layer.post_attention_norm)
        }
    }

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
            self.norm(stream, rows, buffers.residual, 0, layer.feed_forward_norm, buffers.normed)?;
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
        let launch = Launch::linear(rows, self.norm_block());
        // SAFETY: as `layers`; `branch` holds `rows` rows of the hidden size.
        unsafe {
            if bias != 0 {
                let args = args![&self.dims, branch, bias];
                self.kernels.bias_add_rows.launch(stream, launch, args)?;
            }
            if post_norm != 0 {
                let residual = self.buffers.residual;
                let args = args![&self.dims, branch, post_norm, residual, self.spec.norm.eps];
                self.kernels.rms_norm_add.launch(stream, launch, args)?;
            }
        }
        Ok(())
    }

    /// Norm of `rows` rows, chosen by `row_index` unless that is 0.
    pub(crate) unsafe fn norm(
        &self,
        stream: &Stream,
        rows: u32,
        x: u64,
        row_index: u64,
        weight: u64,
        out: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: as `layers`; the caller names buffers of at least `rows` rows.
        unsafe {
            self.kernels.rms_norm_rows.launch(
                stream,
                Launch::linear(rows, self.norm_block()),
                args![&self.dims, x, row_index, weight, out, self.spec.norm.eps],
            )
        }
    }

    fn norm_block(&self) -> u32 {
        if self.spec.hidden_size >= 4096 { 512 } else { 256 }
    }

    unsafe fn gate(
        &self,
        stream: &Stream,
        rows: u32,
        intermediate_size: u32,
        bias: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let kernel = self.kernels.act_mul.get(&intermediate_size).ok_or_else(|| {
            CudaError::Unsupported(format!("no gate kernel for {intermediate_size} rows"))
        })?;
        let dims = Dims { intermediate_size, ..self.dims };
        let activation = activation_kind(&self.spec);
        // SAFETY: as `layers`.
        unsafe {
            kernel.launch(
                stream,
                Launch::plane(rows, intermediate_size.div_ceil(2048), 256),
                args![&dims, buffers.gate_up, bias, buffers.gated, activation],
            )
        }
    }

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
        let missing = || CudaError::Unsupported(format!("no kernels for {experts} experts"));
        let moe = self.kernels.moe.get(&(experts, chosen)).ok_or_else(missing)?;
        let dims = Dims { num_experts: experts, experts_per_token: chosen, ..self.dims };
        let entries = rows * chosen;
        let product = |n: u32, k: u32, x: u64, w: u64, out: u64, gather: u32| {
            let kernel = self.kernels.moe_gemm.get(&(experts, chosen, n, k)).ok_or_else(missing)?;
            let dims = dims.gemm(n, k);
            let launch = Launch::plane(n.div_ceil(64), entries.div_ceil(64) + experts, 128);
            let (offsets, sorted) = (buffers.expert_offsets, buffers.expert_sorted);
            // SAFETY: as `layers`; x and out have `entries` rows of k and n columns.
            unsafe {
                kernel.launch(stream, launch, args![&dims, x, w, out, offsets, sorted, gather])
            }
        };
        let (hidden, inner) = (self.spec.hidden_size, spec.intermediate_size);
        // SAFETY: as `layers`.
        unsafe {
            moe.route.launch(
                stream,
                Launch::linear(rows.div_ceil(4), 128),
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
            moe.sort.launch(
                stream,
                Launch::linear(experts, 256),
                args![&dims, buffers.expert_ids, entries, offsets, sorted, buffers.expert_place],
            )?;
            product(2 * inner, hidden, buffers.normed, gate_up, buffers.gate_up, 1)?;
            self.gate(stream, entries, inner, 0)?;
            product(hidden, inner, buffers.gated, down, buffers.expert_out, 0)?;
            let residual = self.branch();
            moe.combine.launch(
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

    /// Queues final norm and head for the step's sample rows.
    ///
    /// # Safety
    /// As `step`, behind `layers`.
    pub(crate) unsafe fn sample_logits(
        &self,
        stream: &Stream,
        samples: u32,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promises.
        unsafe { self.logits(stream, samples, self.buffers.sample_rows) }
    }

    /// Queues final norm and head for the residual rows that `row_index` lists.
    ///
    /// # Safety
    /// As `step`, behind `layers`; `row_index` holds `rows` row numbers.
    pub(crate) unsafe fn logits(
        &self,
        stream: &Stream,
        rows: u32,
        row_index: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        // SAFETY: the caller's promises.
        unsafe {
            let norm = self.weights.final_norm;
            self.norm(stream, rows, buffers.residual, row_index, norm, buffers.sampled)?;
            let args =
                GemmArgs { x: buffers.sampled, w: self.weights.lm_head, out: buffers.logits };
            self.gemms.run(stream, rows, Shapes::of(&self.spec).head, args)?;
            if let (Some(kernel), Some(cap)) =
                (&self.kernels.softcap_rows, self.spec.final_logit_softcap)
            {
                let launch = Launch::plane(self.spec.vocab_size.div_ceil(SAMPLE_CHUNK), rows, 256);
                kernel.launch(stream, launch, args![&self.dims, buffers.logits, cap])?;
            }
        }
        Ok(())
    }

    /// Queues the sampler for the samples that `meta` lists, the first of which has its logits at
    /// `logits`.
    ///
    /// # Safety
    /// As `step`; the list and the logits have at most `samples` rows.
    pub(crate) unsafe fn sample(
        &self,
        stream: &Stream,
        samples: u32,
        meta: u64,
        logits: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let chunks = self.sizes.vocab_chunks;
        // SAFETY: the caller's promises; sizes as laid out in `Buffers`.
        unsafe {
            self.kernels.sample_scan.launch(
                stream,
                Launch::plane(chunks, samples, 256),
                args![
                    &self.dims,
                    logits,
                    buffers.work,
                    meta,
                    buffers.slots,
                    buffers.counts,
                    buffers.mask,
                    buffers.bias,
                    buffers.banned,
                    buffers.sample_partials,
                ],
            )?;
            self.kernels.sample_finish.launch(
                stream,
                Launch::linear(samples, 512),
                args![
                    &self.dims,
                    logits,
                    buffers.work,
                    meta,
                    buffers.slots,
                    buffers.counts,
                    buffers.sample_partials,
                    buffers.last_token,
                    buffers.out,
                ],
            )?;
            self.kernels.log_probs_samples.launch(
                stream,
                Launch::linear(samples, 512),
                args![&self.dims, logits, meta, buffers.slots, buffers.out],
            )
        }
    }

    /// Queues log-probs of the listed rows from `start` on: `rows` of them, with `top` alternatives.
    ///
    /// # Safety
    /// As `step`, behind `layers`; the lists hold `start + rows` entries, rows and targets in range.
    pub(crate) unsafe fn list_log_probs(
        &self,
        stream: &Stream,
        start: u64,
        rows: u32,
        top: u32,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        // SAFETY: the caller's promises.
        unsafe {
            self.logits(stream, rows, buffers.list_rows + start * 4)?;
            self.kernels.log_probs_rows.launch(
                stream,
                Launch::linear(rows, 512),
                args![
                    &self.dims,
                    buffers.logits,
                    buffers.list_targets + start * 4,
                    top,
                    buffers.list_out + start * OUT_BYTES,
                ],
            )
        }
    }

    /// Queues pooling of the step's rows that ask for it.
    ///
    /// # Safety
    /// As `step`, behind `layers`; the step has `tokens` padded token rows and `rows` rows.
    pub(crate) unsafe fn pool(
        &self,
        stream: &Stream,
        tokens: u32,
        rows: u32,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let (residual, scale) = (buffers.residual, buffers.pool_scale);
        // SAFETY: the caller's promises.
        unsafe {
            self.kernels.pool_scale.launch(
                stream,
                Launch::linear(tokens, 256),
                args![&self.dims, residual, scale, self.spec.norm.eps],
            )?;
            self.kernels.pool_rows.launch(
                stream,
                Launch::plane(rows, self.spec.hidden_size.div_ceil(256), 256),
                args![
                    &self.dims,
                    buffers.meta,
                    residual,
                    scale,
                    self.weights.final_norm,
                    buffers.pool_sums,
                    buffers.pooled,
                ],
            )
        }
    }
}
