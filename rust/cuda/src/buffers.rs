//! The device buffers of a step, apart from weights and KV. Laid out once, at load, from the
//! configuration; the largest padded row counts give the sizes.

use ingle_model::{DeltaNetSpec, FeedForwardSpec, KvLayout, LayerSpec, ModelSpec};

use crate::arena::LayoutBuilder;
use crate::attention_kinds::AttentionKinds;
use crate::contract::{
    Bias, BlockUpdate, MAX_BANNED, MAX_LOGIT_BIAS, OpenJob, PLAN_GRID_STEP, PROMPT_ROWS, PlanEntry,
    PlanHeader, PromptEntry, PromptHeader, QUERY_ROWS, SAMPLE_CHUNK, SampleOut, SamplePartial,
    Slot, StateSave, StepHeader, StepRow, StepSample, Words,
};
use crate::device_slice::{Act, DeviceSlice, Weight};
use crate::dims::{Buckets, EngineDims, LIST_ROWS};
use crate::gemm::WORKSPACE_BYTES;
use crate::rope::pairs_before;
use crate::shapes::qkv_rows;
use crate::state_pool::num_snapshots;

/// Slices; empty for what the model has no use for. Shapes are [rows, columns], T the largest padded token
/// count, S the largest padded sample count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    /// Step metadata, u32 words as `metadata.rs` packs them.
    pub(crate) meta: DeviceSlice<u32>,
    /// The same for the sampler of late rows.
    pub(crate) late_meta: DeviceSlice<u32>,
    /// `[num_slots]` u32
    pub(crate) last_token: DeviceSlice<u32>,
    /// `[num_groups, num_slots, max_blocks]` u32
    pub(crate) block_table: DeviceSlice<u32>,
    /// `[num_slots]` Slot
    pub(crate) slots: DeviceSlice<Slot>,
    /// `[num_slots, vocab_size]` u16
    pub(crate) counts: DeviceSlice<u16>,
    /// `[num_slots, ceil(vocab_size / 32)]` u32
    pub(crate) mask: DeviceSlice<u32>,
    /// `[num_slots, 1024]` {u32, f32}
    pub(crate) bias: DeviceSlice<Bias>,
    /// `[num_slots, 128]` u32
    pub(crate) banned: DeviceSlice<u32>,
    /// Ids for `sample_open`, u32, `open_ids_words` of them.
    pub(crate) open_ids: DeviceSlice<u32>,
    /// `[num_slots]` OpenJob, as words
    pub(crate) open_jobs: DeviceSlice<u32>,
    /// `[T]` u32 each
    pub(crate) token_ids: DeviceSlice<u32>,
    pub(crate) positions: DeviceSlice<u32>,
    pub(crate) slot_of_token: DeviceSlice<u32>,
    /// `[num_groups, T of the step]` u32
    pub(crate) kv_slot: DeviceSlice<u32>,
    /// `[S]` u32
    pub(crate) sample_rows: DeviceSlice<u32>,
    /// `[num_plans]` windows, or a `PlanKind` each
    pub(crate) plan_kinds: DeviceSlice<u32>,
    /// `[num_plans, plan_words]` u32
    pub(crate) plans: DeviceSlice<u32>,
    /// `[num_plans, prompt_words]` u32, where prompt attention runs
    pub(crate) prompt_plans: DeviceSlice<u32>,
    /// `[num_layers]` u32: the next item of prompt attention
    pub(crate) prompt_counters: DeviceSlice<u32>,
    /// Partial sums of attention, f32.
    pub(crate) partials: DeviceSlice<f32>,
    /// `[grid]` u32, zero between launches.
    pub(crate) counters: DeviceSlice<u32>,
    /// Of each rope of the model, `[max_model_len, pairs]` float2; see `rope_table`.
    pub(crate) rope_tables: DeviceSlice<[f32; 2]>,
    /// Of each rope, `[pairs]` f32
    pub(crate) inv_freq: DeviceSlice<f32>,
    /// `[T, hidden_size]` f32
    pub(crate) residual: DeviceSlice<f32>,
    /// `[T, hidden_size]` f32, models with post norms and those that are divided only
    pub(crate) branch: DeviceSlice<f32>,
    /// `[T, hidden_size]` device type
    pub(crate) normed: DeviceSlice<Act>,
    /// `[T, (num_heads + 2 * num_kv_heads) * head_dim]` device type, of the widest layer; with output gates `num_heads`
    /// more
    pub(crate) qkv: DeviceSlice<Act>,
    /// `[T, num_heads * head_dim]` device type
    pub(crate) q: DeviceSlice<Act>,
    /// `[T, num_heads * head_dim]` device type, or as wide as a gated delta net's values
    pub(crate) attended: DeviceSlice<Act>,
    /// Gated delta nets, as kernels/delta_net.cu has them: `[T, input_rows]` and `[T, channels]` device type,
    /// `[T, 2 * num_value_heads]` f32, `[T, num_value_heads]` float2, `[T, num_key_heads]` and
    /// `[T, value_width]` f32
    pub(crate) projected: DeviceSlice<Act>,
    pub(crate) mixed: DeviceSlice<Act>,
    pub(crate) delta_scores: DeviceSlice<f32>,
    pub(crate) delta_factors: DeviceSlice<[f32; 2]>,
    pub(crate) delta_dots: DeviceSlice<f32>,
    pub(crate) delta_read: DeviceSlice<f32>,
    /// `[T * experts_per_token, 2 * intermediate_size]` device type
    pub(crate) gate_up: DeviceSlice<Act>,
    /// `[T * experts_per_token, intermediate_size]` device type
    pub(crate) gated: DeviceSlice<Act>,
    /// Of models with e4m3 matrices: the normed rows, `[T, hidden_size]`, and what goes into the output and the down
    /// projection, `[T, max(num_heads * head_dim, intermediate_size)]`, with scales a row, `[T]` each.
    pub(crate) normed_e4m3: DeviceSlice<u8>,
    pub(crate) normed_scale: DeviceSlice<f32>,
    pub(crate) inner_e4m3: DeviceSlice<u8>,
    pub(crate) inner_scale: DeviceSlice<f32>,
    /// A raw product on its way into the residual stream, `[T, hidden_size]` device type.
    pub(crate) raw: DeviceSlice<Act>,
    /// Of models with 4-bit matrices: one of them, widened.
    pub(crate) widened: DeviceSlice<Weight>,
    /// `[S, hidden_size]` device type
    pub(crate) sampled: DeviceSlice<Act>,
    /// `[S, vocab_size]` f32
    pub(crate) logits: DeviceSlice<f32>,
    /// `[S, vocab_size]` f32
    pub(crate) work: DeviceSlice<f32>,
    /// `[S, chunks, 8]` u32
    pub(crate) sample_partials: DeviceSlice<SamplePartial>,
    /// `[S, 48]` u32
    pub(crate) out: DeviceSlice<SampleOut>,
    /// `[T to whole slices]` u32: rows and targets of prompt log-probs
    pub(crate) list_rows: DeviceSlice<u32>,
    pub(crate) list_targets: DeviceSlice<u32>,
    /// `[T to whole slices, 48]` u32
    pub(crate) list_out: DeviceSlice<SampleOut>,
    /// `[T]` f32
    pub(crate) pool_scale: DeviceSlice<f32>,
    /// `[num_slots, hidden_size]` f32
    pub(crate) pool_sums: DeviceSlice<f32>,
    /// `[max_rows, hidden_size]` f32
    pub(crate) pooled: DeviceSlice<f32>,
    /// Mixture of experts: `[T, num_experts]` f32, then per (token, choice).
    pub(crate) router_logits: DeviceSlice<f32>,
    pub(crate) expert_ids: DeviceSlice<u32>,
    pub(crate) expert_weights: DeviceSlice<f32>,
    pub(crate) expert_offsets: DeviceSlice<u32>,
    pub(crate) expert_sorted: DeviceSlice<u32>,
    pub(crate) expert_place: DeviceSlice<u32>,
    /// `[T * experts_per_token, hidden_size]` device type
    pub(crate) expert_out: DeviceSlice<Act>,
    /// Where experts have norms of their own: what router and experts see, `[T, hidden_size]` device type
    pub(crate) router_normed: DeviceSlice<Act>,
    pub(crate) expert_normed: DeviceSlice<Act>,
    /// What layers get of the tokens themselves, `[T, layers * size]` device type
    pub(crate) token_input: DeviceSlice<Act>,
    /// `WORKSPACE_BYTES`
    pub(crate) gemm_workspace: DeviceSlice<u8>,
}

