//! [1] How many log-probs one request may ask for: what its body and the core hold until they are sent.
//! Caller's thread.

use ingle_core::SamplingParams;

use crate::error::EngineError;
use crate::wire::{GenerationRequest, OutputFormat};

/// Counts a token's own log-prob and each of its alternatives: `tokens * (logprobs + 1)`.
pub(crate) struct EntryBudget {
    /// The client's field that asked for them.
    param: &'static str,
    entries_per_token: u64,
    /// Each choice repeats its prompt's.
    with_prompt: bool,
    /// Streams send the answer's as they come.
    with_answer: bool,
    of_prompts: u64,
    of_answers: u64,
}

impl EntryBudget {
    /// `sampling`: what the core is asked for, which is more than the client's if it has to choose the
    /// best answers.
    pub(crate) fn new(request: &GenerationRequest, sampling: &SamplingParams) -> Self {
        let output = &request.output;
        let param = match request.sampling.logprobs {
            None => "best_of",
            Some(1..) if output.format == OutputFormat::Chat => "top_logprobs",
            Some(_) => "logprobs",
        };
        Self {
            param,
            entries_per_token: sampling.log_probs.map_or(0, |top| u64::from(top) + 1),
            with_prompt: output.echo && request.sampling.logprobs.is_some(),
            with_answer: !output.stream && request.max_tokens != Some(0),
            of_prompts: 0,
            of_answers: 0,
        }
    }

    /// Adds the `n` choices of one prompt.
    ///
    /// # Errors
    /// `Refused` with both numbers if that is too much for one request.
    pub(crate) fn take(
        &mut self,
        prompt_len: usize,
        max_tokens: u32,
        n: u32,
    ) -> Result<(), EngineError> {
        let per_token = u64::from(n) * self.entries_per_token;
        if self.with_prompt {
            self.of_prompts = self.of_prompts.saturating_add(prompt_len as u64 * per_token);
        }
        if self.with_answer {
            self.of_answers = self.of_answers.saturating_add(u64::from(max_tokens) * per_token);
        }
        self.check("the echoed prompts have", self.of_prompts, MAX_OF_PROMPTS)?;
        self.check("the answers could have", self.of_answers, MAX_OF_ANSWERS)
    }

    fn check(&self, what: &str, entries: u64, most: u64) -> Result<(), EngineError> {
        if entries <= most {
            return Ok(());
        }
        let param = self.param;
        Err(EngineError::refused(
            param,
            format!(
                "{param}: {what} {entries} log-probs, at most {most} in one request; ask for fewer \
                 alternatives, prompts, choices or tokens"
            ),
        ))
    }
}

/// A body of 20 MB, which takes the engine thread 0.1 s to write. Evaluations ask for one alternative:
/// four prompts of 131,072 tokens, or 128 of 4,096.
pub(crate) const MAX_OF_PROMPTS: u64 = 1 << 20;
/// An answer may take the rest of the context where the client says nothing: 131,072 tokens pass with
/// all 20 alternatives. Few answers become as long as they may.
pub(crate) const MAX_OF_ANSWERS: u64 = 1 << 22;
