//! [5] The contract between the engine thread and a device.

use std::sync::Arc;

use crate::{KvGroups, Micros, RowMask, StepId, StepOutput, StepPlan};

/// Sizes that an executor fixed at start; the scheduler is built from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorShape {
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// Groups of layers that keep the same part of a sequence. A block belongs to one of them at a time.
    pub kv_groups: KvGroups,
    /// Layers keep a state of a slot's whole sequence besides: a request can begin with blocks of another one
    /// only where there is a copy of the state after their tokens.
    pub keeps_state: bool,
    /// Room for such copies; without any, requests share nothing.
    pub num_snapshots: u32,
    /// Slots; more than the rows of a step, since leaving requests still hold theirs.
    pub num_slots: u32,
    /// Most rows of one step.
    pub max_num_seqs: u32,
    /// Most token rows of one step.
    pub max_num_batched_tokens: u32,
    /// Steps that may be submitted and not yet completed: 1, or 2 to stay one step ahead.
    pub max_steps_in_flight: u32,
    /// The batcher keeps the token rows of a step just under a multiple of this; 1 for no preference.
    pub row_tile: u32,
    /// Token rows of a step beside requests that decode, up to which a prompt token costs least;
    /// at least `max_num_batched_tokens` for no preference.
    pub steady_rows: u32,
    /// Most token rows of a step beside requests that decode, however late prompts are.
    pub busy_rows: u32,
    /// About how long a step of `busy_rows` holds those requests up. A prompt that has waited no longer gets what is
    /// cheap.
    pub pause: Micros,
    /// Token rows that one of several active tenants may have in a step: about as many as are computed while the
    /// weights are read.
    pub tenant_rows: u32,
    /// Ids of a vocabulary of this size come back; masks have one bit for each.
    pub vocab_size: u32,
}

impl ExecutorShape {
    /// Most requests that run: a step must hold a row for each one that decodes.
    pub(crate) fn max_running(&self) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens)
    }
}

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
}

/// What an executor gives back while it sleeps: each level includes those before it. vLLM numbers them so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SleepLevel {
    /// Nothing.
    Pause = 0,
    /// KV blocks, and weights on the device. A device other than the host may keep a copy of them in host memory.
    Offload = 1,
    /// That copy too.
    Discard = 2,
}

impl SleepLevel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pause, Self::Offload, Self::Discard];
}

/// Takes the end of a `sleep` or `wake`, once, from any thread; must not block for long.
pub type RestSink = Box<dyn FnOnce(Result<(), ExecutorError>) + Send>;

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
