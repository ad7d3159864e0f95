//! The buffers and weights on which products are measured: those that steps use. At load only.

use std::collections::HashMap;

use ingle_model::ModelSpec;

use crate::buffers::Buffers;
use crate::device_slice::{Act, DeviceSlice};
use crate::gemm::{GemmInput, GemmResult};
use crate::matrix::Matrix;
use crate::shapes::{GemmOut, GemmShape, Shapes};
use crate::weights::{FeedForwardWeights, Mixer, Weights};

/// Buffers to measure a shape on.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    /// Weights of that shape, several where the model has them, so that the L2 cache does not help.
    pub(crate) weights: Vec<Matrix>,
    pub(crate) x: GemmInput,
    pub(crate) out: GemmResult,
}

/// Buffers and weights that each product is measured on: those that steps use.
pub(crate) fn operands_of(
    spec: &ModelSpec,
    shapes: &Shapes,
    weights: &Weights,
    buffers: &Buffers,
) -> HashMap<GemmShape, Operands> {
    let mut operands: HashMap<GemmShape, Operands> = HashMap::new();
    // The last two: where a raw product's input and result lie.
    let mut add = |plain: GemmShape, weight: Matrix, (x, out), (raw_x, raw_out)| {
        let mut put = |shape, x, out| {
            let entry = operands.entry(shape);
            entry.or_insert_with(|| Operands { weights: Vec::new(), x, out }).weights.push(weight);
        };
        put(weight.shape(plain), GemmInput::Act(x), out);
        if let Some(raw) = weight.raw_shape(plain) {
            put(raw, GemmInput::E4m3(raw_x), GemmResult::Act(raw_out));
        }
    };
    let (act, f32) = (GemmResult::Act, GemmResult::F32);
    let adds = shapes.into_residual == GemmOut::AddF32;
    let branch = f32(if adds { buffers.residual } else { buffers.branch });
    let (normed, inner, raw) = (buffers.normed_e4m3, buffers.inner_e4m3, buffers.raw);
    for (layer, of_spec) in weights.layers.iter().zip(&spec.layers) {
        match (&layer.mixer, &of_spec.delta_net) {
            (Mixer::DeltaNet(net), Some(sizes)) => {
                let wide = (buffers.normed, act(buffers.projected));
                add(
                    shapes.delta_input(sizes, net.scores.is_some()),
                    net.input,
                    wide,
                    (normed, raw),
                );
                if let Some(scores) = net.scores {
                    let few = (buffers.normed, f32(buffers.delta_scores));
                    add(shapes.delta_scores(sizes), Matrix::Plain(scores), few, (normed, raw));
                }
                let back = (buffers.attended, branch);
                add(shapes.delta_output(sizes), net.output, back, (inner, raw));
            }
            (mixer, _) => {
                let [qkv, output] = mixer.matrices();
                let into = (buffers.normed, act(buffers.qkv));
                add(shapes.qkv(spec, of_spec), qkv, into, (normed, buffers.qkv));
                let back = shapes.output(spec, of_spec);
                add(back, output, (buffers.attended, branch), (inner, raw));
            }
        }
        match layer.feed_forward {
            FeedForwardWeights::Dense { gate_up, down, intermediate_size, .. } => {
                let (plain, gated) =
                    (shapes.gate_up(intermediate_size), shapes.gated(intermediate_size));
                let raw_gate = (normed, buffers.gate_up);
                add(plain, gate_up, (buffers.normed, act(buffers.gate_up)), raw_gate);
                add(gated, gate_up, (buffers.normed, act(buffers.gated)), raw_gate);
                let down_shape = shapes.down(intermediate_size);
                add(down_shape, down, (buffers.gated, branch), (inner, raw));
            }
            FeedForwardWeights::Moe(ref experts) => {
                let shape = shapes.router(experts.spec.num_experts);
                let (router, out) = (Matrix::Plain(experts.router), f32(buffers.router_logits));
                add(shape, router, (buffers.normed, out), (normed, raw));
                let Some(shared) = experts.shared else { continue };
                let (gate_up, down, size) = (shared.gate_up, shared.down, shared.intermediate_size);
                let wide = (buffers.normed, act(buffers.gate_up));
                add(shapes.gate_up(size), gate_up, wide, (normed, raw));
                let gated = (buffers.normed, act(buffers.gated));
                add(shapes.gated(size), gate_up, gated, (normed, raw));
                add(shapes.down(size), down, (buffers.gated, branch), (inner, raw));
            }
        }
    }
    for (shape, weight, places) in token_operands(shapes, weights, buffers, branch) {
        add(shape, weight, places, (normed, raw));
    }
    let (head, out) = (Matrix::Plain(weights.lm_head), f32(buffers.logits));
    add(shapes.head, head, (buffers.sampled, out), (normed, raw));
    operands
}

/// Those of what layers get of the token itself.
fn token_operands(
    shapes: &Shapes,
    weights: &Weights,
    buffers: &Buffers,
    branch: GemmResult,
) -> Vec<(GemmShape, Matrix, (DeviceSlice<Act>, GemmResult))> {
    let Some(input) = weights.token_input else { return Vec::new() };
    let shape = shapes.token_projection(input.num_layers * input.size);
    let into = (buffers.normed, GemmResult::Act(buffers.token_input));
    let mut operands = vec![(shape, Matrix::Plain(input.projection), into)];
    for token in weights.layers.iter().filter_map(|layer| layer.token_gate) {
        let gate = (buffers.normed, GemmResult::Act(buffers.gate_up));
        operands.push((shapes.token_gate(token.size), Matrix::Plain(token.gate), gate));
        let back = (buffers.gated, branch);
        operands.push((shapes.down(token.size), Matrix::Plain(token.output), back));
    }
    operands
}
