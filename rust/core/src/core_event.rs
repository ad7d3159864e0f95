//! [7] The core's events for the engine after a commit, an abort or a failure. Plain data.

use std::ops::Deref;

use crate::{FinishReason, Micros, RequestId, TenantId, TokenId, TokenLogProbs};

/// Something that happened to one request. In the order in which it happened; `Finished` comes last
/// and exactly once for every admitted request.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreEvent {
    /// The whole prompt is computed for the first time; the first token follows.
    PromptComputed {
        /// Which request.
        id: RequestId,
        /// Length of the prompt.
        num_prompt_tokens: u32,
        /// How many of them came from the prefix cache.
        num_cached_tokens: u32,
        /// From admission to the first step that held it.
        queue_wait: Micros,
    },
    /// Tokens that are certain. A stop id or end-of-text is among them.
    Tokens {
        /// Which request.
        id: RequestId,
        /// At least one.
        tokens: TokenList,
        /// One per token, if asked for.
        log_probs: Vec<TokenLogProbs>,
    },
    /// Log-probs of consecutive prompt tokens; each position from 1 on comes exactly once, in order.
    PromptLogProbs {
        /// Which request.
        id: RequestId,
        /// Position in the prompt of the first entry's token.
        first_position: u32,
        /// One per position.
        log_probs: Vec<TokenLogProbs>,
    },
    /// The embedding of the prompt.
    Pooled {
        /// Which request.
        id: RequestId,
        /// `[hidden_size]`
        values: Vec<f32>,
    },
    /// The request is over; its id may be forgotten.
    Finished {
        /// Which request.
        id: RequestId,
        /// Whose it was.
        tenant: TenantId,
        /// Why.
        reason: FinishReason,
        /// The stop id or end-of-text that ended it, the last of its tokens; its text is not output.
        stop_token: Option<TokenId>,
        /// Length of the prompt.
        num_prompt_tokens: u32,
        /// How many of them came from the prefix cache.
        num_cached_tokens: u32,
        /// Tokens reported by `Tokens` events.
        num_output_tokens: u32,
    },
}

/// A short list of tokens; the usual single one needs no allocation. Use it as a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenList {
    /// One token.
    One(TokenId),
    /// Any number.
    Many(Vec<TokenId>),
}

impl Deref for TokenList {
    type Target = [TokenId];

    fn deref(&self) -> &[TokenId] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Many(tokens) => tokens,
        }
    }
}
