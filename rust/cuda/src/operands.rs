//! The buffers and weights on which products are measured: those that steps use. At load only.

use std::collections::HashMap;

use ingle_model::ModelSpec;

use crate::buffers::Buffers;
use crate::device_slice::{Act, DeviceSlice, Weight};
use crate::dtypes::WeightDtype;
use crate::gemm::GemmResult;
use crate::shapes::{GemmShape, Shapes};
use crate::weights::{FeedForwardWeights, Weights};

/// Buffers to measure a shape on.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    /// Weights of that shape, several where the model has them, so that the L2 cache does not help.
    pub(crate) weights: Vec<DeviceSlice<Weight>>,
    pub(crate) x: DeviceSlice<Act>,
    pub(crate) out: GemmResult,
}

/// Buffers and weights that each product is measured on: those that steps use.
pub(crate) fn operands_of(
    spec: &ModelSpec,
    weight: WeightDtype,
    weights: &Weights,
    buffers: &Buffers,
) -> HashMap<GemmShape, Operands> {
    let mut operands: HashMap<GemmShape, Operands> = HashMap::new();
    let mut add = |shape: GemmShape, weight, x, out| {
        let entry = operands.entry(shape);
        entry.or_insert_with(|| Operands { weights: Vec::new(), x, out }).weights.push(weight);
    };
    let act = GemmResult::Act;
    let f32 = GemmResult::F32;
    let branch = f32(if spec.post_norms { buffers.branch } else { buffers.residual });
    let shapes = Shapes::of(spec, weight);
    for layer in &weights.layers {
        add(shapes.qkv, layer.qkv, buffers.normed, act(buffers.qkv));
        add(shapes.output, layer.output, buffers.attended, branch);
        match layer.feed_forward {
            FeedForwardWeights::Dense { gate_up, down, intermediate_size, .. } => {
                let (plain, gated) =
                    (shapes.gate_up(intermediate_size), shapes.gated(intermediate_size));
                add(plain, gate_up, buffers.normed, act(buffers.gate_up));
                add(gated, gate_up, buffers.normed, act(buffers.gated));
                add(shapes.down(intermediate_size), down, buffers.gated, branch);
            }
            FeedForwardWeights::Moe { router, spec, .. } => {
                let shape = shapes.router(spec.num_experts);
                add(shape, router, buffers.normed, f32(buffers.router_logits));
            }
        }
    }
    add(shapes.head, weights.lm_head, buffers.sampled, f32(buffers.logits));
    operands
}