/// What quantised matrices need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantisedNeeds {
    /// Whether a matrix is e4m3.
    pub(crate) e4m3: bool,
    /// Elements of the largest matrix that is widened for a product.
    pub(crate) widened_elements: u64,
}

/// Sizes that the layout is computed from, and others that follow from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferSizes {
    /// Largest padded token count.
    pub(crate) tokens: u64,
    /// Largest padded sample count.
    pub(crate) samples: u64,
    /// Words of a step's metadata.
    pub(crate) meta_words: u64,
    /// KV groups, each with a block table.
    pub(crate) num_groups: u32,
    /// Block-table updates of a step.
    pub(crate) max_updates: u32,
    /// Words of one attention plan.
    pub(crate) plan_words: u32,
    /// Entries of one attention plan.
    pub(crate) plan_entries: u32,
    /// Words of one plan of prompt attention.
    pub(crate) prompt_words: u32,
    /// The most ids that one step can pass to `sample_open`.
    pub(crate) open_ids_words: u64,
    /// Slices of the vocabulary that the sampler scans apart.
    pub(crate) vocab_chunks: u32,
}

impl BufferSizes {
    /// Sizes for a model under a configuration.
    pub(crate) fn new(spec: &ModelSpec, engine: &EngineDims, attention: &AttentionKinds) -> Self {
        let tokens = Buckets::of_steps(engine).largest();
        let samples = Buckets::of_head(engine).largest();
        let group = attention.most_group();
        let plan_entries = (tokens * group).div_ceil(QUERY_ROWS) + engine.max_rows;
        let plan_words = PlanHeader::COUNT as u32
            + attention.most_blocks().next_multiple_of(PLAN_GRID_STEP)
            + PlanEntry::COUNT as u32 * plan_entries;
        let num_groups = KvLayout::of(spec).num_groups() as u32;
        let max_updates = engine.max_tokens.div_ceil(engine.block_size) + 4 * engine.max_rows;
        let max_updates = num_groups * max_updates;
        let rows = u64::from(engine.max_rows);
        let prompt_entries = (tokens * group).div_ceil(PROMPT_ROWS) + engine.max_rows;
        Self {
            tokens: u64::from(tokens),
            samples: u64::from(samples),
            meta_words: StepHeader::COUNT as u64
                + (StepRow::COUNT + StepSample::COUNT) as u64 * rows
                + u64::from(engine.max_tokens)
                + StateSave::COUNT as u64 * u64::from(num_snapshots(spec, engine.max_rows))
                + BlockUpdate::COUNT as u64 * u64::from(max_updates),
            num_groups,
            max_updates,
            plan_words,
            plan_entries,
            prompt_words: (PromptHeader::COUNT as u32) + PromptEntry::COUNT as u32 * prompt_entries,
            open_ids_words: u64::from(engine.max_model_len) * 2 + 65536,
            vocab_chunks: spec.vocab_size.div_ceil(SAMPLE_CHUNK),
        }
    }

