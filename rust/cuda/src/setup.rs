//! Decides sizes, launches and the division of memory before anything is loaded, and assembles the
//! model at the end. The loading thread; `start.rs` calls it in order.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, OnceLock};

use ingle_core::KvGroups;
use ingle_model::{
    Activation, CopyPlan, DeltaNetSpec, FeedForwardSpec, KvLayout, ModelSpec, RopeSpec, Timeline,
};

use crate::CudaError;
use crate::arena::{LayoutBuilder, Region};
use crate::attention_launch::AttentionLaunch;
use crate::budget::{BudgetInputs, MemoryBudget};
use crate::buffers::{BufferSizes, Buffers, QuantisedNeeds};
use crate::builds::{HEAD_DIMS, SINK_HEAD_DIM};
use crate::cache::{Cache, Lack};
use crate::compile::Compiler;
use crate::config::CudaConfig;
use crate::context::Context;
use crate::contract::{Dims, MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN, MAX_STEP_ROWS};
use crate::dims::{Buckets, EngineDims};
use crate::dtypes::{ActDtype, Dtypes, has_e4m3};
use crate::exchange::RankPlace;
use crate::kernels::Kernels;
use crate::kv_groups::kv_groups;
use crate::kv_pool::KvPool;
use crate::missing_parts::missing_part;
use crate::model::{Model, StepShape, prompt_group};
use crate::product::Products;
use crate::prompt_attention::{KvShape, PromptAttention, kv_maps};
use crate::prompt_launch::PromptLaunch;
use crate::rope::rotary_dim;
use crate::shapes::Shapes;
use crate::state_pool::{StateLayout, StatePool, state_bytes, state_slots};
use crate::step_shapes::step_shapes;
use crate::weight_layout::{Kept, WeightLayout};
use crate::weight_memory::{HostCopy, WeightMemory};

/// What is fixed before memory is taken.
pub(crate) struct Setup {
    pub(crate) context: Arc<Context>,
    pub(crate) spec: ModelSpec,
    pub(crate) config: CudaConfig,
    pub(crate) engine: EngineDims,
    pub(crate) attention: AttentionLaunch,
    prompt_attention: Option<PromptLaunch>,
    pub(crate) dtypes: Dtypes,
    windows: Vec<u32>,
    kv_layout: KvLayout,
    kv_groups: KvGroups,
    four_bit: FourBitChoice,
    /// Of a rank of several.
    place: Option<RankPlace>,
    /// Why the cache keeps nothing.
    cache_lack: Arc<Lack>,
}

/// The mapped regions and their layout.
pub(crate) struct Memory {
    pub(crate) budget: MemoryBudget,
    pub(crate) weight_layout: WeightLayout,
    pub(crate) buffers: Buffers,
    /// Shared with whoever must keep it mapped.
    pub(crate) weights: Arc<Mutex<Region>>,
    pub(crate) state: Region,
    pub(crate) kv: KvPool,
    states: Option<StatePool>,
}

impl Setup {
    /// Derives the sizes; `check_supported` has passed.
    ///
    /// # Errors
    /// Number formats that no kernel has together.
    pub(crate) fn new(
        spec: ModelSpec,
        config: &CudaConfig,
        context: &Arc<Context>,
        place: Option<RankPlace>,
    ) -> Result<Self, CudaError> {
        let info = &context.info;
        let engine = EngineDims {
            block_size: config.block_size,
            // One block more than the longest sequence, for the row that runs after its last token.
            max_blocks: config.max_model_len.div_ceil(config.block_size) + 1,
            // An ended request keeps its slot until the steps that name it are done.
            num_slots: match keeps_state(&spec) {
                true => state_slots(config.max_num_seqs),
                false => 2 * config.max_num_seqs,
            },
            max_rows: config.max_num_seqs,
            max_tokens: config.max_num_batched_tokens.max(config.max_num_seqs),
            max_model_len: config.max_model_len + 1,
            ranks: place.as_ref().map_or(1, |place| place.exchange.ranks),
        };
        let dtypes = Dtypes::of(config.dtype, spec.weight_type)?;
        let (limits, head_dim) = (&info.limits, spec.head_dim);
        let attention = AttentionLaunch::on(limits, head_dim, dtypes.kv());
        let prompt_attention = PromptLaunch::on(limits, head_dim, engine.block_size, dtypes.kv())
            .filter(|_| spec.attention.causal);
        let mut windows: Vec<u32> =
            spec.layers.iter().map(|layer| layer.window.unwrap_or(0)).collect();
        windows.sort_unstable();
        windows.dedup();
        let prompt_tile = prompt_attention.as_ref().map_or(0, |prompt| prompt.kv_tile);
        let kv_layout = KvLayout::of(&spec);
        let kv_groups = kv_groups(&kv_layout, attention.kv_tile.max(prompt_tile));
        // Only a file of blocks has such matrices; others need no compiler for them.
        let has_blocks = spec.weight_type.block_elements() > 1;
        let four_bit = if dtypes.act() != ActDtype::Bf16 {
            FourBitChoice::Impossible("products of 4-bit weights are in bf16")
        } else if has_blocks && Compiler::open(&config.libraries).is_err() {
            FourBitChoice::Impossible("their kernels are compiled by NVRTC, which is missing")
        } else {
            four_bit_choice(std::env::var_os("INGLE_CUDA_FOUR_BIT").as_deref())?
        };
        Ok(Self {
            context: Arc::clone(context),
            spec,
            config: config.clone(),
            engine,
            attention,
            prompt_attention,
            dtypes,
            windows,
            kv_layout,
            kv_groups,
            four_bit,
            place,
            cache_lack: Arc::new(OnceLock::new()),
        })
    }

