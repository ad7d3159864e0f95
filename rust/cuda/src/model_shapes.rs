//! Which products a model has, as its weights are stored. Plain data.

use ingle_model::{ModelSpec, MoeSpec};

use crate::matrix::Matrix;
use crate::shapes::{FourBitShape, GemmOut, GemmShape, Shapes};
use crate::weights::{FeedForwardWeights, Mixer, Weights};

/// The products of the layers with the row counts of tokens, and the head's with those of samples. Of an e4m3 matrix
/// both: that for few rows and the raw one.
pub(crate) fn gemm_shapes(
    spec: &ModelSpec,
    shapes: &Shapes,
    weights: &Weights,
) -> (Vec<GemmShape>, GemmShape) {
    let mut layers = Vec::new();
    let mut add = |matrix: &Matrix, plain: GemmShape| {
        layers.push(matrix.shape(plain));
        layers.extend(matrix.raw_shape(plain));
    };
    for (layer, of_spec) in weights.layers.iter().zip(&spec.layers) {
        match (&layer.mixer, &of_spec.delta_net) {
            (Mixer::DeltaNet(weights), Some(net)) => {
                add(&weights.input, shapes.delta_input(net, weights.scores.is_some()));
                if let Some(scores) = weights.scores {
                    add(&Matrix::Plain(scores), shapes.delta_scores(net));
                }
                add(&weights.output, shapes.delta_output(net));
            }
            (mixer, _) => {
                let [qkv, output] = mixer.matrices();
                add(&qkv, shapes.qkv(spec, of_spec));
                add(&output, shapes.output(spec, of_spec));
            }
        }
        if let Some(token) = &layer.token_gate {
            add(&Matrix::Plain(token.gate), shapes.token_gate(token.size));
            add(&Matrix::Plain(token.output), shapes.down(token.size));
        }
        match &layer.feed_forward {
            FeedForwardWeights::Dense {
                gate_up, gate_up_bias, down, intermediate_size, ..
            } => {
                add(gate_up, shapes.gate_up(*intermediate_size));
                add(down, shapes.down(*intermediate_size));
                if gate_up_bias.is_none() {
                    add(gate_up, shapes.gated(*intermediate_size));
                }
            }
            FeedForwardWeights::Moe(experts) => {
                add(&Matrix::Plain(experts.router), shapes.router(experts.spec.num_experts));
                if let Some(shared) = experts.shared {
                    add(&shared.gate_up, shapes.gate_up(shared.intermediate_size));
                    add(&shared.gate_up, shapes.gated(shared.intermediate_size));
                    add(&shared.down, shapes.down(shared.intermediate_size));
                }
            }
        }
    }
    if let Some(token) = &weights.token_input {
        let all = token.num_layers * token.size;
        layers.push(Matrix::Plain(token.projection).shape(shapes.token_projection(all)));
    }
    layers.sort_unstable();
    layers.dedup();
    (layers, shapes.head)
}

/// The products of experts whose matrices are of 4-bit codes.
pub(crate) fn four_bit_experts(
    spec: &ModelSpec,
    weights: &Weights,
) -> Vec<(MoeSpec, FourBitShape)> {
    let mut products = Vec::new();
    for layer in &weights.layers {
        let FeedForwardWeights::Moe(experts) = &layer.feed_forward else { continue };
        let (hidden, inner) = (spec.hidden_size, experts.spec.intermediate_size);
        for (matrix, n, k) in [(experts.gate_up, 2 * inner, hidden), (experts.down, hidden, inner)]
        {
            if let Some(form) = matrix.four_bit() {
                products.push((experts.spec, FourBitShape { n, k, out: GemmOut::Device, form }));
            }
        }
    }
    products
}
