//! The limits of a request's lists and numbers, each once: for the checks, and for the front end's types, errors and
//! documents. Those of plain sampling fields are in `SAMPLING_FIELDS`. Plain data.

use ingle_text::{MAX_BAD_WORD_CHARS, MAX_BAD_WORDS, MAX_GUIDED_CHOICES};
use serde_json::json;

/// Answers for a prompt; OpenAI's limit.
pub(crate) const MAX_N: i64 = 128;
/// Stop strings, and characters of one.
pub(crate) const MAX_STOPS: usize = 64;
pub(crate) const MAX_STOP_CHARS: usize = 1024;
/// Token ids that end an answer.
pub(crate) const MAX_STOP_TOKEN_IDS: usize = 128;
/// Alternatives a token; OpenAI's own limit for chat.
pub(crate) const MAX_LOG_PROBS: i64 = 20;
/// Entries; as many as a device's sampler takes.
pub(crate) const MAX_LOGIT_BIAS: usize = 1024;
/// Either way.
pub(crate) const MAX_BIAS: f64 = 100.0;
/// Token ids of one list, and numbers of a body.
pub(crate) const MAX_IDS: usize = 1 << 21;

/// JSON: all of them, by name.
#[must_use]
pub fn request_limits() -> Vec<u8> {
    let limits = json!({
        "n": MAX_N,
        "stops": MAX_STOPS,
        "stop_chars": MAX_STOP_CHARS,
        "stop_token_ids": MAX_STOP_TOKEN_IDS,
        "logprobs": MAX_LOG_PROBS,
        "logit_bias": MAX_LOGIT_BIAS,
        "bias": MAX_BIAS,
        "ids": MAX_IDS,
        "bad_words": MAX_BAD_WORDS,
        "bad_word_chars": MAX_BAD_WORD_CHARS,
        "choices": MAX_GUIDED_CHOICES,
    });
    limits.to_string().into_bytes()
}
