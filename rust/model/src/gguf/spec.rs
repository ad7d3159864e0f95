//! Translates GGUF metadata to a `ModelSpec`. Key names are those of ggml's gguf.md.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::plan::{HEAD, ROPE_FACTORS};
use super::{GgufMetadata, known};
use crate::catalogue::{Catalogue, Stored};
use crate::config::{gguf_architectures, limits, root, to_f32, yarn_attention_factor};
use crate::error::ModelError;
use crate::source::ReadAt;
use crate::{
    Activation, AttentionSpec, EmbedsOnly, FeedForwardSpec, KvFormat, LayerSpec, ModelSpec,
    MoeSpec, NormSpec, QkNorm, RopeKind, RopeSpec, RopeStyle, RouterSpec, WeightType,
};

/// Describes the model; reads `rope_freqs.weight` if the file has it.
pub(super) fn model_spec(
    metadata: &GgufMetadata,
    catalogue: &mut Catalogue,
    source: &dyn ReadAt,
) -> Result<ModelSpec, ModelError> {
    let key = "general.architecture";
    let architecture =
        metadata.string(key)?.ok_or_else(|| ModelError::missing_field(metadata.file(), key))?;
    if !gguf_architectures().any(|name| name == architecture) {
        let supported = gguf_architectures().collect::<Vec<_>>().join(", ");
        return Err(ModelError::unsupported(metadata.file(), key, architecture, supported));
    }
    let keys = Keys { metadata, architecture };
    known::refuse_unknown(metadata, architecture)?;
    let (embeds_only, _) = known::embeddings(metadata, architecture)?;
    let hidden_size = keys.size("embedding_length", limits::WIDTH)?;
    let num_attention_heads = keys.size("attention.head_count", limits::HEADS)?;
    let num_kv_heads = keys
        .optional_size("attention.head_count_kv", limits::HEADS)?
        .unwrap_or(num_attention_heads);
    if !num_attention_heads.is_multiple_of(num_kv_heads) {
        let reason = format!("{num_kv_heads} does not divide {num_attention_heads} query heads");
        return Err(keys.error("attention.head_count_kv", reason));
    }
    let head_dim = keys.head_dim(hidden_size, num_attention_heads)?;
    let declared = keys.size("context_length", limits::POSITIONS)?;
    let has = |part: &str| catalogue.contains(&format!("blk.0.{part}"));
    let attention = AttentionSpec {
        causal: embeds_only != Some(EmbedsOnly::Bidirectional),
        scale: 1.0 / root(head_dim),
        logit_softcap: None,
        qk_norm: if architecture.starts_with("qwen3") { QkNorm::Head } else { QkNorm::None },
        chunks: false,
        query_scale: None,
        // GGUF has no key for biases: the tensors say it, then every layer must have them all.
        qkv_bias: architecture == "qwen2" || has("attn_q.bias"),
        o_bias: has("attn_output.bias"),
        sinks: false,
        output_gate: false,
        latent: None,
        value_norm: false,
    };
    let feed_forward = keys.feed_forward(has("ffn_gate.bias"))?;
    let tie_word_embeddings = !catalogue.contains(HEAD);
    let vocab_size = keys.vocab_size(catalogue)?;
    let ropes = vec![keys.rope(head_dim, declared, catalogue, source)?];
    let layers = keys.size("block_count", limits::LAYERS)?;
    Ok(ModelSpec {
        architecture: architecture.to_owned(),
        vocab_size,
        hidden_size,
        num_attention_heads,
        num_kv_heads,
        head_dim,
        max_position_embeddings: RopeSpec::context_of(&ropes, declared),
        norm: NormSpec { eps: keys.eps()?, plus_one: false },
        attention,
        activation: Activation::Silu,
        pre_norms: true,
        post_norms: false,
        embedding_scale: 1.0,
        logit_scale: 1.0,
        final_logit_softcap: None,
        tie_word_embeddings,
        weight_type: WeightType::F32,
        kv_format: KvFormat::Device,
        token_input: None,
        scales_layers: false,
        embeds_only,
        layers: (0..layers)
            .map(|_| LayerSpec { rope: Some(0), ..LayerSpec::plain(feed_forward) })
            .collect(),
        ropes,
    })
}

