//! The addresses of all weights on the device, by layer and part. Plain data; `weight_layout.rs` gives them out.
//! Projections that share their input form one matrix: q, k and v; gate and up. Norm weights and
//! biases are f32 vectors; everything else has the device's number format.

use ingle_model::MoeSpec;

use crate::device_slice::{DeviceSlice, Weight};
use crate::matrix::Matrix;

/// The addresses of all weights.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: DeviceSlice<Weight>,
    pub(crate) final_norm: DeviceSlice<f32>,
    /// The same times the factor of the logits.
    pub(crate) head_norm: DeviceSlice<f32>,
    pub(crate) lm_head: DeviceSlice<Weight>,
    pub(crate) token_input: Option<TokenInputWeights>,
    pub(crate) layers: Vec<LayerWeights>,
}

impl Weights {
    /// Elements of the largest matrix of 4-bit codes that products may widen.
    pub(crate) fn widened_elements(&self) -> u64 {
        let of_layer = |layer: &LayerWeights| {
            let dense = match layer.feed_forward {
                FeedForwardWeights::Dense { gate_up, down, .. } => [Some(gate_up), Some(down)],
                FeedForwardWeights::Moe(ref experts) => {
                    [experts.shared.map(|s| s.gate_up), experts.shared.map(|s| s.down)]
                }
            };
            let all = dense.into_iter().flatten().chain(layer.mixer.matrices());
            all.filter(|matrix| matrix.four_bit().is_some()).map(|matrix| matrix.len()).max()
        };
        self.layers.iter().filter_map(of_layer).max().unwrap_or(0)
    }

    /// Whether a matrix is e4m3.
    pub(crate) fn have_e4m3(&self) -> bool {
        let of_layer = |layer: &LayerWeights| {
            let dense = match &layer.feed_forward {
                FeedForwardWeights::Dense { gate_up, .. } => gate_up.is_e4m3(),
                FeedForwardWeights::Moe(_) => false,
            };
            layer.mixer.matrices().iter().any(Matrix::is_e4m3) || dense
        };
        self.layers.iter().any(of_layer)
    }
}

/// Those of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerWeights {
    pub(crate) input_norm: Option<DeviceSlice<f32>>,
    pub(crate) mixer: Mixer,
    pub(crate) post_attention_norm: Option<DeviceSlice<f32>>,
    pub(crate) feed_forward_norm: Option<DeviceSlice<f32>>,
    pub(crate) post_feed_forward_norm: Option<DeviceSlice<f32>>,
    pub(crate) feed_forward: FeedForwardWeights,
    /// Of what the layer gets of the token itself.
    pub(crate) token_gate: Option<TokenGateWeights>,
    /// `[1]`: what the layer multiplies the residual stream by.
    pub(crate) scale: Option<DeviceSlice<f32>>,
}

/// Those of what all layers get of the token itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenInputWeights {
    pub(crate) num_layers: u32,
    pub(crate) size: u32,
    /// `[vocab_size, num_layers * size]`
    pub(crate) embedding: DeviceSlice<Weight>,
    /// `[num_layers * size, hidden_size]`
    pub(crate) projection: DeviceSlice<Weight>,
    /// `[size]`
    pub(crate) norm: DeviceSlice<f32>,
}

/// Those of one layer's part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenGateWeights {
    pub(crate) size: u32,
    /// `[size, hidden_size]`
    pub(crate) gate: DeviceSlice<Weight>,
    /// `[hidden_size, size]`
    pub(crate) output: DeviceSlice<Weight>,
    /// `[hidden_size]`
    pub(crate) norm: DeviceSlice<f32>,
}

/// Those of the part that mixes tokens.
#[derive(Clone, Debug)]
pub(crate) enum Mixer {
    Attention(AttentionWeights),
    DeltaNet(DeltaWeights),
}

impl Mixer {
    /// What goes into it and what comes back.
    pub(crate) fn matrices(&self) -> [Matrix; 2] {
        match self {
            Self::Attention(weights) => [weights.qkv, weights.output],
            Self::DeltaNet(weights) => [weights.input, weights.output],
        }
    }
}

