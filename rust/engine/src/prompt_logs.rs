//! [1] [7] Log-probs of a prompt's own tokens: who reads them, and how many alternatives. The core
//! computes them once, for the first choice of each prompt.

use ingle_core::SamplingParams;

use crate::error::EngineError;
use crate::request_limits::MAX_LOG_PROBS;
use crate::sampling::log_probs_allowed;
use crate::wire::{GenerationRequest, OutputFormat};

/// Alternatives of each prompt token, for each of the two possible readers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptLogs {
    /// An echo, in front of the answer's own.
    pub(crate) echoed: Option<u32>,
    /// `prompt_logprobs`, beside the answer.
    pub(crate) separate: Option<u32>,
}

impl PromptLogs {
    /// # Errors
    /// `Refused` for a number out of range, and where the answer is no whole body.
    pub(crate) fn new(
        request: &GenerationRequest,
        sampling: &SamplingParams,
    ) -> Result<Self, EngineError> {
        let output = &request.output;
        let is_echoed = output.echo && request.sampling.logprobs.is_some();
        let separate = match request.sampling.prompt_logprobs {
            None => None,
            Some(_) if output.stream => {
                return Err(refused("prompt_logprobs: not available in a stream"));
            }
            Some(_) if !matches!(output.format, OutputFormat::Completion | OutputFormat::Chat) => {
                return Err(refused("prompt_logprobs: only allowed for completions and chats"));
            }
            Some(top @ 0..=MAX_LOG_PROBS) => Some(top as u32),
            Some(top) => {
                let allowed = log_probs_allowed();
                return Err(EngineError::not_allowed("prompt_logprobs", allowed, top));
            }
        };
        Ok(Self { echoed: sampling.log_probs.filter(|_| is_echoed), separate })
    }

    /// What the core is asked for.
    pub(crate) fn computed(self) -> Option<u32> {
        self.echoed.max(self.separate)
    }

    /// Log-probs that each choice holds for a prompt token.
    pub(crate) fn entries_per_token(self) -> u64 {
        [self.echoed, self.separate].into_iter().flatten().map(|top| u64::from(top) + 1).sum()
    }
}

fn refused(message: &str) -> EngineError {
    EngineError::refused("prompt_logprobs", message)
}
