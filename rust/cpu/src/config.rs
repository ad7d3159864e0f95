//! The sizes of the CPU executor, fixed at load. Plain data, any thread.

use ingle_core::{ExecutorShape, KvGroups, Micros};
use ingle_model::{ExpertCut, KvLayout, ModelSpec, Partition};

use crate::CpuError;
use crate::kv_cache::place_len;

/// Which vector instructions to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuPath {
    /// The widest that the processor has.
    #[default]
    Auto,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// No vector instructions beyond the target's own.
    Portable,
}

/// How activations meet weights in matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuPrecision {
    /// In f32.
    #[default]
    Exact,
    /// Rounded to bf16 for bf16 weights, to 8 bits by 32 for block formats; in f32 for all others.
    Fast,
}

/// Sizes of the CPU executor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuConfig {
    /// Tokens of a KV block; 16 is the fastest, any size gives the same bits.
    pub block_size: u32,
    /// KV blocks in the pool; `kv_bytes_per_block` is the size of one.
    pub num_blocks: u32,
    /// Slots, at least `max_num_seqs`.
    pub num_slots: u32,
    /// Copies of states, for models whose layers keep one; without any, prefixes are not shared.
    pub num_snapshots: u32,
    /// Most rows of one step.
    pub max_num_seqs: u32,
    /// Most token rows of one step.
    pub max_num_batched_tokens: u32,
    /// Longest sequence that will be served.
    pub max_model_len: u32,
    /// Steps submitted and not completed, 1 or 2. One step ahead costs a row's work at each
    /// request's end and gains little where the host shares its cores with the arithmetic.
    pub max_steps_in_flight: u32,
    /// Ranks among which the model is divided; all are computed here, one after the other.
    pub tensor_parallel_size: u32,
    /// Each rank has some experts whole, not a part of each.
    pub expert_parallel: bool,
    /// Threads that compute; 0 is one per physical core that this process may use.
    pub threads: u32,
    /// The number that the first thread has in its name; the others follow. For several executors in
    /// one process.
    pub first_thread: u32,
    /// Vector instructions.
    pub path: CpuPath,
    /// Rounding of activations; `Fast` needs AVX-512 with BF16 and VNNI.
    pub precision: CpuPrecision,
    /// Weights may be given back and read again: the checkpoint's files stay open.
    pub can_sleep: bool,
    /// No weights are read and no KV blocks allocated before the first `wake`. Needs `can_sleep`.
    pub starts_asleep: bool,
    /// Ids at and above this are never sampled (the tokenizer does not know them); 0 is all.
    pub num_valid_tokens: u32,
}

impl Default for CpuConfig {
    /// Sizes for a small machine; callers set what they know.
    fn default() -> Self {
        Self {
            block_size: 16,
            num_blocks: 512,
            num_slots: 64,
            num_snapshots: 0,
            max_num_seqs: 32,
            max_num_batched_tokens: 512,
            max_model_len: 2048,
            max_steps_in_flight: 1,
            tensor_parallel_size: 1,
            expert_parallel: false,
            threads: 0,
            first_thread: 0,
            path: CpuPath::Auto,
            precision: CpuPrecision::Exact,
            can_sleep: false,
            starts_asleep: false,
            num_valid_tokens: 0,
        }
    }
}

impl CpuConfig {
    pub(crate) fn check(&self) -> Result<(), CpuError> {
        let at_least_one = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("max_steps_in_flight", self.max_steps_in_flight),
            ("tensor_parallel_size", self.tensor_parallel_size),
        ];
        for (setting, value) in at_least_one {
            if value == 0 {
                return Err(CpuError::Setting { setting, value: 0, must: "at least 1" });
            }
        }
        if self.num_slots < self.max_num_seqs {
            return Err(CpuError::Setting {
                setting: "num_slots",
                value: u64::from(self.num_slots),
                must: "at least max_num_seqs",
            });
        }
        Ok(())
    }

    /// How a model is divided among ranks.
    ///
    /// # Errors
    /// A model that cannot be divided so.
    pub fn partition(&self, spec: &ModelSpec) -> Result<Partition, CpuError> {
        let experts = if self.expert_parallel { ExpertCut::Whole } else { ExpertCut::Inner };
        Ok(Partition::new(spec, self.tensor_parallel_size.max(1), experts)?)
    }

    pub(crate) fn shape(&self, spec: &ModelSpec) -> ExecutorShape {
        ExecutorShape {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            kv_groups: kv_groups(spec),
            keeps_state: spec.layers.iter().any(|layer| layer.delta_net.is_some()),
            num_snapshots: self.num_snapshots,
            num_slots: self.num_slots,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_steps_in_flight: self.max_steps_in_flight,
            row_tile: 1,
            // There are no tiles, so every row costs time.
            tenant_rows: 32,
            steady_rows: u32::MAX,
            busy_rows: u32::MAX,
            pause: Micros(0),
            vocab_size: spec.vocab_size,
        }
    }
}

/// The groups of layers that keep the same part of a sequence.
#[must_use]
pub fn kv_groups(spec: &ModelSpec) -> KvGroups {
    // A window of one token would hold nothing between two steps.
    let windows = KvLayout::of(spec).windows.into_iter().map(|window| window.map(|w| w.max(2)));
    let groups = KvGroups::new(&windows.collect::<Vec<_>>());
    if spec.attention.chunks { groups.in_chunks() } else { groups }
}

/// Bytes that the layers keep of each slot's sequence, whatever its length.
#[must_use]
pub fn state_bytes_per_slot(spec: &ModelSpec) -> u64 {
    spec.layers.iter().filter_map(|layer| layer.delta_net).map(|net| 4 * net.state_len()).sum()
}

/// Bytes of one KV block of `block_size` tokens, all layers of a group: keys and values in f32, unless the model's
/// `kv_format` says otherwise.
#[must_use]
pub fn kv_bytes_per_block(spec: &ModelSpec, block_size: u32) -> u64 {
    let layout = KvLayout::of(spec);
    let len = place_len(spec, &layout, block_size) * layout.layers_per_group;
    spec.kv_format.bytes(size_of::<f32>() as u64) * len as u64
}
