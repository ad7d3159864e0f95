//! A loaded model on the device: addresses, kernels, products. The launches are in forward.rs and
//! head.rs; the engine thread queues them, the capture thread records them, and both only read
//! this.

use std::sync::Arc;

use ingle_core::KvGroups;
use ingle_model::{KvLayout, ModelSpec};

use crate::arena::Region;
use crate::attention_launch::AttentionLaunch;
use crate::buffers::{BufferSizes, Buffers};
use crate::context::Context;
use crate::contract::Dims;
use crate::dims::{Buckets, EngineDims};
use crate::dtypes::Dtypes;
use crate::exchange::RankPlace;
use crate::kernels::Kernels;
use crate::kv_pool::KvPool;
use crate::product::Products;
use crate::prompt_attention::PromptAttention;
use crate::shapes::Shapes;
use crate::state_pool::StatePool;
use crate::weight_memory::WeightMemory;
use crate::weights::Weights;

/// Everything that a forward pass uses, at addresses that never change.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) context: Arc<Context>,
    pub(crate) spec: ModelSpec,
    pub(crate) dtypes: Dtypes,
    pub(crate) dims: Dims,
    pub(crate) engine: EngineDims,
    pub(crate) attention: AttentionLaunch,
    /// Where prompts have a kernel of their own.
    pub(crate) prompt_attention: Option<PromptAttention>,
    pub(crate) sizes: BufferSizes,
    pub(crate) buckets: Buckets,
    pub(crate) buffers: Buffers,
    pub(crate) weights: Weights,
    pub(crate) kernels: Kernels,
    pub(crate) gemms: Products,
    /// Windows of the attention plans; 0 is none.
    pub(crate) windows: Vec<u32>,
    pub(crate) kv: KvPool,
    pub(crate) kv_layout: KvLayout,
    /// Where layers keep a state.
    pub(crate) states: Option<StatePool>,
    /// The layout as the core sees it.
    pub(crate) kv_groups: KvGroups,
    /// Attention splits no row, so that its sums do not depend on the batch.
    pub(crate) deterministic: bool,
    pub(crate) weight_memory: WeightMemory,
    /// Of the buffers: kept mapped as long as the addresses above are used.
    pub(crate) _state: Region,
    /// Of a rank of several.
    pub(crate) place: Option<RankPlace>,
}

impl Model {
    /// Shapes of the products.
    pub(crate) fn shapes(&self) -> Shapes {
        let head_rows = self.place.as_ref().map(RankPlace::head_rows);
        Shapes::of(&self.spec, self.dtypes.weight()).of_rank(head_rows)
    }

    /// Of this model.
    pub(crate) fn prompt_group(&self) -> Option<u32> {
        prompt_group(&self.spec, self.prompt_attention.is_some(), self.deterministic)
    }
}

/// Query heads a KV head where prompts go to a kernel of their own. Not with `deterministic`: a row's bits would depend
/// on the chunk that it comes in.
pub(crate) fn prompt_group(spec: &ModelSpec, has_kernel: bool, deterministic: bool) -> Option<u32> {
    (has_kernel && !deterministic).then(|| spec.num_attention_heads / spec.num_kv_heads)
}

/// Padded sizes of a step: what a graph is keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StepShape {
    /// Padded token rows.
    pub(crate) tokens: u32,
    /// Padded sample rows; 0 if the step samples nothing.
    pub(crate) samples: u32,
    /// Some row goes to prompt attention.
    pub(crate) has_prompts: bool,
}
