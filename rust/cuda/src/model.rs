//! A loaded model on the device: addresses, kernels, products. The launches are in forward.rs and head.rs;
//! the engine thread queues them, the capture thread records them, both only read this.

use std::sync::Arc;

use ingle_model::{Activation, FeedForwardSpec, ModelSpec};

use crate::arena::Region;
use crate::buffers::{BufferSizes, Buffers};
use crate::context::Context;
use crate::dims::{Buckets, Dims, EngineDims};
use crate::gemm::{GemmOut, GemmShape};
use crate::kernels::{AttentionLaunch, Kernels};
use crate::kv_pool::KvPool;
use crate::product::Products;
use crate::prompt_attention::PromptAttention;
use crate::weights::Weights;

/// Everything that a forward pass uses, at addresses that never change.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) context: Arc<Context>,
    pub(crate) spec: ModelSpec,
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
    /// Attention splits no row, so that its sums do not depend on the batch.
    pub(crate) deterministic: bool,
    /// Weights, then buffers: kept mapped as long as the addresses above are used.
    pub(crate) _regions: Vec<Region>,
}

impl Model {
    /// Query heads a KV head where prompts go to a kernel of their own. Not with `deterministic`: a row's
    /// bits would depend on the chunk that it comes in.
    pub(crate) fn prompt_group(&self) -> Option<u32> {
        let is_used = self.prompt_attention.is_some() && !self.deterministic;
        is_used.then(|| self.spec.num_attention_heads / self.spec.num_kv_heads)
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

/// The products of the layers with the row counts of tokens, and the head's with those of samples.
pub(crate) fn gemm_shapes(spec: &ModelSpec) -> (Vec<GemmShape>, GemmShape) {
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
