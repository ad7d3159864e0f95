//! Decides sizes, launches and the division of memory before anything is loaded, and assembles the
//! model at the end. The loading thread; `start.rs` calls it in order.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, OnceLock};

use ingle_core::KvGroups;
use ingle_model::{CopyPlan, KvLayout, ModelSpec, Timeline};

use crate::CudaError;
use crate::arena::{LayoutBuilder, Region};
use crate::attention_kinds::AttentionKinds;
use crate::budget::{BudgetInputs, MemoryBudget};
use crate::buffers::{BufferSizes, Buffers, QuantisedNeeds};
use crate::cache::{Cache, Lack};
use crate::compile::Compiler;
use crate::config::CudaConfig;
use crate::context::Context;
use crate::contract::Dims;
use crate::dims::{Buckets, EngineDims};
use crate::dtypes::{ActDtype, Dtypes, has_e4m3};
use crate::exchange::RankPlace;
use crate::kernels::Kernels;
use crate::kv_groups::kv_groups;
use crate::kv_pool::KvPool;
use crate::model::{Model, StepShape};
use crate::product::Products;
use crate::prompt_attention::kv_maps;
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
    pub(crate) attention: AttentionKinds,
    pub(crate) dtypes: Dtypes,
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
        let limits = &info.limits;
        let attention = AttentionKinds::of(&spec, limits, engine.block_size, dtypes.kv());
        if let Some(kind) = attention.too_wide(limits) {
            return Err(CudaError::Unsupported(format!(
                "head_dim {} takes {} KiB of shared memory a block, the card has {}",
                kind.heads.head_dim,
                kind.launch.shared_bytes.div_ceil(1 << 10),
                limits.shared_bytes_per_block >> 10
            )));
        }
        let kv_layout = KvLayout::of(&spec);
        let kv_groups = kv_groups(&kv_layout, attention.widest_tile(), attention.are_chunks());
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
            dtypes,
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
        let buffer_bytes =
            Buffers::layout(measuring, &self.spec, &self.engine, &self.attention, quantised).1;
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
            let (mut buffers, _) =
                Buffers::layout(layout, &self.spec, &self.engine, &self.attention, quantised);
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

    /// Bytes of keys and values in one place of a KV block.
    fn layer_bytes(&self) -> u64 {
        let width_bytes =
            u64::from(self.kv_layout.unit_width) * u64::from(self.dtypes.kv().bytes());
        2 * u64::from(self.engine.block_size) * width_bytes
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
        step_shapes(self.buckets().sizes(), self.engine.max_rows, self.prompt_group())
    }

    /// Query heads a KV head where prompts go to a kernel of their own. Not with `deterministic`: a row's bits would
    /// depend on the chunk that it comes in.
    fn prompt_group(&self) -> Option<u32> {
        self.attention.prompt_group().filter(|_| !self.config.deterministic)
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
        let dtype = self.dtypes.kv();
        let kv_maps = kv_maps(
            &self.context,
            &memory.kv,
            (&self.attention, &self.kv_layout),
            &self.engine,
            dtype,
        )?;
        Ok(Model {
            context: Arc::clone(&self.context),
            spec: self.spec.clone(),
            dtypes: self.dtypes,
            dims: self.dims()?,
            engine: self.engine,
            attention: self.attention.clone(),
            kv_maps,
            prompt_group: self.prompt_group(),
            sizes: BufferSizes::new(&self.spec, &self.engine, &self.attention),
            buckets: self.buckets(),
            buffers: memory.buffers,
            weights: memory.weight_layout.weights,
            kernels,
            gemms,
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
