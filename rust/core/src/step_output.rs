//! [6] -> [7] The results of one step. Plain data.

use crate::{SlotId, StepId, TokenId};

/// Results of one step, one entry per row of its plan, in the plan's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// The step.
    pub id: StepId,
    /// One per row.
    pub rows: Vec<RowOutput>,
    /// Tokens of all rows, in row order; each row owns the next `num_tokens` of them.
    pub tokens: Vec<TokenId>,
}

/// Result of one row. Vectors are empty (and unallocated) unless the row wanted them.
#[derive(Clone, Debug, PartialEq)]
pub struct RowOutput {
    /// Which slot.
    pub slot: SlotId,
    /// Whether the numbers can be trusted.
    pub status: RowStatus,
    /// How many tokens of `StepOutput::tokens` are this row's: 0 for none wanted, 1 for a sample,
    /// more with speculation.
    pub num_tokens: u32,
    /// One per token, if asked for.
    pub log_probs: Vec<TokenLogProbs>,
    /// One per prompt position that has a next token, if asked for.
    pub prompt_log_probs: Vec<TokenLogProbs>,
    /// `[hidden_size]` f32, if asked for.
    pub pooled: Vec<f32>,
}

/// Whether a row's numbers can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStatus {
    /// They can.
    Ok,
    /// A logit was NaN or infinite; the row has no token.
    NotFinite,
}

/// Log-probabilities (natural logarithm, before any sampling parameter) around one token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProbs {
    /// The token that was taken.
    pub token: TokenId,
    /// Its log-probability.
    pub log_prob: f32,
    /// 1 for the most likely token of the vocabulary.
    pub rank: u32,
    /// The most likely tokens, best first; equal values by lowest id.
    pub top: Vec<(TokenId, f32)>,
}
