//! Translates config.json to a `ModelSpec`. family.rs describes the families; a field that known.rs
//! does not list is refused by name. `auto_map` and other pointers to code are ignored.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod delta_nets;
mod facts;
mod family;
mod feed_forward;
mod fields;
mod known;
mod latent;
mod layer_heads;
mod layer_ropes;
pub(crate) mod limits;
mod rope;
mod windows;

use facts::Windows;
pub(crate) use facts::{Biases, Experts, Facts, FeedForward, Norms, Shared, Wrapper};
pub(crate) use family::{Class, Family, gguf_architectures};
pub(crate) use fields::{Fields, to_f32};
use layer_heads::LayerHeads;
use layer_ropes::LayerRopes;
pub(crate) use rope::yarn_attention_factor;

use crate::error::ModelError;
use crate::{
    Activation, AttentionSpec, EmbedsOnly, FeedForwardSpec, HeadSizes, KvFormat, LatentSpec,
    LayerSpec, ModelSpec, NormSpec, QkNorm, RopeSpec, TokenInputSpec, WeightType,
};

/// What a config.json describes.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) family: Family,
    pub(crate) spec: ModelSpec,
    /// Layers of the file behind those of the model. They predict several tokens at once, and are not served.
    pub(crate) later_layers: u32,
}

/// Reads the fields of a config.json.
pub(crate) fn model_spec(config: &Fields<'_>) -> Result<Described, ModelError> {
    let family = Family::of(config)?;
    refuse_what_we_lack(config)?;
    let text = match family.wrapper {
        Some(wrapper) => {
            known::refuse_unknown_around(config, wrapper)?;
            config.object("text_config")?.ok_or_else(|| config.missing("text_config"))?
        }
        None => *config,
    };
    let fields = text.over(family.facts.defaults);
    let mut spec = text_spec(&text.with_map(&fields), family.facts)?;
    let key = "tie_word_embeddings";
    if family.wrapper.is_some() && text.get(key).is_none() {
        spec.tie_word_embeddings = config.bool(key)?.unwrap_or(spec.tie_word_embeddings);
    }
    let key = "num_nextn_predict_layers";
    let later_layers = match family.facts.has(key) {
        true => text.u32(key, limits::LAYERS)?.unwrap_or(0),
        false => 0,
    };
    Ok(Described { family, spec, later_layers })
}

