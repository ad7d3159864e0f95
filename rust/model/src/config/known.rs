//! The known fields of a config.json. A field that a family reads is checked by its reader. Listed
//! here are fields that change nothing, and fields that change nothing while they have their
//! neutral value. Any other field could change what the model computes and is refused by name.
//!
//! The lists come from the configuration classes of transformers 5.24 and from published files of
//! the families and their fine-tunes.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::{Biases, Facts, Fields, Wrapper};
use crate::QkNorm;
use crate::error::{ModelError, shown};

/// Errors: a field that is not known, or has a value that would change the result.
pub(super) fn refuse_unknown(config: &Fields<'_>, facts: &Facts) -> Result<(), ModelError> {
    for (key, value) in config.entries() {
        if let Some((_, name)) = SECOND_NAMES.iter().find(|(second, _)| *second == key)
            && let Some(first) = config.get(name).filter(|first| *first != value)
        {
            let reason = format!("{} contradicts {name}, which is {}", text(value), text(first));
            return Err(config.error(key, reason));
        }
        if key == "quantization_config" && !config.is_whole_file() {
            return Err(config.unsupported(key, "an object", "the field beside text_config"));
        }
        let is_read = READ.contains(&key) || facts.activation == key || facts.has(key);
        if let Some((_, json)) = facts.fixed.iter().find(|(name, _)| *name == key) {
            refuse_unless(config, facts, (key, value), json)?;
            continue;
        }
        if is_read || is_without_effect(key) || facts.ignores.contains(&key) {
            continue;
        }
        match NEUTRAL.iter().find(|(name, _)| *name == key) {
            Some((_, neutral)) if neutral.is(value, facts) => {}
            Some((_, neutral)) => {
                let supported = format!("{} in {}", neutral.name(facts), facts.model_type);
                return Err(config.unsupported(key, text(value), supported));
            }
            None => {
                let supported = format!("{} without this field", facts.model_type);
                return Err(config.unsupported(key, text(value), supported));
            }
        }
    }
    Ok(())
}

/// Errors: a value that is not `json`, or where that is a number a list that is empty or holds another one.
fn refuse_unless(
    config: &Fields<'_>,
    facts: &Facts,
    (key, value): (&str, &Value),
    json: &str,
) -> Result<(), ModelError> {
    let wanted: Value = serde_json::from_str(json).unwrap_or_default();
    let is_wanted = |value: &Value| {
        *value == wanted || value.as_f64().is_some_and(|value| Some(value) == wanted.as_f64())
    };
    let is_fixed = match value {
        Value::Array(list) => wanted.is_number() && !list.is_empty() && list.iter().all(is_wanted),
        other => is_wanted(other),
    };
    if is_fixed {
        return Ok(());
    }
    let supported = format!("{wanted} in {}", facts.model_type);
    Err(config.unsupported(key, text(value), supported))
}

/// Errors: a field beside `text_config` that is not known to concern images alone.
pub(super) fn refuse_unknown_around(
    config: &Fields<'_>,
    wrapper: &Wrapper,
) -> Result<(), ModelError> {
    for (key, value) in config.entries() {
        let is_known =
            READ_AROUND.contains(&key) || wrapper.ignores.contains(&key) || is_without_effect(key);
        if !is_known {
            let supported = format!("{} without this field", wrapper.model_type);
            return Err(config.unsupported(key, text(value), supported));
        }
    }
    Ok(())
}

/// A value for a message: short, and what a list or an object holds does not matter.
fn text(value: &Value) -> String {
    shown(&value.to_string())
}

fn is_without_effect(key: &str) -> bool {
    // transformers' and other programs' own notes; ids that only the tokenizer's side uses.
    key.starts_with('_')
        || key.starts_with("unsloth_")
        || key.ends_with("_token_id")
        || NO_EFFECT.contains(&key)
}

/// A value that switches a field off.
#[derive(Clone, Copy, Debug)]
enum Neutral {
    False,
    /// The biases of the family's class, which the file cannot change.
    OwnBiases,
    OwnNorms,
    Zero,
    One,
    Empty,
}

impl Neutral {
    fn is(self, value: &Value, facts: &Facts) -> bool {
        match self {
            Self::False => *value == Value::Bool(false),
            // Its tensors decide which biases exist.
            Self::OwnBiases => match value.as_bool() {
                Some(bias) => !bias || facts.biases == Biases::QueryKeyValue,
                None => false,
            },
            Self::OwnNorms => *value == Value::Bool(facts.qk_norm != QkNorm::None),
            Self::Zero => value.as_f64() == Some(0.0),
            Self::One => value.as_f64() == Some(1.0),
            Self::Empty => {
                value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(serde_json::Map::is_empty)
            }
        }
    }

