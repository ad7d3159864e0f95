//! [5] The contract with a device: it takes a plan and returns an output. Both are plain data without
//! pointers or device addresses, so any executor, on one device or several, can take the same plan.

use std::sync::Arc;

use crate::{
    BlockId, ExecutorShape, KvMemory, SamplingParams, SleepLevel, SlotId, SnapshotId, StepId,
    TokenId,
};

/// Something that runs plans, strictly in order.
///
/// `submit` and `sample` are called by the engine thread only and never block. Each submitted step
/// brings exactly one `StepCompletion` to the `CompletionSink` given at construction, in order of
/// submission, also when it failed. Dropping the executor waits for its threads.
pub trait Executor: Send {
    /// The sizes it was built with.
    fn shape(&self) -> ExecutorShape;

    /// Context tokens whose keys and values take as long to read as the weights; absent where both are
    /// the served model's and lie in the same memory.
    fn weight_tokens(&self) -> Option<u32> {
        None
    }

    /// Starts a step behind those already submitted.
    ///
    /// # Errors
    /// `ExecutorError` if the step cannot be started; then it brings no completion.
    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError>;

    /// Starts the sampler of the step's rows with `SampleMode::Late`; all of them at once.
    ///
    /// # Errors
    /// `ExecutorError` if the sampler cannot be started; then the step brings no completion.
    fn sample(&mut self, step: StepId, masks: Vec<RowMask>) -> Result<(), ExecutorError>;

    /// How deep this executor can sleep.
    fn deepest_sleep(&self) -> SleepLevel {
        SleepLevel::Pause
    }

    /// Starts to give memory back, as much as `level` says, and calls `done` once that is over. Never blocks.
    ///
    /// No step is in flight, no slot is open that the next plan does not close, and no step comes before `wake` has
    /// ended well. The contents of KV blocks are lost. `level` is at most `deepest_sleep`; an executor that sleeps
    /// already may be asked to sleep deeper. After `ExecutorError::Unchanged` it is as it was.
    fn sleep(&mut self, level: SleepLevel, done: RestSink) {
        let _ = level;
        done(Ok(()));
    }

    /// Starts to take back all that `sleep` gave, at the same sizes, and calls `done` once steps can run. Never
    /// blocks. After `ExecutorError::Unchanged` it sleeps on, and may be asked again.
    fn wake(&mut self, done: RestSink) {
        done(Ok(()));
    }

    /// The sizes of a KV pool that can grow and shrink; `None` if it cannot.
    fn kv_memory(&self) -> Option<KvMemory> {
        None
    }

    /// Starts to give the KV pool `bytes` and calls `done` with what it then has: at least the whole blocks of `bytes` if
    /// it has shrunk, perhaps fewer if it has grown. Steps may be in flight; none names a block beyond the smaller size.
    fn resize_kv(&mut self, bytes: u64, done: ResizeSink) {
        let _ = bytes;
        done(Err(ExecutorError::Unchanged("the KV pool has a fixed size".to_owned())));
    }
}

/// Takes the end of a `sleep` or `wake`, once, from any thread; must not block for long.
pub type RestSink = Box<dyn FnOnce(Result<(), ExecutorError>) + Send>;

/// The same for `resize_kv`.
pub type ResizeSink = Box<dyn FnOnce(Result<u64, ExecutorError>) + Send>;

/// Takes completions, from any thread of the executor; must not block for long.
pub type CompletionSink = Arc<dyn Fn(StepCompletion) + Send + Sync>;

/// The end of one step.
#[derive(Clone, Debug)]
pub struct StepCompletion {
    /// Which step.
    pub id: StepId,
    /// What it computed.
    pub result: Result<StepOutput, ExecutorError>,
}

/// Why an executor could not run a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// This step failed and its rows are lost; later steps can run.
    #[error("step failed: {0}")]
    StepFailed(String),
    /// Nothing can run any more: the worker must exit.
    #[error("device lost: {0}")]
    DeviceLost(String),
    /// It could not fall asleep or wake up, and is as it was.
    #[error("{0}")]
    Unchanged(String),
}

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
