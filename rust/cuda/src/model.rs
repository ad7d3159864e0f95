//! A loaded model on the device: addresses, kernels, products. The launches are in forward.rs and
//! head.rs; the engine thread queues them, the capture thread records them, and both only read
//! this.

use std::sync::Arc;

use ingle_core::KvGroups;
use ingle_model::{KvLayout, ModelSpec};

use crate::arena::Region;
use crate::attention_kinds::AttentionKinds;
use crate::buffers::{BufferSizes, Buffers};
use crate::context::Context;
use crate::contract::Dims;
use crate::dims::{Buckets, EngineDims};
use crate::dtypes::Dtypes;
use crate::exchange::RankPlace;
use crate::kernels::Kernels;
use crate::kv_pool::KvPool;
use crate::product::Products;
use crate::shapes::Shapes;
use crate::state_pool::StatePool;
use crate::sys::driver::TensorMap;
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
    pub(crate) attention: AttentionKinds,
    /// Each layer's view of the KV pool, where prompts have a kernel of their own.
    pub(crate) kv_maps: Vec<Option<TensorMap>>,
    /// Query heads a KV head where prompts go to that kernel.
    pub(crate) prompt_group: Option<u32>,
    pub(crate) sizes: BufferSizes,
    pub(crate) buckets: Buckets,
    pub(crate) buffers: Buffers,
    pub(crate) weights: Weights,
    pub(crate) kernels: Kernels,
    pub(crate) gemms: Products,
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
