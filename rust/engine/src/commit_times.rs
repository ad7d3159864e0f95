//! [7] Reports when a traced request passed its stages, as an event before its end. Engine thread.

use ingle_core::Micros;

use crate::choice::Choice;
use crate::commit::Committer;
use crate::outbox::{Event, Payload};
use crate::times::Times;

impl Committer {
    /// Publishes `Times` of a request whose last choice has just ended, if its trace asked for that.
    pub(crate) fn report_times(&mut self, key: u64) {
        let Some(stream) = self.streams.get(&key) else { return };
        if !stream.trace.as_ref().is_some_and(|trace| trace.report) {
            return;
        }
        let since = |at: Micros| at.0.saturating_sub(stream.submitted_at.0);
        let reason = |choice: &Choice| choice.finish.as_ref().map(|finish| finish.reason);
        let choices = || stream.choices.iter();
        let times = Times {
            scheduled_us: choices().map(|choice| since(choice.scheduled_at)).min().unwrap_or(0),
            first_token_us: choices().filter_map(|choice| choice.first_token_at).map(since).min(),
            end_us: since(self.now),
            prompt_tokens: stream.usage.prompt_tokens,
            cached_tokens: stream.usage.cached_tokens,
            completion_tokens: stream.usage.completion_tokens,
            finish_reasons: choices().filter_map(reason).collect(),
        };
        self.events.push(Event { key, payload: Payload::Times(Box::new(times)) });
    }
}
