//! [1] Limits on prompt and answer lengths: those of the request against context and KV pool. Caller's
//! thread. Every refusal contains the numbers.

use ingle_core::AdmitError;

use crate::error::EngineError;
use crate::prompt::EncodedPrompt;
use crate::served::Served;
use crate::wire::{GenerationRequest, OutputFormat};

/// Tokens below which nothing ends a choice but its limit.
pub(crate) fn min_tokens(request: &GenerationRequest) -> Result<u32, EngineError> {
    // A negative max_tokens is refused under its own name.
    let most = request.max_tokens.filter(|&max| max >= 0).unwrap_or(i64::from(u32::MAX));
    match u32::try_from(request.min_tokens) {
        Ok(min) if i64::from(min) <= most => Ok(min),
        _ => Err(EngineError::not_allowed(
            "min_tokens",
            "a whole number from 0 to max_tokens",
            request.min_tokens,
        )),
    }
}

/// Keeps the last tokens only, if the client asked for it.
pub(crate) fn truncate(
    encoded: &mut EncodedPrompt,
    request: &GenerationRequest,
    served: &Served,
) -> Result<(), EngineError> {
    let keep = match request.truncate_prompt_tokens {
        None => return Ok(()),
        // The prompt may take what the answer, or at least one token of it, leaves.
        Some(-1) => i64::from(served.max_model_len) - request.max_tokens.unwrap_or(1).max(1),
        Some(keep) => keep,
    };
    if keep < 1 {
        return Err(EngineError::refused(
            "truncate_prompt_tokens",
            format!("truncate_prompt_tokens: must be -1 or at least 1; it leaves {keep} tokens"),
        ));
    }
    let surplus = encoded.ids.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    encoded.ids.drain(..surplus);
    Ok(())
}

/// Tokens to generate, checked against context and KV pool; 1 in place of 0, and then dropped.
pub(crate) fn max_tokens(
    encoded: &EncodedPrompt,
    request: &GenerationRequest,
    served: &Served,
) -> Result<u32, EngineError> {
    let len = encoded.ids.len();
    if request.output.format == OutputFormat::Embedding {
        // The core takes no less than 1; no token is generated.
        let fits = served.limits.check(len, 0);
        return fits.map(|()| 1).map_err(|error| {
            let message = match error {
                AdmitError::TooLong { max_model_len, .. } => format!(
                    "the {} has {len} tokens, more than the context length of {max_model_len}",
                    encoded.param
                ),
                error => format!("{}: {error}", encoded.param),
            };
            EngineError::too_long(encoded.param, message)
        });
    }
    let room = (served.max_model_len as usize).saturating_sub(len);
    if room == 0 {
        return Err(EngineError::too_long(
            encoded.param,
            format!(
                "This model's maximum context length is {} tokens, and at least one must be left for \
                 the answer, but {} has {len} tokens",
                served.max_model_len, encoded.param
            ),
        ));
    }
    let asked = match request.max_tokens {
        None => room as u32,
        Some(0) => 1,
        Some(asked) if asked < 0 => {
            return Err(EngineError::not_allowed("max_tokens", "at least 0", asked));
        }
        Some(asked) => u32::try_from(asked).unwrap_or(u32::MAX),
    };
    let result = served.limits.check(len, asked);
    // Without max_tokens an answer may fill the context, and so also the pool.
    if let (Err(AdmitError::NeverFits { .. }), None) = (&result, request.max_tokens) {
        let fits = (served.limits.pool_tokens() as usize + 1).saturating_sub(len);
        if fits > 0 {
            return Ok(fits as u32);
        }
    }
    match result {
        Ok(()) => Ok(asked),
        Err(AdmitError::TooLong { .. }) => Err(EngineError::too_long(
            "max_tokens",
            format!(
                "This model's maximum context length is {} tokens, but {} tokens were requested ({len} \
                 in {}, {asked} for the answer)",
                served.max_model_len,
                len + asked as usize,
                encoded.param
            ),
        )),
        Err(error) => Err(EngineError::too_long(encoded.param, error.to_string())),
    }
}
