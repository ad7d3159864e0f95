//! [1] Sampling fields of a request, checked and completed with the model's defaults. Caller's thread.

use ingle_core::{SamplingParams, TokenId};

use crate::error::EngineError;
use crate::served::{SamplingDefaults, Served};
use crate::wire::{GenerationRequest, SamplingInput};

/// Parameters of choice 0; the others differ in `choice_index` alone.
pub(crate) fn sampling_params(
    request: &GenerationRequest,
    served: &Served,
) -> Result<SamplingParams, EngineError> {
    let input = &request.sampling;
    let defaults = &served.defaults;
    let params = SamplingParams {
        temperature: number(
            "temperature",
            input.temperature,
            defaults.temperature,
            |v| v >= 0.0,
            "at least 0",
        )?,
        top_k: top_k(input, defaults)?,
        top_p: number(
            "top_p",
            input.top_p,
            defaults.top_p,
            |v| v > 0.0 && v <= 1.0,
            "above 0 and at most 1",
        )?,
        min_p: number(
            "min_p",
            input.min_p,
            defaults.min_p,
            |v| (0.0..=1.0).contains(&v),
            "from 0 to 1",
        )?,
        repetition_penalty: number(
            "repetition_penalty",
            input.repetition_penalty,
            defaults.repetition_penalty,
            |v| (0.01..=100.0).contains(&v),
            "from 0.01 to 100",
        )?,
        presence_penalty: penalty("presence_penalty", input.presence_penalty)?,
        frequency_penalty: penalty("frequency_penalty", input.frequency_penalty)?,
        logit_bias: logit_bias(input, served)?,
        allowed_token_ids: allowed_token_ids(input, served)?,
        min_tokens: 0,
        min_tokens_banned: Vec::new(),
        seed: seed(input, served)?,
        choice_index: 0,
        log_probs: log_probs(input)?,
    };
    Ok(params)
}

/// Ids from a client, each of which the model can produce and the tokenizer can write.
pub(crate) fn token_ids(
    param: &str,
    ids: &[i64],
    served: &Served,
) -> Result<Vec<TokenId>, EngineError> {
    ids.iter().map(|&id| token_id(param, id, served)).collect()
}

fn token_id(param: &str, id: i64, served: &Served) -> Result<TokenId, EngineError> {
    match u32::try_from(id) {
        Ok(id) if id < served.vocab_size => Ok(TokenId(id)),
        _ => Err(EngineError::refused(
            param,
            format!("{param}: token id {id} is outside 0 to {}", served.vocab_size - 1),
        )),
    }
}

fn number(
    param: &str,
    value: Option<f64>,
    default: f32,
    is_valid: impl Fn(f64) -> bool,
    range: &str,
) -> Result<f32, EngineError> {
    let Some(value) = value else { return Ok(default) };
    // A number too large for f32 would become infinite, and one too small zero where zero is not valid.
    let mut rounded = value as f32;
    if rounded == 0.0 && value > 0.0 && !is_valid(0.0) {
        rounded = f32::MIN_POSITIVE;
    }
    if is_valid(value) && rounded.is_finite() {
        return Ok(rounded);
    }
    // Debug: a tiny number is not written out with all its zeros.
    Err(EngineError::refused(param, format!("{param} must be {range}, not {value:?}")))
}

fn penalty(param: &str, value: Option<f64>) -> Result<f32, EngineError> {
    number(param, value, 0.0, |v| (-2.0..=2.0).contains(&v), "from -2 to 2")
}

/// -1 and 0 are off, as is anything beyond the vocabulary.
fn top_k(input: &SamplingInput, defaults: &SamplingDefaults) -> Result<u32, EngineError> {
    match input.top_k {
        None => Ok(defaults.top_k),
        Some(-1) => Ok(0),
        Some(value) if value >= 0 => Ok(u32::try_from(value).unwrap_or(0)),
        Some(value) => Err(EngineError::refused(
            "top_k",
            format!("top_k must be -1 or 0 (off) or at least 1, not {value}"),
        )),
    }
}

fn logit_bias(input: &SamplingInput, served: &Served) -> Result<Vec<(TokenId, f32)>, EngineError> {
    if input.logit_bias.len() > MAX_LOGIT_BIAS {
        return Err(EngineError::refused(
            "logit_bias",
            format!("logit_bias: {} entries, at most {MAX_LOGIT_BIAS}", input.logit_bias.len()),
        ));
    }
    let mut biases = Vec::with_capacity(input.logit_bias.len());
    for (id, &bias) in &input.logit_bias {
        let id = id.parse::<i64>().map_err(|_| {
            EngineError::refused("logit_bias", format!("logit_bias: {id:?} is not a token id"))
        })?;
        let id = token_id("logit_bias", id, served)?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(EngineError::refused(
                "logit_bias",
                format!("logit_bias of token {id} must be from -100 to 100, not {bias}"),
            ));
        }
        biases.push((id, bias as f32));
    }
    biases.sort_by_key(|&(id, _)| id);
    if let Some(twice) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(EngineError::refused(
            "logit_bias",
            format!("logit_bias names token {} twice", twice[0].0),
        ));
    }
    Ok(biases)
}

fn allowed_token_ids(
    input: &SamplingInput,
    served: &Served,
) -> Result<Option<Vec<TokenId>>, EngineError> {
    let Some(ids) = &input.allowed_token_ids else { return Ok(None) };
    if ids.is_empty() {
        return Err(EngineError::refused(
            "allowed_token_ids",
            "allowed_token_ids is empty: no token could be chosen",
        ));
    }
    let mut ids = token_ids("allowed_token_ids", ids, served)?;
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}

/// Any 64-bit number, signed or not; 0 and negative ones are seeds like others.
fn seed(input: &SamplingInput, served: &Served) -> Result<u64, EngineError> {
    let Some(number) = &input.seed else { return Ok(served.seeds.next()) };
    number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)).ok_or_else(|| {
        EngineError::refused("seed", format!("seed must be a 64-bit integer, not {number}"))
    })
}

fn log_probs(input: &SamplingInput) -> Result<Option<u32>, EngineError> {
    match input.logprobs {
        None => Ok(None),
        Some(value @ 0..=MAX_LOG_PROBS) => Ok(Some(value as u32)),
        Some(value) => Err(EngineError::refused(
            "logprobs",
            format!("logprobs must be from 0 to {MAX_LOG_PROBS}, not {value}"),
        )),
    }
}

/// Alternatives a token; OpenAI's own limit for chat.
pub(crate) const MAX_LOG_PROBS: i64 = 20;
/// Entries; as many as the cuda sampler takes.
pub(crate) const MAX_LOGIT_BIAS: usize = 1024;