    /// Ranks of the model's group.
    pub(crate) fn ranks(&self) -> u32 {
        self.engine.ranks
    }

    /// Shapes of the products.
    pub(crate) fn shapes(&self) -> Shapes {
        let head_rows = self.place.as_ref().map(RankPlace::head_rows);
        Shapes::of(&self.spec, self.dtypes.weight()).of_rank(head_rows)
    }

    /// The sizes that kernels know. Blocks until the tokenizer's is known.
    pub(crate) fn dims(&self) -> Result<Dims, CudaError> {
        let sample_vocab = self.config.sample_vocab_size.wait()?;
        Ok(Dims::of(&self.spec, &self.engine, sample_vocab))
    }

    /// Name and capability of the card.
    pub(crate) fn device_line(&self) -> String {
        let info = &self.context.info;
        let (major, minor) = info.limits.compute_capability;
        format!("{} (compute capability {major}.{minor}, {} SMs)", info.name, info.limits.num_sms)
    }

    /// What the operator should know, once everything is loaded.
    pub(crate) fn warnings(&self, layout: &WeightLayout) -> Vec<String> {
        let (major, minor) = self.context.info.limits.compute_capability;
        let mut warnings = Vec::new();
        if let Some(reason) = self.cache_lack.get() {
            warnings.push(format!(
                "kernels and measurements are not kept, so the next start takes as long: {reason}"
            ));
        }
        if (major, minor) != (9, 0) {
            warnings.push(format!("untested GPU: compute capability {major}.{minor}"));
        }
        let device = self.dtypes.weight().stored();
        let (fp8, widened) = layout.fp8_tensors();
        let (four_bit, four_bit_widened) = layout.four_bit_tensors();
        if four_bit_widened > 0 {
            let why = self.why_widened(layout.kept);
            warnings.push(format!(
                "{four_bit_widened} of {four_bit} 4-bit tensors run as {device:?}: {why}"
            ));
        } else if four_bit == 0 && fp8 == 0 && self.spec.weight_type != device {
            warnings
                .push(format!("weights stored as {:?} run as {device:?}", self.spec.weight_type));
        }
        if four_bit > four_bit_widened && self.four_bit == FourBitChoice::ByRoom {
            warnings.push(format!(
                "{} of {four_bit} 4-bit tensors stay so: as {device:?} they would take most of the GPU",
                four_bit - four_bit_widened
            ));
        }
        if widened > 0 {
            let why = if self.place.is_some() {
                OF_RANKS
            } else if has_e4m3((major, minor), self.dtypes) {
                "experts, gated delta nets, and matrices with more than one scale a row"
            } else {
                "this card, or this dtype, has no products of fp8 numbers"
            };
            warnings.push(format!("{widened} of {fp8} fp8 tensors run as {device:?}: {why}"));
        }
        warnings
    }