fn text_spec(config: &Fields<'_>, facts: &Facts) -> Result<ModelSpec, ModelError> {
    known::refuse_unknown(config, facts)?;
    refuse_what_we_lack(config)?;
    let hidden_size = config.required("hidden_size", limits::WIDTH)?;
    let num_attention_heads = config.required("num_attention_heads", limits::HEADS)?;
    let latent = latent::latent(config, facts)?;
    let of_model = head_sizes(config, facts, (hidden_size, num_attention_heads), latent.as_ref())?;
    let HeadSizes { num_kv_heads, head_dim } = of_model;
    let declared = config.required("max_position_embeddings", limits::POSITIONS)?;
    let count = config.required("num_hidden_layers", limits::LAYERS)?;
    let delta_nets = delta_nets::delta_nets(config, facts, count)?;
    let windows = match facts.has_delta_nets {
        true => (0..count).map(|_| None).collect(),
        false => windows::windows(config, facts, count)?,
    };
    let heads = layer_heads::layer_heads(config, facts, of_model, &windows)?;
    let of_full = windows.iter().zip(&heads).find(|(window, _)| window.is_none());
    let full_head_dim = of_full.and_then(|(_, heads)| heads.sizes).unwrap_or(of_model).head_dim;
    let rotated = latent.map_or((full_head_dim, head_dim), |l| (l.rope_dim, l.rope_dim));
    let LayerRopes { ropes, of_layer } =
        layer_ropes::layer_ropes(config, facts, rotated, &windows)?;
    let mut scales = scales(config, facts, hidden_size, head_dim)?;
    if let Some(latent) = &latent {
        scales.attention = latent::scale(config, latent)?;
    }
    let causal = config.bool("is_causal")?.unwrap_or(true);
    let feed_forwards = feed_forwards(config, facts, &heads)?;
    let layers = feed_forwards.into_iter().zip(windows).zip(of_layer);
    let layers = layers.zip(delta_nets).zip(heads);
    let spec = ModelSpec {
        architecture: facts.model_type.to_owned(),
        vocab_size: config.required("vocab_size", limits::VOCABULARY)?,
        hidden_size,
        num_attention_heads,
        num_kv_heads,
        head_dim,
        max_position_embeddings: RopeSpec::context_of(&ropes, declared),
        norm: NormSpec { eps: scales.norm_eps, plus_one: facts.is_gemma || facts.adds_one },
        ropes,
        attention: AttentionSpec {
            latent,
            ..attention(config, facts, (causal, scales.attention))?
        },
        activation: activation(config, facts)?,
        pre_norms: facts.norms.before.is_some(),
        post_norms: facts.norms.after.is_some(),
        embedding_scale: scales.embedding,
        logit_scale: scales.logits,
        final_logit_softcap: softcap(config, facts, "final_logit_softcapping")?,
        tie_word_embeddings: config.bool("tie_word_embeddings")?.unwrap_or(facts.ties_by_default),
        weight_type: WeightType::F32,
        kv_format: KvFormat::Device,
        token_input: token_input(config, facts)?,
        scales_layers: facts.scales_layers,
        embeds_only: if causal { None } else { Some(EmbedsOnly::Bidirectional) },
        layers: layers
            .map(|((((feed_forward, window), rope), delta_net), heads)| LayerSpec {
                window,
                rope: rope.filter(|_| delta_net.is_none()),
                delta_net,
                heads: heads.sizes,
                keys_of: heads.keys_of,
                values_are_keys: heads.values_are_keys,
                feed_forward,
            })
            .collect(),
    };
    if !causal && spec.layers.iter().any(|layer| layer.window.is_some()) {
        return Err(config.unsupported("is_causal", "false", "true beside a sliding window"));
    }
    Ok(spec)
}

/// Of layers that have no sizes of their own.
fn head_sizes(
    config: &Fields<'_>,
    facts: &Facts,
    (hidden_size, num_attention_heads): (u32, u32),
    latent: Option<&LatentSpec>,
) -> Result<HeadSizes, ModelError> {
    let key = "num_key_value_heads";
    let num_kv_heads = config.positive(key, limits::HEADS)?.unwrap_or(num_attention_heads);
    if !num_attention_heads.is_multiple_of(num_kv_heads) {
        let reason = format!("{num_kv_heads} does not divide {num_attention_heads} query heads");
        return Err(config.error(key, reason));
    }
    if let Some(latent) = latent {
        // Executors see one head, which all query heads read.
        return Ok(HeadSizes { num_kv_heads: 1, head_dim: latent.kept_dim() });
    }
    let head_dim = head_dim(config, facts, hidden_size, num_attention_heads)?;
    Ok(HeadSizes { num_kv_heads, head_dim })
}

/// The part after attention of each layer.
fn feed_forwards(
    config: &Fields<'_>,
    facts: &Facts,
    heads: &[LayerHeads],
) -> Result<Vec<FeedForwardSpec>, ModelError> {
    let mut parts = feed_forward::layers(config, facts)?;
    if facts.has(WIDE) && config.bool(WIDE)?.unwrap_or(false) {
        let sharing = parts.iter_mut().zip(heads).filter(|(_, heads)| heads.keys_of.is_some());
        sharing.for_each(|(part, _)| feed_forward::double(part));
    }
    Ok(parts)
}

