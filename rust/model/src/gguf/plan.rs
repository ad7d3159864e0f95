//! Finds a model's parts among tensors with GGUF names.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::catalogue::{Catalogue, Entry};
use crate::error::ModelError;
use crate::safetensors::Widths;
use crate::{FeedForwardSpec, LayerWeight, ModelSpec, MoeSpec, QkNorm, WeightRole};

pub(super) const HEAD: &str = "output.weight";
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Takes every tensor that the model needs.
pub(super) fn take_tensors(spec: &ModelSpec, catalogue: &mut Catalogue) -> Result<(), ModelError> {
    let (vocabulary, hidden) = (u64::from(spec.vocab_size), u64::from(spec.hidden_size));
    catalogue.matrix(WeightRole::Embedding, "token_embd.weight", vocabulary, hidden)?;
    catalogue.vector(WeightRole::FinalNorm, "output_norm.weight", hidden)?;
    if !spec.tie_word_embeddings {
        catalogue.matrix(WeightRole::LmHead, HEAD, vocabulary, hidden)?;
    }
    for (number, layer) in (0..).zip(&spec.layers) {
        let mut tensors = Layer { catalogue, spec, number };
        tensors.attention()?;
        match layer.feed_forward {
            FeedForwardSpec::Dense { intermediate_size, bias } => {
                tensors.dense(u64::from(intermediate_size), bias)?;
            }
            FeedForwardSpec::Moe(moe) => tensors.experts(moe)?,
        }
    }
    Ok(())
}

/// Old exporters wrote the rotation table of each layer.
pub(super) fn is_harmless(name: &str, _: &Entry) -> bool {
    name.ends_with(".attn_rot_embd")
}

struct Layer<'a> {
    catalogue: &'a mut Catalogue,
    spec: &'a ModelSpec,
    number: u32,
}

impl Layer<'_> {
    fn vector(&mut self, weight: LayerWeight, part: &str, len: u64) -> Result<(), ModelError> {
        let name = format!("blk.{}.{part}", self.number);
        self.catalogue.vector(WeightRole::Layer(self.number, weight), &name, len)
    }

    fn matrix(
        &mut self,
        weight: LayerWeight,
        part: &str,
        rows: u64,
        cols: u64,
    ) -> Result<(), ModelError> {
        let name = format!("blk.{}.{part}", self.number);
        self.catalogue.matrix(WeightRole::Layer(self.number, weight), &name, rows, cols)
    }

    fn attention(&mut self) -> Result<(), ModelError> {
        let Widths { hidden, query, kv } = Widths::of(self.spec);
        self.vector(LayerWeight::InputNorm, "attn_norm.weight", hidden)?;
        self.vector(LayerWeight::FeedForwardNorm, "ffn_norm.weight", hidden)?;
        self.matrix(LayerWeight::Query, "attn_q.weight", query, hidden)?;
        self.matrix(LayerWeight::Key, "attn_k.weight", kv, hidden)?;
        self.matrix(LayerWeight::Value, "attn_v.weight", kv, hidden)?;
        self.matrix(LayerWeight::Output, "attn_output.weight", hidden, query)?;
        if self.spec.attention.qkv_bias {
            self.vector(LayerWeight::QueryBias, "attn_q.bias", query)?;
            self.vector(LayerWeight::KeyBias, "attn_k.bias", kv)?;
            self.vector(LayerWeight::ValueBias, "attn_v.bias", kv)?;
        }
        if self.spec.attention.o_bias {
            self.vector(LayerWeight::OutputBias, "attn_output.bias", hidden)?;
        }
        if self.spec.attention.qk_norm == QkNorm::Head {
            let head_dim = u64::from(self.spec.head_dim);
            self.vector(LayerWeight::QueryNorm, "attn_q_norm.weight", head_dim)?;
            self.vector(LayerWeight::KeyNorm, "attn_k_norm.weight", head_dim)?;
        }
        Ok(())
    }

    fn dense(&mut self, size: u64, bias: bool) -> Result<(), ModelError> {
        let hidden = u64::from(self.spec.hidden_size);
        self.matrix(LayerWeight::Gate, "ffn_gate.weight", size, hidden)?;
        self.matrix(LayerWeight::Up, "ffn_up.weight", size, hidden)?;
        self.matrix(LayerWeight::Down, "ffn_down.weight", hidden, size)?;
        if bias {
            self.vector(LayerWeight::GateBias, "ffn_gate.bias", size)?;
            self.vector(LayerWeight::UpBias, "ffn_up.bias", size)?;
            self.vector(LayerWeight::DownBias, "ffn_down.bias", hidden)?;
        }
        Ok(())
    }

    /// Experts are stacked, one tensor each for gate, up and down.
    fn experts(&mut self, moe: MoeSpec) -> Result<(), ModelError> {
        let hidden = u64::from(self.spec.hidden_size);
        let size = u64::from(moe.intermediate_size);
        let experts = u64::from(moe.num_experts);
        self.matrix(LayerWeight::Router, "ffn_gate_inp.weight", experts, hidden)?;
        for (part, rows, cols, role) in [
            ("ffn_gate_exps", size, hidden, LayerWeight::ExpertGate as fn(u32) -> LayerWeight),
            ("ffn_up_exps", size, hidden, LayerWeight::ExpertUp),
            ("ffn_down_exps", hidden, size, LayerWeight::ExpertDown),
        ] {
            let parts: Vec<_> = (0..moe.num_experts)
                .map(|expert| (WeightRole::Layer(self.number, role(expert)), rows))
                .collect();
            let name = format!("blk.{}.{part}.weight", self.number);
            self.catalogue.rows(&name, &[experts, rows, cols], &parts)?;
        }
        Ok(())
    }
}
