//! [1] A request's sampling fields, checked and completed with the model's defaults. Caller's thread.

use ingle_core::{SAMPLING_FIELDS, SamplingParams, TokenId};
use serde_json::json;

use crate::error::EngineError;
use crate::request_limits::{MAX_BIAS, MAX_LOG_PROBS, MAX_LOGIT_BIAS};
use crate::sampling_input::SamplingInput;
use crate::served::Served;
use crate::wire::GenerationRequest;

/// JSON: the plain sampling fields, for the front end's request types and documents.
#[must_use]
pub fn sampling_fields() -> Vec<u8> {
    let fields: Vec<serde_json::Value> = SAMPLING_FIELDS
        .iter()
        .map(|field| {
            json!({
                "name": field.name,
                "about": field.about(),
                "is_whole": field.is_whole,
                "least": field.range.least,
                "excludes_least": field.range.excludes_least,
                "most": field.range.most,
                "allowed": field.allowed(),
                "default": field.default,
                "off": field.off,
                "from_model": field.from_model,
            })
        })
        .collect();
    serde_json::Value::from(fields).to_string().into_bytes()
}

/// Parameters of choice 0; the others differ in `choice_index` alone.
pub(crate) fn sampling_params(
    request: &GenerationRequest,
    served: &Served,
) -> Result<SamplingParams, EngineError> {
    let input = &request.sampling;
    let mut params = served.defaults.clone();
    for (field, number) in &input.plain {
        let value = number.as_f64().unwrap_or(f64::NAN);
        field
            .put(&mut params, value, number)
            .map_err(|message| EngineError::refused(field.name, message))?;
    }
    params.logit_bias = logit_bias(input, served)?;
    params.allowed_token_ids = allowed_token_ids(input, served)?;
    params.seed = seed(input, served)?;
    params.log_probs = log_probs(input)?;
    Ok(params)
}

/// Ids from a client, each of which the model can produce and the tokenizer can write.
pub(crate) fn token_ids(
    param: &str,
    ids: &[i64],
    served: &Served,
) -> Result<Vec<TokenId>, EngineError> {
    let entries = ids.iter().enumerate();
    entries.map(|(i, &id)| token_id(|| format!("{param}[{i}]"), id, served)).collect()
}

fn token_id(
    place: impl FnOnce() -> String,
    id: i64,
    served: &Served,
) -> Result<TokenId, EngineError> {
    match u32::try_from(id) {
        Ok(id) if id < served.vocab_size => Ok(TokenId(id)),
        _ => Err(outside_the_vocabulary(&place(), id, served.vocab_size)),
    }
}

/// The refusal of an id at `place`, as `prompt[3]`.
pub(crate) fn outside_the_vocabulary(place: &str, id: i64, vocab_size: u32) -> EngineError {
    let message = format!("{place}: token id {id} is outside the vocabulary of {vocab_size}");
    EngineError::refused(place, message)
}

fn logit_bias(input: &SamplingInput, served: &Served) -> Result<Vec<(TokenId, f32)>, EngineError> {
    if input.logit_bias.len() > MAX_LOGIT_BIAS {
        return Err(EngineError::not_allowed(
            "logit_bias",
            format_args!("an object of at most {MAX_LOGIT_BIAS} entries"),
            format_args!("{} entries", input.logit_bias.len()),
        ));
    }
    let mut biases = Vec::with_capacity(input.logit_bias.len());
    for (id, &bias) in &input.logit_bias {
        let id = id.parse::<i64>().map_err(|_| {
            EngineError::refused("logit_bias", format!("logit_bias: {id:?} is not a token id"))
        })?;
        let id = token_id(|| "logit_bias".to_owned(), id, served)?;
        if !(-MAX_BIAS..=MAX_BIAS).contains(&bias) {
            return Err(EngineError::refused(
                "logit_bias",
                format!(
                    "logit_bias: the value of \"{id}\" must be a number from -{MAX_BIAS} to {MAX_BIAS}, not {bias}"
                ),
            ));
        }
        biases.push((id, bias as f32));
    }
    biases.sort_by_key(|&(id, _)| id);
    if let Some(twice) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(EngineError::refused(
            "logit_bias",
            format!("logit_bias: duplicate token id {}", twice[0].0),
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
            "allowed_token_ids: must not be empty",
        ));
    }
    let mut ids = token_ids("allowed_token_ids", ids, served)?;
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}

/// 0 and negative numbers are seeds like others.
fn seed(input: &SamplingInput, served: &Served) -> Result<u64, EngineError> {
    let Some(number) = &input.seed else { return Ok(served.seeds.next()) };
    number.as_i64().map(i64::cast_unsigned).ok_or_else(|| {
        let allowed = format_args!("a whole number from {} to {}", i64::MIN, i64::MAX);
        EngineError::not_allowed("seed", allowed, number)
    })
}

fn log_probs(input: &SamplingInput) -> Result<Option<u32>, EngineError> {
    match input.logprobs {
        None => Ok(None),
        Some(value @ 0..=MAX_LOG_PROBS) => Ok(Some(value as u32)),
        Some(value) => Err(EngineError::not_allowed("logprobs", log_probs_allowed(), value)),
    }
}

/// What an error says of a number of alternatives.
pub(crate) fn log_probs_allowed() -> String {
    format!("a whole number from 0 to {MAX_LOG_PROBS}")
}
