//! [7] When a traced request passed its stages. Plain data.

/// Of a request that ended well, in microseconds since it was submitted, and its token counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// The first step with any of its tokens.
    pub scheduled_us: u64,
    /// Its first output token; `None` for embeddings.
    pub first_token_us: Option<u64>,
    /// Its last choice ended.
    pub end_us: u64,
    /// Each prompt counted once.
    pub prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u64,
    /// Of all choices.
    pub completion_tokens: u64,
    /// Of each choice, OpenAI's `finish_reason`.
    pub finish_reasons: Vec<&'static str>,
}
