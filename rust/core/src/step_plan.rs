//! [4] -> [5] What one step computes. Plain data without pointers or device addresses, so any executor,
//! on one device or several, can take the same plan.

use std::sync::Arc;

use crate::{BlockId, SamplingParams, SlotId, SnapshotId, StepId, TokenId};

/// One step, immutable once submitted. Closed slots are freed first, then slots are opened, then
/// the rows run. A slot or block that a step names lives until that step has completed. Where an
/// earlier step could not be submitted, a closed slot may never have been opened, and an opened one
/// may be open: it starts anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// Rises by one with each plan.
    pub id: StepId,
    /// Slots whose state the executor forgets before anything else.
    pub closed: Vec<SlotId>,
    /// Slots that start with this step; may name a slot of `closed`.
    pub opened: Vec<OpenedSlot>,
    /// At most one row a slot. Rows that decode come first.
    pub rows: Vec<PlanRow>,
    /// Copies of states, where layers keep one.
    pub states: StateCopies,
}

/// Copies between the states of slots and snapshots. What is restored is read before anything is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateCopies {
    /// An opened slot starts with this state: after its cached blocks' tokens.
    pub restored: Vec<StateCopy>,
    /// Taken while a row of the slot runs. No snapshot twice in a step.
    pub saved: Vec<StateCopy>,
}

/// One copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Whose state.
    pub slot: SlotId,
    /// The tokens that it has seen: those of positions below this one.
    pub end: u32,
    /// The copy's place.
    pub snapshot: SnapshotId,
}

impl StepPlan {
    /// Token rows of the forward pass: the sum over rows.
    #[must_use]
    pub fn num_scheduled_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.num_tokens as usize).sum()
    }
}

/// A request enters (or, after preemption, re-enters) a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenedSlot {
    /// Which slot.
    pub slot: SlotId,
    /// How its tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// The client's prompt: what the repetition penalty sees besides the output.
    pub prompt: Arc<[TokenId]>,
    /// Tokens generated before a preemption: penalties and the output position start after them.
    pub generated: Vec<TokenId>,
    /// Blocks that already hold the first tokens (prefix cache), start of the block tables: the same
    /// number for each group of layers, group by group. Where a group's window has passed a place, any
    /// block's number stands there, and the group's layers must not use what it holds.
    pub cached_blocks: Vec<BlockId>,
}

/// One request's part of a step: `num_tokens` consecutive positions from `start`.
///
/// ```text
/// positions [start, start + num_tokens)   KV of [0, start) is already in the slot's blocks
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRow {
    /// Which slot.
    pub slot: SlotId,
    /// Position of the first token; equals the number of tokens whose KV is computed or in flight.
    pub start: u32,
    /// Number of tokens, at least 1; exactly 1 if the source is `LastSampled`.
    pub num_tokens: u32,
    /// Where the token ids come from.
    pub source: TokenSource,
    /// Appended to the slot's block tables before the row runs: the same number for each group of layers,
    /// group by group. In a table, places that the group's window has passed
    /// (`KvGroups::first_read` of `start`) name blocks that may belong to others now.
    pub new_blocks: Vec<BlockId>,
    /// What comes back.
    pub wants: Wants,
}

/// Where a row's token ids come from.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenSource {
    /// Ids known to the host, `num_tokens` of them.
    Host(Vec<TokenId>),
    /// The token that the slot's previous row sampled; the host may not know it yet.
    LastSampled,
}

/// What a row returns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wants {
    /// Sample a token after the row's last position.
    pub sample: SampleMode,
    /// Log-probs of the prompt's tokens, top k: entry i is for the token at position
    /// `start + i + 1` given everything up to `start + i`. The target ids are the row's own ids
    /// shifted by one; the id after the last is in `next_prompt_token`, absent at the prompt's end.
    pub prompt_log_probs: Option<u32>,
    /// The prompt token that follows this row's last one, only if `prompt_log_probs` is set.
    pub next_prompt_token: Option<TokenId>,
    /// The pooled final hidden state. `Mean` accumulates over the rows of one prompt; only the last
    /// row of the prompt sets this with `is_last`.
    pub pooled: Option<PooledRow>,
}

/// A row of an embedding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledRow {
    /// How hidden states become one vector.
    pub pooling: Pooling,
    /// The prompt ends with this row: return the vector.
    pub is_last: bool,
}

/// How hidden states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all positions.
    Mean,
    /// The last position's.
    Last,
}

/// When a row's sampler runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleMode {
    /// No token is wanted: a prefill chunk that does not end the prompt.
    #[default]
    None,
    /// With the step.
    Now,
    /// When `Executor::sample` brings the mask: the forward pass does not wait, the token does.
    Late,
}

/// The tokens that a late-sampled row may choose.
#[derive(Clone, Debug, PartialEq)]
pub struct RowMask {
    /// Which slot.
    pub slot: SlotId,
    /// One bit a token id, lowest bit first; `ceil(vocab_size / 32)` words.
    pub allowed: Arc<[u32]>,
}
