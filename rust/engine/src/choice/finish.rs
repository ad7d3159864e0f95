//! [7] The end of a choice: what was held back comes out, and the reason is decided. Engine thread.

use ingle_core::TokenId;

use super::Choice;
use crate::outbox::{Finish, StopCause};

impl Choice {
    /// The core ended the request; `last` is its last token if that was taken by `push`. Text that
    /// the stop matcher holds back comes out. The first bytes of a character whose end never came are
    /// dropped: they are no text, and log-probs show them.
    pub(crate) fn end(&mut self, reason: &'static str, last: Option<u32>) {
        if self.finish.is_some() {
            return;
        }
        if self.rules.prompt_only {
            return self.finish_with("length", StopCause::None);
        }
        if let Some(matcher) = &mut self.matcher {
            matcher.finish(&mut self.text);
        }
        let stop = match last {
            Some(id) if reason == "stop" && self.shared_rules.stop_token_ids.contains(&id) => {
                StopCause::Token(id)
            }
            _ => StopCause::None,
        };
        self.finish_with(reason, stop);
    }

    /// Every stage is flushed in order; calls are a reason of their own where the model ended by itself:
    /// what the client stopped may be half a call.
    pub(super) fn finish_with(&mut self, mut reason: &'static str, stop: StopCause) {
        let by_itself = reason == "stop"
            && match &stop {
                StopCause::None => true,
                StopCause::Token(id) => self.shared_rules.eos_token_ids.contains(&TokenId(*id)),
                StopCause::Text(_) => false,
            };
        self.parse();
        if let Some(parser) = &mut self.parser {
            parser.finish();
            if by_itself && parser.num_calls() > 0 {
                reason = "tool_calls";
            }
        }
        self.finish = Some(Box::new(Finish { reason, stop }));
    }

    /// Of the answer's tokens, if log-probs are kept and none was shown; without a token it is 0:
    /// nothing is likelier.
    pub(crate) fn mean_log_prob(&self) -> f32 {
        // The entries of an echoed prompt come first.
        let skipped = self.log_probs.len().saturating_sub(self.num_output_tokens as usize);
        let answer = self.log_probs.get(skipped..).unwrap_or_default();
        if answer.is_empty() {
            return 0.0;
        }
        answer.iter().filter_map(|entry| entry.log_prob).sum::<f32>() / answer.len() as f32
    }
}
