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
    taken: u64,
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
            taken: 0,
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
        let prompt = if self.with_prompt { prompt_len as u64 } else { 0 };
        let answer = if self.with_answer { u64::from(max_tokens) } else { 0 };
        let entries = (prompt + answer) * u64::from(n) * self.entries_per_token;
        self.taken = self.taken.saturating_add(entries);
        if self.taken <= MAX_ENTRIES {
            return Ok(());
        }
        let Self { param, taken, .. } = self;
        Err(EngineError::refused(
            param,
            format!(
                "{param}: prompts and answers could have {taken} log-probs, at most {MAX_ENTRIES} a \
                 request; ask for fewer alternatives, prompts, choices or tokens"
            ),
        ))
    }
}

/// A body of 75 MB. One answer or echoed prompt of 131,072 tokens passes with all 20 alternatives, 16
/// such prompts with one, as evaluations ask for them.
pub(crate) const MAX_ENTRIES: u64 = 1 << 22;