    /// Rows of prompt log-probs, padded to whole slices.
    pub(crate) fn list_rows(&self) -> u64 {
        self.tokens.next_multiple_of(u64::from(LIST_ROWS))
    }
}

impl Buffers {
    /// All buffers, taken from `layout`, and the bytes they take together.
    pub(crate) fn layout(
        mut layout: LayoutBuilder,
        spec: &ModelSpec,
        engine: &EngineDims,
        attention: &AttentionKinds,
        quantised: QuantisedNeeds,
    ) -> (Self, u64) {
        let sizes = BufferSizes::new(spec, engine, attention);
        let mut buffers = Self::default();
        buffers.lay_out_slots(spec, engine, &mut layout, &sizes);
        buffers.lay_out_step(spec, attention, &mut layout, &sizes);
        buffers.lay_out_forward(spec, engine, &mut layout, &sizes);
        if quantised.e4m3 {
            buffers.lay_out_e4m3(spec, &mut layout, &sizes);
        }
        buffers.widened = layout.take(quantised.widened_elements);
        buffers.lay_out_sampler(spec, engine, &mut layout, &sizes);
        buffers.gemm_workspace = layout.take(WORKSPACE_BYTES);
        (buffers, layout.bytes())
    }

    fn lay_out_slots(
        &mut self,
        spec: &ModelSpec,
        engine: &EngineDims,
        layout: &mut LayoutBuilder,
        sizes: &BufferSizes,
    ) {
        let slots = u64::from(engine.num_slots);
        let vocab = u64::from(spec.vocab_size);
        self.last_token = layout.take(slots);
        let tables = slots * u64::from(sizes.num_groups);
        self.block_table = layout.take(tables * u64::from(engine.max_blocks));
        self.slots = layout.take(slots);
        self.counts = layout.take(slots * vocab);
        self.mask = layout.take(slots * vocab.div_ceil(32));
        self.bias = layout.take(slots * u64::from(MAX_LOGIT_BIAS));
        self.banned = layout.take(slots * u64::from(MAX_BANNED));
        self.open_ids = layout.take(sizes.open_ids_words);
        self.open_jobs = layout.take(slots * OpenJob::COUNT as u64);
    }