/// What all attention layers share.
fn attention(
    config: &Fields<'_>,
    facts: &Facts,
    (causal, scale): (bool, f32),
) -> Result<AttentionSpec, ModelError> {
    let biases = biases(config, facts)?;
    Ok(AttentionSpec {
        causal,
        chunks: facts.windows == Windows::Chunks,
        scale,
        logit_softcap: softcap(config, facts, "attn_logit_softcapping")?,
        qk_norm: qk_norm(config, facts)?,
        value_norm: facts.has_value_norm,
        query_scale: layer_ropes::query_scale(config, facts)?,
        qkv_bias: biases.0,
        o_bias: biases.1,
        sinks: facts.has_sinks,
        output_gate: facts.has_delta_nets,
        latent: None,
    })
}

/// The numbers by which a model multiplies.
struct Scales {
    embedding: f32,
    norm_eps: f32,
    attention: f32,
    logits: f32,
}

fn scales(
    config: &Fields<'_>,
    facts: &Facts,
    hidden_size: u32,
    head_dim: u32,
) -> Result<Scales, ModelError> {
    let norm_eps = config.required_positive("rms_norm_eps")?;
    let Some(names) = facts.multipliers else {
        let scales_embedding = facts.is_gemma || facts.scales_embedding;
        let embedding = if scales_embedding { root(hidden_size) } else { 1.0 };
        let attention = attention_scale(config, facts, head_dim)?;
        return Ok(Scales { embedding, norm_eps, attention, logits: 1.0 });
    };
    let multiplier = |key| Ok(config.positive_f32(key)?.map_or(1.0, f64::from));
    let residual = multiplier(names.residual)?;
    let narrow = |key, value: f64| {
        let narrowed = to_f32(value).filter(|value| *value > 0.0);
        narrowed.ok_or_else(|| config.error(key, format!("gives {value}, which is no factor")))
    };
    // The residual stream is kept in units of the multiplier: what a part adds to it needs none then,
    // embeddings are divided by it, and norms, for which units make no difference, have an eps of their
    // own unit.
    Ok(Scales {
        embedding: narrow(names.residual, multiplier(names.embedding)? / residual)?,
        norm_eps: narrow(names.residual, f64::from(norm_eps) / (residual * residual))?,
        attention: narrow(names.attention, multiplier(names.attention)?)?,
        logits: narrow(names.logits, 1.0 / multiplier(names.logits)?)?,
    })
}

/// The type that a config.json states for weights that are not quantised; bf16 where it states none.
pub(crate) fn plain_type(config: &Fields<'_>) -> Result<WeightType, ModelError> {
    let text = config.object("text_config")?;
    let mut stated = None;
    for fields in [Some(config), text.as_ref()].into_iter().flatten() {
        for key in ["dtype", "torch_dtype"] {
            stated = stated.or(fields.string(key)?.map(str::to_owned));
        }
    }
    let stated = stated.unwrap_or_default();
    Ok(match stated.strip_prefix("torch.").unwrap_or(&stated) {
        "float32" => WeightType::F32,
        "float16" => WeightType::F16,
        _ => WeightType::Bf16,
    })
}

/// Refuses fields that change what a model computes and that no family here supports.
fn refuse_what_we_lack(config: &Fields<'_>) -> Result<(), ModelError> {
    // quantisation/ reads quantization_config.
    let key = "compression_config";
    if config.get(key).is_some() {
        return Err(config.unsupported(key, "an object", "quantization_config"));
    }
    for key in ["dtype", "torch_dtype"] {
        if let Some(dtype) = config.string(key)? {
            let known = ["float32", "float16", "bfloat16"];
            if !known.contains(&dtype.strip_prefix("torch.").unwrap_or(dtype)) {
                return Err(config.unsupported(key, dtype, "float32, float16, bfloat16"));
            }
        }
    }
    Ok(())
}

