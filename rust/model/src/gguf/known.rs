//! The known keys of an architecture. As with config.json, a key that is neither read nor known to
//! change nothing is refused by name: it could change what the model computes. Keys outside the
//! architecture's prefix (`general.`, `tokenizer.`) describe the file or belong to the tokenizer.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::GgufMetadata;
use crate::error::ModelError;
use crate::{EmbedsOnly, PoolingKind};

/// Errors: a key of the architecture that is not known, or whose value would change the result.
pub(super) fn refuse_unknown(
    metadata: &GgufMetadata,
    architecture: &str,
) -> Result<(), ModelError> {
    let file = metadata.file();
    if let Some(kind) = metadata.string("general.type")?.filter(|kind| *kind != "model") {
        return Err(ModelError::unsupported(file, "general.type", kind, "model"));
    }
    for key in metadata.keys() {
        let name = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.'));
        let Some(name) = name else { continue };
        if READ.contains(&name) || NO_EFFECT.contains(&name) {
            continue;
        }
        let neutral = NEUTRAL.iter().find(|(other, _)| *other == name).map(|(_, neutral)| *neutral);
        let value = metadata.number_or_bool(key);
        if neutral.is_some() && (value == Some(0.0) || value == neutral) {
            continue;
        }
        let shown = metadata.shown_value(key);
        let supported = format!("{architecture} without this key");
        return Err(ModelError::unsupported(file, key, shown, supported));
    }
    Ok(())
}

/// Why the model only makes embeddings, and their pooling if the file states it.
pub(super) fn embeddings(
    metadata: &GgufMetadata,
    architecture: &str,
) -> Result<(Option<EmbedsOnly>, Option<PoolingKind>), ModelError> {
    let key = format!("{architecture}.pooling_type");
    // Numbers of llama.cpp: 0 none, 1 mean, 2 first token, 3 last token, 4 a ranking head.
    let pooling = match metadata.u32(&key)? {
        None | Some(0) => None,
        Some(1) => Some(PoolingKind::Mean),
        Some(3) => Some(PoolingKind::Last),
        Some(other) => {
            let supported = "0 (none), 1 (mean), 3 (last token)";
            return Err(ModelError::unsupported(
                metadata.file(),
                &key,
                other.to_string(),
                supported,
            ));
        }
    };
    let causal = metadata.bool(&format!("{architecture}.attention.causal"))?.unwrap_or(true);
    let reason = match (causal, pooling) {
        (false, _) => Some(EmbedsOnly::Bidirectional),
        (true, Some(_)) => Some(EmbedsOnly::Pooled),
        (true, None) => None,
    };
    Ok((reason, pooling))
}

/// Keys that spec.rs and this file look at.
const READ: [&str; 24] = [
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
];

/// The order of q's and k's rows, which `rope` follows from the architecture; a note about training.
const NO_EFFECT: [&str; 2] = ["tensor_data_layout", "rope.scaling.finetuned"];

/// Keys that change nothing with this value; 0 and false never do.
const NEUTRAL: [(&str, f64); 21] = [
    ("attention.sliding_window", 0.0),
    ("attention.scale", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("expert_shared_count", 0.0),
    ("expert_shared_feed_forward_length", 0.0),
    ("expert_group_count", 1.0),
    ("expert_group_used_count", 1.0),
    ("expert_weights_scale", 1.0),
    // True, which ggml does in any case.
    ("expert_weights_norm", 1.0),
    // Softmax.
    ("expert_gating_func", 1.0),
    ("leading_dense_block_count", 0.0),
    ("rope.dimension_sections", 0.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("use_parallel_residual", 0.0),
];