    fn lay_out_step(
        &mut self,
        spec: &ModelSpec,
        attention: &AttentionKinds,
        layout: &mut LayoutBuilder,
        sizes: &BufferSizes,
    ) {
        self.meta = layout.take(sizes.meta_words);
        self.late_meta = layout.take(sizes.meta_words);
        for buffer in [&mut self.token_ids, &mut self.positions, &mut self.slot_of_token] {
            *buffer = layout.take(sizes.tokens);
        }
        self.kv_slot = layout.take(u64::from(sizes.num_groups) * sizes.tokens);
        self.list_rows = layout.take(sizes.list_rows());
        self.list_targets = layout.take(sizes.list_rows());
        self.sample_rows = layout.take(sizes.samples);
        let num_plans = u64::from(attention.len());
        self.plan_kinds = layout.take(attention.num_words());
        self.plans = layout.take(num_plans * u64::from(sizes.plan_words));
        self.prompt_plans = layout.take(num_plans * u64::from(sizes.prompt_words));
        self.prompt_counters = layout.take(spec.layers.len() as u64);
        self.partials = layout.take(attention.partial_floats());
        self.counters = layout.take(u64::from(attention.most_blocks()));
    }

    fn lay_out_forward(
        &mut self,
        spec: &ModelSpec,
        engine: &EngineDims,
        layout: &mut LayoutBuilder,
        sizes: &BufferSizes,
    ) {
        let tokens = sizes.tokens;
        let hidden = u64::from(spec.hidden_size);
        let q_width = u64::from(spec.num_attention_heads) * u64::from(spec.widest_head());
        let qkv_width = spec.layers.iter().map(|layer| qkv_rows(spec, layer)).max().unwrap_or(0);
        let angles = pairs_before(spec, spec.ropes.len());
        self.inv_freq = layout.take(angles);
        self.rope_tables = layout.take(u64::from(engine.max_model_len) * angles);
        self.residual = layout.take(tokens * hidden);
        if spec.post_norms || engine.ranks > 1 {
            self.branch = layout.take(tokens * hidden);
        }
        self.normed = layout.take(tokens * hidden);
        self.qkv = layout.take(tokens * u64::from(qkv_width));
        self.q = layout.take(tokens * q_width);
        let nets = spec.layers.iter().filter_map(|layer| layer.delta_net);
        let values = nets.clone().map(|net| u64::from(net.value_width())).max().unwrap_or(0);
        self.attended = layout.take(tokens * q_width.max(values));
        if let Some(net) = nets.max_by_key(DeltaNetSpec::channels) {
            // All nets of a model have the same sizes.
            self.lay_out_delta_net(&net, layout, tokens);
        }
        let mut gate_width = 0;
        let (mut experts, mut choices, mut own_norms) = (0, 0, false);
        for layer in &spec.layers {
            match layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size, .. } => {
                    gate_width = gate_width.max(u64::from(intermediate_size));
                }
                FeedForwardSpec::Moe(moe) => {
                    let chosen = u64::from(moe.experts_per_token);
                    gate_width = gate_width.max(u64::from(moe.shared_size.unwrap_or(0)));
                    gate_width = gate_width.max(u64::from(moe.intermediate_size) * chosen);
                    experts = experts.max(u64::from(moe.num_experts));
                    choices = choices.max(chosen);
                    own_norms |= moe.own_norms;
                }
            }
        }
        if let Some(input) = spec.token_input {
            gate_width = gate_width.max(u64::from(input.size));
            let all = u64::from(input.size) * spec.layers.len() as u64;
            self.token_input = layout.take(tokens * all);
        }
        self.gate_up = layout.take(tokens * 2 * gate_width);
        self.gated = layout.take(tokens * gate_width);
        if experts > 0 {
            self.router_logits = layout.take(tokens * experts);
            self.expert_ids = layout.take(tokens * choices);
            self.expert_weights = layout.take(tokens * choices);
            self.expert_offsets = layout.take(experts + 1);
            self.expert_sorted = layout.take(tokens * choices);
            self.expert_place = layout.take(tokens * choices);
            self.expert_out = layout.take(tokens * choices * hidden);
        }
        if own_norms {
            self.router_normed = layout.take(tokens * hidden);
            self.expert_normed = layout.take(tokens * hidden);
        }
    }

    fn lay_out_delta_net(&mut self, net: &DeltaNetSpec, layout: &mut LayoutBuilder, tokens: u64) {
        let (channels, values) = (u64::from(net.channels()), u64::from(net.value_width()));
        let heads = u64::from(net.num_value_heads);
        self.projected = layout.take(tokens * u64::from(net.input_rows()));
        self.mixed = layout.take(tokens * channels);
        self.delta_scores = layout.take(tokens * 2 * heads);
        self.delta_factors = layout.take(tokens * heads);
        self.delta_dots = layout.take(tokens * u64::from(net.num_key_heads));
        self.delta_read = layout.take(tokens * values);
    }

    fn lay_out_e4m3(&mut self, spec: &ModelSpec, layout: &mut LayoutBuilder, sizes: &BufferSizes) {
        let tokens = sizes.tokens;
        let hidden = u64::from(spec.hidden_size);
        let dense = |layer: &LayerSpec| match layer.feed_forward {
            FeedForwardSpec::Dense { intermediate_size, .. } => intermediate_size,
            FeedForwardSpec::Moe(_) => 0,
        };
        let widest = spec.layers.iter().map(dense).max().unwrap_or(0);
        let inner = u64::from(widest.max(spec.num_attention_heads * spec.widest_head()));
        self.normed_e4m3 = layout.take(tokens * hidden);
        self.normed_scale = layout.take(tokens);
        self.inner_e4m3 = layout.take(tokens * inner);
        self.inner_scale = layout.take(tokens);
        self.raw = layout.take(tokens * hidden);
    }

    fn lay_out_sampler(
        &mut self,
        spec: &ModelSpec,
        engine: &EngineDims,
        layout: &mut LayoutBuilder,
        sizes: &BufferSizes,
    ) {
        let hidden = u64::from(spec.hidden_size);
        let vocab = u64::from(spec.vocab_size);
        self.sampled = layout.take(sizes.samples * hidden);
        self.logits = layout.take(sizes.samples * vocab);
        self.work = layout.take(sizes.samples * vocab);
        self.sample_partials = layout.take(sizes.samples * u64::from(sizes.vocab_chunks));
        self.out = layout.take(sizes.samples);
        self.list_out = layout.take(sizes.list_rows());
        self.pool_scale = layout.take(sizes.tokens);
        self.pool_sums = layout.take(u64::from(engine.num_slots) * hidden);
        self.pooled = layout.take(u64::from(engine.max_rows) * hidden);
    }
}

/// Bytes the sampler writes for one row.
pub(crate) const OUT_BYTES: u64 = size_of::<SampleOut>() as u64;