struct Keys<'a> {
    metadata: &'a GgufMetadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn error(&self, name: &str, reason: impl Into<String>) -> ModelError {
        ModelError::field(self.metadata.file(), &self.key(name), reason)
    }

    fn optional_size(&self, name: &str, limit: u32) -> Result<Option<u32>, ModelError> {
        match self.metadata.u32(&self.key(name))? {
            Some(value) if value == 0 || value > limit => {
                Err(self.error(name, format!("{value} is not from 1 to {limit}")))
            }
            other => Ok(other),
        }
    }

    fn size(&self, name: &str, limit: u32) -> Result<u32, ModelError> {
        self.optional_size(name, limit)?
            .ok_or_else(|| ModelError::missing_field(self.metadata.file(), &self.key(name)))
    }

    fn positive(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.f64(&self.key(name))? {
            None => Ok(None),
            Some(number) => match to_f32(number) {
                Some(value) if value > 0.0 => Ok(Some(value)),
                _ => Err(self.error(name, format!("{number} is not a positive number"))),
            },
        }
    }

    fn eps(&self) -> Result<f32, ModelError> {
        let name = "attention.layer_norm_rms_epsilon";
        self.positive(name)?
            .ok_or_else(|| ModelError::missing_field(self.metadata.file(), &self.key(name)))
    }

    fn head_dim(&self, hidden_size: u32, heads: u32) -> Result<u32, ModelError> {
        let name = "attention.key_length";
        let head_dim = match self.optional_size(name, limits::HEAD_DIM)? {
            Some(explicit) => explicit,
            None if hidden_size.is_multiple_of(heads) => {
                hidden_size.checked_div(heads).unwrap_or(0)
            }
            None => {
                let reason = format!("absent, and {heads} heads do not divide {hidden_size}");
                return Err(self.error(name, reason));
            }
        };
        if head_dim > limits::HEAD_DIM || !head_dim.is_multiple_of(2) {
            let reason = format!("{head_dim} is not an even number up to {}", limits::HEAD_DIM);
            return Err(self.error(name, reason));
        }
        match self.optional_size("attention.value_length", limits::HEAD_DIM)? {
            Some(value) if value != head_dim => {
                let reason = format!("{value} differs from the width of keys, {head_dim}");
                Err(self.error("attention.value_length", reason))
            }
            _ => Ok(head_dim),
        }
    }

    /// Rows of the embedding; the count in the metadata, where there is one, must agree.
    fn vocab_size(&self, catalogue: &Catalogue) -> Result<u32, ModelError> {
        let tensor = "token_embd.weight";
        let rows = catalogue.shape(tensor).and_then(|shape| shape.first().copied());
        let Some(rows) = rows else {
            let file = self.metadata.file().to_owned();
            return Err(ModelError::MissingTensor { file, tensor: tensor.to_owned() });
        };
        let limit = limits::VOCABULARY;
        let rows = u32::try_from(rows).ok().filter(|rows| *rows <= limit).ok_or_else(|| {
            ModelError::limit(self.metadata.file(), "rows of the embedding", rows, limit.into())
        })?;
        match self.optional_size("vocab_size", limit)? {
            Some(declared) if declared != rows => {
                let reason = format!("{declared} differs from the {rows} rows of {tensor}");
                Err(self.error("vocab_size", reason))
            }
            _ => Ok(rows),
        }
    }

    fn feed_forward(&self, bias: bool) -> Result<FeedForwardSpec, ModelError> {
        let experts = self.metadata.u32(&self.key("expert_count"))?.unwrap_or(0);
        if experts == 0 {
            if self.architecture == "qwen3moe" {
                let file = self.metadata.file();
                return Err(ModelError::missing_field(file, &self.key("expert_count")));
            }
            let intermediate_size = self.size("feed_forward_length", limits::WIDTH)?;
            return Ok(FeedForwardSpec::Dense { intermediate_size, bias });
        }
        let num_experts = self.size("expert_count", limits::EXPERTS)?;
        let size = match self.optional_size("expert_feed_forward_length", limits::WIDTH)? {
            Some(size) => size,
            None => self.size("feed_forward_length", limits::WIDTH)?,
        };
        Ok(FeedForwardSpec::Moe(MoeSpec {
            num_experts,
            experts_per_token: self.size("expert_used_count", num_experts)?,
            intermediate_size: size,
            // ggml normalises the chosen weights in both architectures.
            router: RouterSpec::softmax(true),
            bias: false,
            shared_size: None,
            scales_input: false,
            shared_score: false,
            own_norms: false,
        }))
    }

    fn rope(
        &self,
        head_dim: u32,
        context: u32,
        catalogue: &mut Catalogue,
        source: &dyn ReadAt,
    ) -> Result<RopeSpec, ModelError> {
        let name = "rope.dimension_count";
        let rotary_dim = self.optional_size(name, head_dim)?.unwrap_or(head_dim);
        if !rotary_dim.is_multiple_of(2) {
            return Err(self.error(name, format!("{rotary_dim} is odd")));
        }
        let llama = self.architecture == "llama";
        let style = if llama { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
        let theta = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        if theta <= 1.0 {
            return Err(self.error("rope.freq_base", format!("{theta} is not above 1")));
        }
        let mut kind = self.scaling(context)?;
        if llama && catalogue.contains(ROPE_FACTORS) {
            if kind != RopeKind::Default {
                let reason = "contradicts the tensor rope_freqs.weight";
                return Err(self.error("rope.scaling.type", reason));
            }
            let divisors = rope_factors(self.metadata.file(), rotary_dim, catalogue, source)?;
            kind = RopeKind::Factors { divisors };
        }
        Ok(RopeSpec { style, rotary_dim, theta, kind })
    }

    fn scaling(&self, context: u32) -> Result<RopeKind, ModelError> {
        let key = self.key("rope.scaling.type");
        let factor = match self.positive("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // The name before 2023-09.
            None => self.positive("rope.scale_linear")?,
        };
        let kind = self.metadata.string(&key)?;
        match (kind, factor) {
            (Some("none"), _) | (None, None) => Ok(RopeKind::Default),
            (Some("linear") | None, Some(factor)) => Ok(RopeKind::Linear { factor }),
            (Some("yarn"), Some(factor)) => self.yarn(factor, context),
            (Some("linear" | "yarn"), None) => Err(ModelError::missing_field(
                self.metadata.file(),
                &self.key("rope.scaling.factor"),
            )),
            (Some(other), _) => Err(ModelError::unsupported(
                self.metadata.file(),
                &key,
                other,
                "none, linear, yarn",
            )),
        }
    }

    fn yarn(&self, factor: f32, context: u32) -> Result<RopeKind, ModelError> {
        let original = "rope.scaling.original_context_length";
        let extra = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let beta = |name| self.positive(name);
        Ok(RopeKind::Yarn {
            factor,
            original_max_position_embeddings: self
                .optional_size(original, limits::POSITIONS)?
                .unwrap_or(context),
            beta_fast: beta("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: beta("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: extra * yarn_attention_factor(f64::from(factor), None).unwrap_or(1.0),
            truncate: true,
        })
    }
}

/// Reads `rope_freqs.weight`, the only weight that belongs to the description: 4 bytes an entry, at
/// most `limits::HEAD_DIM / 2` of them.
fn rope_factors(
    file: &str,
    rotary_dim: u32,
    catalogue: &mut Catalogue,
    source: &dyn ReadAt,
) -> Result<Vec<f32>, ModelError> {
    let entry = catalogue.take(ROPE_FACTORS, &[u64::from(rotary_dim / 2)])?;
    if entry.stored != Stored::Known(WeightType::F32) {
        return Err(ModelError::tensor(file, ROPE_FACTORS, "is not F32"));
    }
    let mut bytes = vec![0; usize::try_from(entry.byte_len).unwrap_or(0)];
    source
        .read_exact_at(entry.offset, &mut bytes)
        .map_err(|cause| ModelError::io(file, "read", cause))?;
    let (chunks, _) = bytes.as_chunks::<4>();
    let divisors: Vec<f32> = chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
    match divisors.iter().find(|value| !value.is_finite() || **value <= 0.0) {
        Some(value) => {
            let reason = format!("{value} is not a positive number");
            Err(ModelError::tensor(file, ROPE_FACTORS, reason))
        }
        None => Ok(divisors),
    }
}