/// Those of attention.
#[derive(Clone, Debug)]
pub(crate) struct AttentionWeights {
    /// `[(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]`, q rows first, then k, then v; with an output gate
    /// each head's rows of q are followed by those of its gate. Without v where values are keys, q alone where the layer
    /// reads another's keys.
    pub(crate) qkv: Matrix,
    pub(crate) qkv_bias: Option<DeviceSlice<f32>>,
    pub(crate) q_norm: Option<DeviceSlice<f32>>,
    pub(crate) k_norm: Option<DeviceSlice<f32>>,
    /// `[num_heads]`
    pub(crate) sinks: Option<DeviceSlice<f32>>,
    pub(crate) output: Matrix,
    pub(crate) output_bias: Option<DeviceSlice<f32>>,
}

/// Those of a gated delta net; kernels/delta_net.cu has the shapes of vectors.
#[derive(Clone, Debug)]
pub(crate) struct DeltaWeights {
    /// `[channels + value_width, hidden_size]`: q, k, v, gate; never e4m3. The scores follow it unless they are apart.
    pub(crate) input: Matrix,
    /// `[2 * num_value_heads, hidden_size]`: what a token writes, what the state loses. Apart where the others are packed,
    /// or where together their results would not be aligned.
    pub(crate) scores: Option<DeviceSlice<Weight>>,
    pub(crate) conv: DeviceSlice<f32>,
    pub(crate) log_rate: DeviceSlice<f32>,
    pub(crate) decay_bias: DeviceSlice<f32>,
    pub(crate) norm: DeviceSlice<f32>,
    /// `[hidden_size, value_width]`; never e4m3.
    pub(crate) output: Matrix,
}

/// Those of a layer's second part.
#[derive(Clone, Debug)]
pub(crate) enum FeedForwardWeights {
    /// One network.
    Dense {
        /// `[2 * intermediate_size, hidden_size]`, gate rows first.
        gate_up: Matrix,
        gate_up_bias: Option<DeviceSlice<f32>>,
        /// `[hidden_size, intermediate_size]`; e4m3 exactly if gate_up is.
        down: Matrix,
        down_bias: Option<DeviceSlice<f32>>,
        intermediate_size: u32,
    },
    /// Experts.
    Moe(Box<ExpertWeights>),
}

/// Experts, one after the other, each as a dense network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertWeights {
    pub(crate) spec: MoeSpec,
    pub(crate) router: DeviceSlice<Weight>,
    /// `[num_experts]` each
    pub(crate) router_bias: Option<DeviceSlice<f32>>,
    pub(crate) correction: Option<DeviceSlice<f32>>,
    pub(crate) gate_up: Matrix,
    /// `[num_experts, 2 * intermediate_size]`
    pub(crate) gate_up_bias: Option<DeviceSlice<f32>>,
    pub(crate) down: Matrix,
    /// `[num_experts, hidden_size]`
    pub(crate) down_bias: Option<DeviceSlice<f32>>,
    /// The network that every token visits.
    pub(crate) shared: Option<SharedWeights>,
    pub(crate) own_norms: Option<ExpertNorms>,
}

/// Norms of experts, `[hidden_size]` each, and what chosen weights are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNorms {
    /// Of what the router sees, divided by the root of the hidden size.
    pub(crate) router: DeviceSlice<f32>,
    /// Of what the experts see.
    pub(crate) input: DeviceSlice<f32>,
    /// Of what the shared network gives.
    pub(crate) shared: DeviceSlice<f32>,
    /// Of what the experts give.
    pub(crate) output: DeviceSlice<f32>,
    /// `[num_experts]`
    pub(crate) scales: DeviceSlice<f32>,
}

/// A dense network beside experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedWeights {
    pub(crate) gate_up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) intermediate_size: u32,
    /// `[hidden_size]`: the network's weight is the sigmoid of its product.
    pub(crate) score: Option<DeviceSlice<f32>>,
}

/// Bytes of a bf16 or f16 element.
pub(crate) const DEVICE_TYPE_BYTES: u64 = size_of::<Weight>() as u64;
