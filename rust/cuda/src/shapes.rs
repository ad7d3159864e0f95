//! Shapes of a model's products. Plain data.

use ingle_model::{Activation, DeltaNetSpec, LayerSpec, ModelSpec};

use crate::contract::{GATE_GELU_TANH, GATE_SILU};
use crate::dtypes::{ScaleMode, WeightDtype};
use crate::four_bit::FourBitForm;
use crate::rope_build::KeyParts;

/// A product apart from its row count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GemmShape {
    /// Rows of the weight, columns of the result.
    pub(crate) n: u32,
    /// Columns of the weight and of the input.
    pub(crate) k: u32,
    /// What becomes of the result.
    pub(crate) out: GemmOut,
    /// How the weight is stored.
    pub(crate) weight: WeightDtype,
    pub(crate) scale: ScaleMode,
}

impl GemmShape {
    /// A product whose weight is not scaled.
    pub(crate) fn plain(n: u32, k: u32, out: GemmOut, weight: WeightDtype) -> Self {
        Self { n, k, out, weight, scale: ScaleMode::None }
    }

    /// The same with a plain weight instead of 4-bit codes.
    pub(crate) fn widened(self) -> Self {
        match self.weight {
            WeightDtype::FourBit(_) => Self::plain(self.n, self.k, self.out, WeightDtype::Bf16),
            WeightDtype::Bf16 | WeightDtype::F16 | WeightDtype::E4m3 => self,
        }
    }

    /// The same where the weight is of 4-bit codes.
    pub(crate) fn four_bit(self) -> Option<FourBitShape> {
        match self.weight {
            WeightDtype::FourBit(form) => {
                Some(FourBitShape { n: self.n, k: self.k, out: self.out, form })
            }
            WeightDtype::Bf16 | WeightDtype::F16 | WeightDtype::E4m3 => None,
        }
    }
}

/// A product with a matrix of 4-bit codes, apart from its row count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FourBitShape {
    /// As in `GemmShape`.
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) out: GemmOut,
    pub(crate) form: FourBitForm,
}

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GemmOut {
    /// Stored as the device type.
    Device,
    /// Stored as f32.
    F32,
    /// Added to f32 (the residual stream).
    AddF32,
    /// The weight holds gate rows, then up rows: `act(gate) * up` is stored as the device type,
    /// `[m, n / 2]`. Own kernel only.
    Gated,
}

/// The gate as kernels name it.
pub(crate) fn activation_kind(spec: &ModelSpec) -> u32 {
    match spec.activation {
        Activation::Silu => GATE_SILU,
        Activation::GeluTanh => GATE_GELU_TANH,
        // Has a build of its own.
        Activation::ClampedSwiglu { .. } => GATE_SILU,
    }
}

/// The limit of a clamped gate; 0 of others.
pub(crate) fn gate_limit(spec: &ModelSpec) -> f32 {
    match spec.activation {
        Activation::ClampedSwiglu { limit } => limit,
        Activation::Silu | Activation::GeluTanh => 0.0,
    }
}

/// Rows of the projection to queries, keys and values of a layer with attention.
pub(crate) fn qkv_rows(spec: &ModelSpec, layer: &LayerSpec) -> u32 {
    let heads = spec.heads(layer);
    let q_width = spec.num_attention_heads * heads.head_dim;
    let gates = if spec.attention.output_gate { q_width } else { 0 };
    q_width + gates + KeyParts::of(layer).count() * heads.kv_width()
}

/// Shapes of a model's products.
pub(crate) struct Shapes {
    pub(crate) head: GemmShape,
    hidden: u32,
    weight: WeightDtype,
    /// Into the residual stream, or into `branch` where a norm or the other ranks' parts come between.
    pub(crate) into_residual: GemmOut,
}

impl Shapes {
    /// Of a model whose matrices are stored as `weight`.
    pub(crate) fn of(spec: &ModelSpec, weight: WeightDtype) -> Self {
        let hidden = spec.hidden_size;
        let into_residual = if spec.post_norms { GemmOut::F32 } else { GemmOut::AddF32 };
        Self {
            head: GemmShape::plain(spec.vocab_size, hidden, GemmOut::F32, weight),
            hidden,
            weight,
            into_residual,
        }
    }

    /// Those of a rank of a group, with its rows of the head: projections back to the hidden size are partial sums.
    /// `None`: the model is not divided.
    pub(crate) fn of_rank(self, head_rows: Option<u32>) -> Self {
        let Some(head_rows) = head_rows else { return self };
        let into_residual = GemmOut::F32;
        let head = GemmShape { n: head_rows, ..self.head };
        Self { head, into_residual, ..self }
    }

    /// To queries, keys and values of a layer.
    pub(crate) fn qkv(&self, spec: &ModelSpec, layer: &LayerSpec) -> GemmShape {
        GemmShape::plain(qkv_rows(spec, layer), self.hidden, GemmOut::Device, self.weight)
    }

    /// Back from its attention.
    pub(crate) fn output(&self, spec: &ModelSpec, layer: &LayerSpec) -> GemmShape {
        self.down(spec.num_attention_heads * spec.heads(layer).head_dim)
    }

    /// From the embeddings to what all layers get of them.
    pub(crate) fn token_projection(&self, all: u32) -> GemmShape {
        GemmShape::plain(all, self.hidden, GemmOut::Device, self.weight)
    }

    /// To the gate of what a layer gets, and back from it.
    pub(crate) fn token_gate(&self, size: u32) -> GemmShape {
        GemmShape::plain(size, self.hidden, GemmOut::Device, self.weight)
    }

    pub(crate) fn gate_up(&self, intermediate_size: u32) -> GemmShape {
        GemmShape::plain(2 * intermediate_size, self.hidden, GemmOut::Device, self.weight)
    }

    /// The same with the gate applied.
    pub(crate) fn gated(&self, intermediate_size: u32) -> GemmShape {
        GemmShape { out: GemmOut::Gated, ..self.gate_up(intermediate_size) }
    }

    pub(crate) fn down(&self, intermediate_size: u32) -> GemmShape {
        GemmShape::plain(self.hidden, intermediate_size, self.into_residual, self.weight)
    }

    /// Into a gated delta net: q, k, v, gate, and the scores unless they are apart.
    pub(crate) fn delta_input(&self, net: &DeltaNetSpec, scores_apart: bool) -> GemmShape {
        let scores = if scores_apart { 2 * net.num_value_heads } else { 0 };
        let rows = net.input_rows() - scores;
        GemmShape::plain(rows, self.hidden, GemmOut::Device, self.weight)
    }

    /// What its tokens write, and what the state loses.
    pub(crate) fn delta_scores(&self, net: &DeltaNetSpec) -> GemmShape {
        GemmShape::plain(2 * net.num_value_heads, self.hidden, GemmOut::F32, self.weight)
    }

    /// Back from it.
    pub(crate) fn delta_output(&self, net: &DeltaNetSpec) -> GemmShape {
        self.down(net.value_width())
    }

    pub(crate) fn router(&self, num_experts: u32) -> GemmShape {
        GemmShape::plain(num_experts, self.hidden, GemmOut::F32, self.weight)
    }
}
