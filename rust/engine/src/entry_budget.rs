//! [1] Limits the log-probs of one request, which its body and the core hold until they are sent.
//! Caller's thread.

use ingle_core::SamplingParams;

use crate::error::EngineError;
use crate::prompt_logs::PromptLogs;
use crate::wire::{GenerationRequest, OutputFormat};

/// Counts a token's own log-prob and each of its alternatives: `tokens * (logprobs + 1)`.
pub(crate) struct EntryBudget {
    /// The client's field that asked for them.
    param: &'static str,
    /// The same for the prompts' own.
    prompt_param: &'static str,
    entries_per_token: u64,
    /// Each choice repeats its prompt's.
    entries_per_prompt_token: u64,
    /// Streams send the answer's as they come.
    with_answer: bool,
    of_prompts: u64,
    of_answers: u64,
}

impl EntryBudget {
    /// `sampling`: what the core is asked for, which is more than the client's if it has to choose the
    /// best answers.
    pub(crate) fn new(
        request: &GenerationRequest,
        sampling: &SamplingParams,
        prompt_logs: PromptLogs,
    ) -> Self {
        let output = &request.output;
        let param = match request.sampling.logprobs {
            None => "best_of",
            Some(1..) if output.format == OutputFormat::Chat => "top_logprobs",
            Some(_) => "logprobs",
        };
        let is_separate = prompt_logs.separate > prompt_logs.echoed;
        Self {
            param,
            prompt_param: if is_separate { "prompt_logprobs" } else { param },
            entries_per_token: sampling.log_probs.map_or(0, |top| u64::from(top) + 1),
            entries_per_prompt_token: prompt_logs.entries_per_token(),
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
        let n = u64::from(n);
        let of_prompt = prompt_len as u64 * n * self.entries_per_prompt_token;
        self.of_prompts = self.of_prompts.saturating_add(of_prompt);
        if self.with_answer {
            let of_answer = u64::from(max_tokens) * n * self.entries_per_token;
            self.of_answers = self.of_answers.saturating_add(of_answer);
        }
        check(self.prompt_param, "the prompts have", self.of_prompts, MAX_OF_PROMPTS)?;
        check(self.param, "the answers could have", self.of_answers, MAX_OF_ANSWERS)
    }
}

fn check(param: &str, what: &str, entries: u64, most: u64) -> Result<(), EngineError> {
    if entries <= most {
        return Ok(());
    }
    Err(EngineError::refused(
        param,
        format!(
            "{param}: {what} {entries} log-probs, at most {most} in one request; ask for fewer \
             alternatives, prompts, choices or tokens"
        ),
    ))
}

/// A body of 20 MB, which takes the engine thread 0.1 s to write. Evaluations ask for one alternative:
/// four prompts of 131,072 tokens, or 128 of 4,096.
pub(crate) const MAX_OF_PROMPTS: u64 = 1 << 20;
/// An answer may take the rest of the context where the client says nothing: 131,072 tokens pass with
/// all 20 alternatives. Few answers become as long as they may.
pub(crate) const MAX_OF_ANSWERS: u64 = 1 << 22;
