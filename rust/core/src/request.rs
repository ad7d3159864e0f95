//! [3] One request as the core sees it: token ids in, token ids out. Plain data, any thread.

use std::sync::Arc;

use crate::{Pooling, RequestId, SamplingParams, TenantId, TokenId};

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestKind {
    /// Sample tokens until a stop rule ends the request.
    Generate,
    /// One pooled final hidden state of the prompt; ends after prefill.
    Embed(Pooling),
}

/// When the core itself ends a request; stop strings are the caller's (`Scheduler::finish`).
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub struct StopRules {
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Below this many generated tokens no token id ends the request.
    pub min_tokens: u32,
    /// Ids that end the request: the model's and the client's.
    pub end_token_ids: Arc<[TokenId]>,
}

/// A request that has been validated and tokenised.
///
/// What every step reads stands in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct NewRequest {
    /// Unique; a second use is our own mistake and panics.
    pub id: RequestId,
    /// Generate or embed.
    pub kind: RequestKind,
    /// Every sample waits for a mask (`Executor::sample`): grammars.
    pub late_sampled: bool,
    /// When it ends.
    pub stop: StopRules,
    /// At least one token.
    pub prompt: Arc<[TokenId]>,
    /// How tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// Lower runs first.
    pub priority: i32,
    /// Fairness group.
    pub tenant: TenantId,
    /// Requests share cached prefixes only if this is equal (tenant and client salt hashed together).
    pub cache_salt: u64,
    /// Chain hashes of the prompt's full blocks, if the caller has them (`ChainHasher::of_prompt` with
    /// this salt and the scheduler's secret); else they are computed when they are needed.
    pub block_hashes: Option<Arc<[u128]>>,
    /// Log-probs of the prompt's own tokens, as in `SamplingParams::log_probs`; takes no cache hit.
    pub prompt_log_probs: Option<u32>,
    /// For choice 1 and up of `n`: wait until this request has submitted its prompt, then share its
    /// full prompt blocks, also where prefix caching is off.
    pub leader: Option<RequestId>,
}

/// Why a request ended. Every request ends exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id, end-of-text or a stop string; an embedding that is complete.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
    /// The client went away or asked for it.
    Abort,
    /// It failed; other requests go on.
    Error(RequestFault),
}

/// What went wrong with one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// The model produced NaN or infinity for this request.
    #[error("the model's output was not finite")]
    NotFinite,
    /// The step that held it failed.
    #[error("the step failed: {0}")]
    StepFailed(String),
    /// The device is lost and the worker is about to exit.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
}