    /// Which quantised matrices stay so on a card of which `room_bytes` can be used.
    fn kept(&self, plan: &CopyPlan, room_bytes: u64) -> Result<Kept, CudaError> {
        let e4m3 = has_e4m3(self.context.info.limits.compute_capability, self.dtypes);
        let widened = Kept { e4m3, ..Kept::default() };
        if self.place.is_some() {
            return Ok(Kept::default());
        }
        // The library has one algorithm for all row counts, our own kernels have not; those of experts need none.
        let four_bit = !self.config.deterministic;
        let packed = Kept { e4m3, four_bit, four_bit_experts: true };
        match self.four_bit {
            FourBitChoice::Impossible(_) | FourBitChoice::Widened => Ok(widened),
            FourBitChoice::Packed => Ok(packed),
            FourBitChoice::ByRoom => {
                let layout =
                    WeightLayout::new(LayoutBuilder::measuring(), &self.spec, plan, widened)?;
                Ok(if layout.bytes > room_bytes / 4 * 3 { packed } else { widened })
            }
        }
    }

    /// Why 4-bit matrices do not stay so.
    fn why_widened(&self, kept: Kept) -> &'static str {
        match (self.four_bit, kept) {
            _ if self.place.is_some() => OF_RANKS,
            (FourBitChoice::Impossible(why), _) => why,
            (_, Kept { four_bit_experts: false, .. }) => "INGLE_CUDA_FOUR_BIT=packed keeps them",
            (_, Kept { four_bit: false, .. }) => {
                "with deterministic the library multiplies them, except those of experts"
            }
            _ => "their groups are narrower than 32 columns, or in another order than the columns",
        }
    }

    /// Computes the budget and takes the memory.
    pub(crate) fn map_memory(
        &self,
        plan: &CopyPlan,
        timeline: &Timeline,
    ) -> Result<Memory, CudaError> {
        let context = &self.context;
        let (free_bytes, total_bytes) = context.memory_info()?;
        let num_plans = self.windows.len() as u64;
        let measuring = LayoutBuilder::measuring();
        let usable_bytes = total_bytes as f64 * f64::from(self.config.gpu_memory_utilization);
        let kept = self.kept(plan, free_bytes.min(usable_bytes as u64))?;
        let lay_out = |layout| WeightLayout::new(layout, &self.spec, plan, kept);
        let measured = lay_out(measuring)?;
        let weight_bytes = measured.bytes;
        let quantised = QuantisedNeeds {
            e4m3: measured.weights.have_e4m3(),
            widened_elements: measured.weights.widened_elements(),
        };
        let buffer_bytes = Buffers::layout(
            measuring,
            &self.spec,
            &self.engine,
            &self.attention,
            num_plans,
            quantised,
        )
        .1;
        let layers_per_group = self.kv_layout.layers_per_group as u64;
        let block_stride = self.layer_bytes() * layers_per_group;
        let budget = MemoryBudget::new(&BudgetInputs {
            total_bytes,
            free_bytes,
            weight_bytes,
            buffer_bytes,
            state_bytes: state_bytes(&self.spec, self.engine.max_rows),
            utilization: self.config.gpu_memory_utilization,
            kv_cache_memory_bytes: self.config.kv_cache_memory_bytes,
            block_bytes: block_stride,
            block_size: self.engine.block_size,
            kv_groups: self.kv_groups,
            least_tokens: if self.config.must_hold_max_model_len {
                self.config.max_model_len
            } else {
                0
            },
        })?;
        timeline.time("memory mapped", || {
            let weights = Region::backed(context, weight_bytes)?;
            let state = Region::backed(context, buffer_bytes)?;
            // Addresses for the whole card's memory, so that the pool can grow in place.
            let kv_bytes = budget.kv_cache_bytes;
            let states = StateLayout::of(&self.spec, self.engine.max_rows);
            let states = states.map(|layout| StatePool::new(context, layout)).transpose()?;
            let kv = KvPool::new(context, kv_bytes, total_bytes, block_stride, layers_per_group)?;
            let layout = LayoutBuilder::over(&state);
            let (mut buffers, _) = Buffers::layout(
                layout,
                &self.spec,
                &self.engine,
                &self.attention,
                num_plans,
                quantised,
            );
            if let Some(place) = &self.place {
                buffers.logits = place.logits;
            }
            Ok(Memory {
                weight_layout: lay_out(LayoutBuilder::over(&weights))?,
                buffers,
                weights: Arc::new(Mutex::new(weights)),
                state,
                kv,
                states,
                budget,
            })
        })
    }

    /// Bytes of a layer's keys and values in a KV block.
    fn layer_bytes(&self) -> u64 {
        let head_bytes = u64::from(self.engine.block_size)
            * u64::from(self.spec.head_dim)
            * u64::from(self.dtypes.kv().bytes());
        2 * u64::from(self.spec.num_kv_heads) * head_bytes
    }

    /// The cache's folder of this name. `None` if nothing is kept, or if the folder cannot be made,
    /// which `warnings` then says.
    ///
    /// # Errors
    /// If other users can write to the folder: what is read from it is code.
    pub(crate) fn cache(&self, folder: &str) -> Result<Option<Cache>, CudaError> {
        let Some(path) = &self.config.cache_dir else { return Ok(None) };
        let lack = &self.cache_lack;
        let opened = Cache::open(path, lack).and_then(|_| Cache::open(&path.join(folder), lack));
        match opened {
            Ok(cache) => Ok(Some(cache)),
            Err(error @ CudaError::Io { .. }) => {
                let _ = lack.set(error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The shapes of steps whose graphs are recorded at start, as `graph_shapes` has them.
    pub(crate) fn step_shapes(&self) -> Vec<StepShape> {
        let (has_prompts, deterministic) =
            (self.prompt_attention.is_some(), self.config.deterministic);
        let group = prompt_group(&self.spec, has_prompts, deterministic);
        step_shapes(self.buckets().sizes(), self.engine.max_rows, group)
    }

    /// Padded row counts.
    pub(crate) fn buckets(&self) -> Buckets {
        Buckets::of_steps(&self.engine)
    }

    /// Everything that a forward pass uses.
    pub(crate) fn model(
        &self,
        memory: Memory,
        kernels: Kernels,
        gemms: Products,
        copy: Option<HostCopy>,
    ) -> Result<Model, CudaError> {
        let prompt_attention = match self.prompt_attention {
            Some(launch) => {
                let shape = KvShape {
                    head_dim: self.spec.head_dim,
                    block_size: self.engine.block_size,
                    num_kv_heads: self.spec.num_kv_heads,
                    layers_per_group: self.kv_layout.layers_per_group,
                    dtype: self.dtypes.kv(),
                };
                let kv_maps = kv_maps(&self.context, &memory.kv, &launch, &shape)?;
                Some(PromptAttention { launch, kv_maps })
            }
            None => None,
        };
        Ok(Model {
            context: Arc::clone(&self.context),
            spec: self.spec.clone(),
            dtypes: self.dtypes,
            dims: self.dims()?,
            engine: self.engine,
            attention: self.attention,
            prompt_attention,
            sizes: BufferSizes::new(&self.spec, &self.engine, &self.attention),
            buckets: self.buckets(),
            buffers: memory.buffers,
            weights: memory.weight_layout.weights,
            kernels,
            gemms,
            windows: self.windows.clone(),
            kv: memory.kv,
            kv_layout: self.kv_layout.clone(),
            states: memory.states,
            kv_groups: self.kv_groups,
            deterministic: self.config.deterministic,
            weight_memory: WeightMemory::new(memory.weights, copy),
            _state: memory.state,
            place: self.place.clone(),
        })
    }
}

/// Why a rank widens quantised matrices.
const OF_RANKS: &str = "the products of a model that is divided among ranks are in that type";

/// Whether 4-bit matrices stay so where there are kernels for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FourBitChoice {
    /// There are none, for this reason.
    Impossible(&'static str),
    Widened,
    Packed,
    /// Only if all weights would else take more than three quarters of what the process may use: steps of many rows are
    /// faster with widened ones.
    ByRoom,
}

/// By the variable `INGLE_CUDA_FOUR_BIT` of the environment.
fn four_bit_choice(wish: Option<&OsStr>) -> Result<FourBitChoice, CudaError> {
    match wish.map(OsStr::to_str) {
        None | Some(Some("auto")) => Ok(FourBitChoice::ByRoom),
        Some(Some("widened")) => Ok(FourBitChoice::Widened),
        Some(Some("packed")) => Ok(FourBitChoice::Packed),
        Some(other) => Err(CudaError::Unsupported(format!(
            "INGLE_CUDA_FOUR_BIT: must be auto, packed or widened, not {:?}",
            other.unwrap_or("what is no text")
        ))),
    }
}

/// Whether layers keep a state.
fn keeps_state(spec: &ModelSpec) -> bool {
    spec.layers.iter().any(|layer| layer.delta_net.is_some())
}

/// Refuses nets that delta_net.cu cannot be built for.
fn check_net(net: &DeltaNetSpec) -> Result<(), CudaError> {
    let widths = [("linear_key_head_dim", net.key_dim), ("linear_value_head_dim", net.value_dim)];
    match widths.iter().find(|(_, width)| !NET_HEAD_DIMS.contains(width)) {
        Some((name, width)) => Err(CudaError::Unsupported(format!(
            "{name} {width}: want 32, 64, 128 or 256 (the cpu device takes others)"
        ))),
        None => Ok(()),
    }
}

/// Widths of heads of gated delta nets.
const NET_HEAD_DIMS: [u32; 4] = [32, 64, 128, 256];

/// Refuses what the kernels cannot do, before anything is opened.
pub(crate) fn check_supported(spec: &ModelSpec, config: &CudaConfig) -> Result<(), CudaError> {
    let refuse = |text: String| Err(CudaError::Unsupported(text));
    if let Some(part) = missing_part(spec) {
        return refuse(format!("{part} have no kernels"));
    }
    spec.layers.iter().filter_map(|layer| layer.delta_net.as_ref()).try_for_each(check_net)?;
    if !HEAD_DIMS.contains(&spec.head_dim) {
        return refuse(format!("head_dim {}: want 16, 32, 64, 96, 128 or 256", spec.head_dim));
    }
    if spec.attention.sinks && spec.head_dim != SINK_HEAD_DIM {
        return refuse(format!("head_dim {} with sinks: want {SINK_HEAD_DIM}", spec.head_dim));
    }
    let rotary_dim = rotary_dim(spec);
    if !spec.hidden_size.is_multiple_of(8) || !rotary_dim.is_multiple_of(4) {
        return refuse(format!(
            "hidden_size {} and rotary_dim {rotary_dim}: want multiples of 8 and 4",
            spec.hidden_size
        ));
    }
    let is_alike =
        |rope: &RopeSpec| (rope.rotary_dim, rope.style) == (rotary_dim, spec.ropes[0].style);
    if !spec.ropes.iter().all(is_alike) {
        return refuse("layers that rotate different parts of a head".to_owned());
    }
    let is_clamped = matches!(spec.activation, Activation::ClampedSwiglu { .. });
    for layer in &spec.layers {
        let width = match layer.feed_forward {
            FeedForwardSpec::Dense { .. } if is_clamped => {
                return refuse("a clamped gate outside experts".to_owned());
            }
            FeedForwardSpec::Dense { intermediate_size, .. } => intermediate_size,
            FeedForwardSpec::Moe(moe) => {
                if moe.num_experts > MAX_EXPERTS
                    || moe.experts_per_token > MAX_EXPERTS_PER_TOKEN
                    || spec.post_norms
                {
                    return refuse(format!(
                        "{} experts, {} a token, post norms {}: at most {MAX_EXPERTS}, \
                         {MAX_EXPERTS_PER_TOKEN}, none",
                        moe.num_experts, moe.experts_per_token, spec.post_norms
                    ));
                }
                let shared = moe.shared_size.filter(|size| is_clamped || !size.is_multiple_of(8));
                if let Some(size) = shared {
                    return refuse(format!(
                        "shared experts {size} wide, clamped gate {is_clamped}: want a multiple of 8, none"
                    ));
                }
                moe.intermediate_size
            }
        };
        if !width.is_multiple_of(8) {
            return refuse(format!("intermediate_size {width}: want a multiple of 8"));
        }
    }
    let block = config.block_size;
    if !block.is_power_of_two() || !(4..=256).contains(&block) {
        return refuse(format!("block_size {block}: want a power of two from 4 to 256"));
    }
    if !(1..=MAX_STEP_ROWS).contains(&config.max_num_seqs) {
        let rows = config.max_num_seqs;
        return refuse(format!("max_num_seqs {rows}: want 1 to {MAX_STEP_ROWS}"));
    }
    if !(1..=65536).contains(&config.max_num_batched_tokens) {
        let tokens = config.max_num_batched_tokens;
        return refuse(format!("max_num_batched_tokens {tokens}: want 1 to 65536"));
    }
    if !(1..=1 << 22).contains(&config.max_model_len) {
        return refuse(format!("max_model_len {}: want 1 to 4194304", config.max_model_len));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_whether_four_bit_weights_stay_so() {
        let choice = |wish: &str| four_bit_choice(Some(OsStr::new(wish)));
        assert_eq!(four_bit_choice(None).unwrap(), FourBitChoice::ByRoom);
        assert_eq!(choice("auto").unwrap(), FourBitChoice::ByRoom);
        assert_eq!(choice("widened").unwrap(), FourBitChoice::Widened);
        assert_eq!(choice("packed").unwrap(), FourBitChoice::Packed);
        let refused = choice("yes").unwrap_err().to_string();
        let want = "INGLE_CUDA_FOUR_BIT: must be auto, packed or widened, not \"yes\"";
        assert_eq!(refused, want);
    }
}