fn head_dim(
    config: &Fields<'_>,
    facts: &Facts,
    hidden_size: u32,
    heads: u32,
) -> Result<u32, ModelError> {
    let head_dim = match config.positive("head_dim", limits::HEAD_DIM)? {
        Some(explicit) => explicit,
        // Their classes default to a constant, not to the quotient.
        None if !facts.derives_head_dim => return Err(config.missing("head_dim")),
        None if hidden_size.is_multiple_of(heads) => hidden_size.checked_div(heads).unwrap_or(0),
        None => {
            let reason = format!("absent, and {heads} heads do not divide {hidden_size}");
            return Err(config.error("head_dim", reason));
        }
    };
    if head_dim.is_multiple_of(2) && (1..=limits::HEAD_DIM).contains(&head_dim) {
        Ok(head_dim)
    } else {
        let reason = format!("{head_dim} is not an even number up to {}", limits::HEAD_DIM);
        Err(config.error("head_dim", reason))
    }
}

fn attention_scale(config: &Fields<'_>, facts: &Facts, head_dim: u32) -> Result<f32, ModelError> {
    if let Some(scale) = facts.attention_scale {
        return Ok(scale);
    }
    let key = "query_pre_attn_scalar";
    if !facts.has(key) {
        return Ok(1.0 / root(head_dim));
    }
    let scalar = config.positive_f32(key)?.ok_or_else(|| config.missing(key))?;
    Ok(to_f32(1.0 / f64::from(scalar).sqrt()).unwrap_or(1.0))
}

/// Whether q, k and v have biases, and whether the output projection has one.
fn biases(config: &Fields<'_>, facts: &Facts) -> Result<(bool, bool), ModelError> {
    let stated = || Ok(config.bool("attention_bias")?.unwrap_or(false));
    match facts.biases {
        Biases::None => Ok((false, false)),
        Biases::QueryKeyValue => Ok((true, false)),
        Biases::QueryKeyValueFromConfig => Ok((stated()?, false)),
        Biases::FromConfig => stated().map(|bias| (bias, bias)),
    }
}

fn qk_norm(config: &Fields<'_>, facts: &Facts) -> Result<QkNorm, ModelError> {
    match facts.has_qk_norm {
        Some(key) if !config.bool(key)?.unwrap_or(false) => Ok(QkNorm::None),
        _ => Ok(facts.qk_norm),
    }
}

/// What layers get of the token itself.
fn token_input(config: &Fields<'_>, facts: &Facts) -> Result<Option<TokenInputSpec>, ModelError> {
    let key = "hidden_size_per_layer_input";
    if !facts.has_token_input {
        return Ok(None);
    }
    let size = config.u32(key, limits::WIDTH)?.ok_or_else(|| config.missing(key))?;
    if size == 0 {
        return Ok(None);
    }
    let key = "vocab_size_per_layer_input";
    let rows = config.required(key, limits::VOCABULARY)?;
    let vocab_size = config.required("vocab_size", limits::VOCABULARY)?;
    if rows != vocab_size {
        let supported = format!("{vocab_size}, which is vocab_size");
        return Err(config.unsupported(key, rows.to_string(), supported));
    }
    Ok(Some(TokenInputSpec { size }))
}

/// Layers that read the keys of others have a network twice as wide.
const WIDE: &str = "use_double_wide_mlp";

/// The nearest f32 to the square root.
pub(crate) fn root(number: u32) -> f32 {
    to_f32(f64::from(number).sqrt()).unwrap_or(1.0)
}

fn softcap(config: &Fields<'_>, facts: &Facts, key: &str) -> Result<Option<f32>, ModelError> {
    if facts.has(key) { config.positive_f32(key) } else { Ok(None) }
}

fn activation(config: &Fields<'_>, facts: &Facts) -> Result<Activation, ModelError> {
    let key = facts.activation;
    let name = config.string(key)?.ok_or_else(|| config.missing(key))?;
    if facts.clamps_gate {
        let limit = config.required_positive("swiglu_limit")?;
        return match name {
            "silu" => Ok(Activation::ClampedSwiglu { limit }),
            other => Err(config.unsupported(key, other, "silu")),
        };
    }
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(config.unsupported(key, other, "silu, gelu_pytorch_tanh")),
    }
}

#[cfg(test)]
mod tests;