    fn name(self, facts: &Facts) -> &'static str {
        match self {
            Self::OwnNorms if facts.qk_norm != QkNorm::None => "true",
            Self::False | Self::OwnBiases | Self::OwnNorms => "false",
            Self::Zero => "0",
            Self::One => "1",
            Self::Empty => "an empty list or object",
        }
    }
}

/// Fields that the readers of all families look at.
const READ: [&str; 24] = [
    "model_type",
    "architectures",
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "intermediate_size",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "layer_types",
    "tie_word_embeddings",
    "is_causal",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "compression_config",
];

/// Fields of a multimodal model's config.json that are looked at, or belong to the part that is left out.
const READ_AROUND: [&str; 9] = [
    "model_type",
    "architectures",
    "text_config",
    "vision_config",
    "tie_word_embeddings",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "compression_config",
];

/// Fields that change nothing in a family that does not read them, as long as they have this value.
const NEUTRAL: &[(&str, Neutral)] = &[
    ("use_bidirectional_attention", Neutral::False),
    ("attention_bias", Neutral::OwnBiases),
    ("qkv_bias", Neutral::OwnBiases),
    ("mlp_bias", Neutral::False),
    ("o_bias", Neutral::False),
    // Seed-OSS.
    ("attention_out_bias", Neutral::False),
    ("lm_head_bias", Neutral::False),
    ("use_bias", Neutral::False),
    ("bias", Neutral::False),
    ("use_sliding_window", Neutral::False),
    ("use_qk_norm", Neutral::OwnNorms),
    ("qk_layernorm", Neutral::False),
    ("rope_interleaved", Neutral::False),
    ("use_mrope", Neutral::False),
    ("use_parallel_residual", Neutral::False),
    ("alibi", Neutral::False),
    ("is_encoder_decoder", Neutral::False),
    ("add_cross_attention", Neutral::False),
    ("tie_encoder_decoder", Neutral::False),
    ("pruned_heads", Neutral::Empty),
    ("sparse_attention_config", Neutral::Empty),
    ("attn_logit_softcapping", Neutral::Zero),
    ("final_logit_softcapping", Neutral::Zero),
    ("logit_scale", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("num_experts", Neutral::Zero),
    ("num_local_experts", Neutral::Zero),
    ("num_experts_per_tok", Neutral::Zero),
    ("moe_intermediate_size", Neutral::Zero),
    ("n_routed_experts", Neutral::Zero),
    ("n_shared_experts", Neutral::Zero),
    ("num_shared_experts", Neutral::Zero),
    ("shared_expert_intermediate_size", Neutral::Zero),
    ("num_nextn_predict_layers", Neutral::Zero),
    // Phi-4-mini: every layer attends to everything, and the rope is not interpolated.
    ("full_attn_mod", Neutral::One),
    ("interpolate_factor", Neutral::One),
    ("mlp_only_layers", Neutral::Empty),
];

/// Second names that published files hold beside the field that the class reads.
const SECOND_NAMES: [(&str, &str); 4] = [
    ("sliding_window_size", "sliding_window"),
    ("hidden_act", "hidden_activation"),
    ("experts_per_token", "num_experts_per_tok"),
    ("num_mtp_layers", "num_nextn_predict_layers"),
];

/// Fields that change nothing that an answer depends on.
const NO_EFFECT: &[&str] = &[
    // Training.
    "initializer_range",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "classifier_dropout",
    "embd_pdrop",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "neftune_noise_alpha",
    "output_router_logits",
    "resid_pdrop",
    "residual_dropout",
    "router_aux_loss_coef",
    "router_jitter_noise",
    // Slices of the same products, added in another order.
    "pretraining_tp",
    "chunk_size_feed_forward",
    // What a call returns, and how it is computed.
    "attn_implementation",
    "cache_implementation",
    "flash_attn",
    "is_decoder",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "tf_legacy_loss",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention",
    "use_flash_attention_2",
    "use_flash_attn",
    "use_return_dict",
    "use_xformers",
    // Who wrote the file, with what. Code that the file points to is never looked at.
    "auto_map",
    "base_model",
    "description",
    "is_llama_config",
    "license",
    "model_name",
    "name_or_path",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "trust_remote_code",
    // Heads that these classes have not.
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    // Other names of the context; max_position_embeddings decides.
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    // Older places of fields of generation_config.json.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    // Where use_sliding_window is off, as in all published files, or layer_types says which layers slide.
    "max_window_layers",
    // Second names; see above.
    "sliding_window_size",
    "hidden_act",
    // Qwen2.5-1M: how other engines attend to prompts beyond 262,144 tokens; transformers does not.
    "dual_chunk_attention_config",
];
