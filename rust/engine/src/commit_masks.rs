//! [6] [7] The masks of choices under a grammar or bad words: requested when tokens arrive, stored when
//! workers finish. Engine thread only.

use std::sync::Arc;

use ingle_core::{CoreEvent, FinishReason, RequestId, Scheduler};
use ingle_text::GrammarError;

use crate::choice_mask::{GoesOn, MaskJob, MaskResult};
use crate::commit::Committer;
use crate::submission::{request_id, split_id};

impl Committer {
    /// A client request has been admitted: constrained choices need their first masks.
    pub(crate) fn want_masks(&mut self, key: u64) {
        let Some(stream) = self.streams.get(&key) else { return };
        for (at, choice) in stream.choices.iter().enumerate() {
            if choice.constraint.is_some() && !choice.is_over {
                self.mask_wanted.push(request_id(key, at));
            }
        }
    }

    /// Collects the work of all choices that need a mask and have not ended.
    pub(crate) fn take_mask_jobs(&mut self, jobs: &mut Vec<MaskJob>) {
        for id in std::mem::take(&mut self.mask_wanted) {
            let (key, at) = split_id(id);
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            let cancelled = stream.cancel_masks.flag();
            let choice = Some(&mut stream.choices[at]);
            let choice = choice.filter(|choice| !choice.is_over && choice.finish.is_none());
            jobs.extend(choice.and_then(|choice| choice.constraint.as_mut()?.job(id, cancelled)));
        }
    }

    /// A worker has computed a mask, or failed. A grammar that has come to its end ends the choice,
    /// without a further token, and so does a mask that leaves no token.
    pub(crate) fn take_mask(
        &mut self,
        result: MaskResult,
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        let (key, at) = split_id(result.id);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let choice = &mut stream.choices[at];
        let Some(constraint) = choice.constraint.as_mut().filter(|_| !choice.is_over) else {
            return;
        };
        match result.outcome {
            Ok(masked) => {
                let goes_on = masked.goes_on;
                if !constraint.finish_job(masked) {
                    self.mask_wanted.push(result.id);
                    return;
                }
                if goes_on == GoesOn::Stuck {
                    choice.end(STUCK, None);
                }
                if goes_on != GoesOn::Tokens {
                    scheduler.finish(result.id, FinishReason::Stop, core_events);
                }
            }
            Err(error) => {
                // A grammar that is too complex is the client's own; a token that does not fit is ours.
                let (code, status) = match error {
                    GrammarError::TooComplex(_) => ("grammar_too_complex", 400),
                    GrammarError::Token(_) => ("grammar_failed", 500),
                };
                let fault = (error.to_string(), code, status);
                self.fail_grammar(result.id, &fault, scheduler, core_events);
            }
        }
    }

    /// The mask of a running choice, once it is there.
    pub(crate) fn mask(&self, id: RequestId) -> Option<Arc<[u32]>> {
        let (key, at) = split_id(id);
        self.streams.get(&key)?.choices[at].constraint.as_ref()?.mask()
    }

    /// A grammar cannot go on: its client request ends with an error, others do not notice.
    pub(crate) fn fail_grammar(
        &mut self,
        id: RequestId,
        (message, code, status): &(String, &str, u16),
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        let (key, _) = split_id(id);
        self.end_with_error(key, message, code, *status);
        self.drop_stream(key, scheduler, core_events);
    }
}

/// `finish_reason` of an answer that bad words leave no way on: OpenAI's word for one that a filter cut.
const STUCK: &str = "content_filter";
