//! [7] Applies the results of a step, and the events that report them to the engine. Engine thread
//! only. step_failure.rs takes back steps that failed, request_end.rs ends requests.

use std::ops::Deref;

use crate::counts::count;
use crate::flight::FlightRow;
use crate::ids::RequestIndex;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::{
    FinishReason, Micros, RequestId, RequestKind, RowOutput, RowStatus, StepId, StepOutput,
    TenantId, TokenId, TokenLogProbs,
};

/// Something that happened to one request. In the order in which it happened; `Finished` comes last
/// and exactly once for every admitted request.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreEvent {
    /// The whole prompt is computed for the first time; the first token follows.
    PromptComputed {
        /// Which request.
        id: RequestId,
        /// Length of the prompt.
        num_prompt_tokens: u32,
        /// How many of them came from the prefix cache.
        num_cached_tokens: u32,
        /// From admission to the first step that held it.
        queue_wait: Micros,
    },
    /// Tokens that are certain. A stop id or end-of-text is among them.
    Tokens {
        /// Which request.
        id: RequestId,
        /// At least one.
        tokens: TokenList,
        /// One per token, if asked for.
        log_probs: Vec<TokenLogProbs>,
    },
    /// Log-probs of consecutive prompt tokens; each position from 1 on comes exactly once, in order.
    PromptLogProbs {
        /// Which request.
        id: RequestId,
        /// Position in the prompt of the first entry's token.
        first_position: u32,
        /// One per position.
        log_probs: Vec<TokenLogProbs>,
    },
    /// The embedding of the prompt.
    Pooled {
        /// Which request.
        id: RequestId,
        /// `[hidden_size]`
        values: Vec<f32>,
    },
    /// The request is over; its id may be forgotten.
    Finished {
        /// Which request.
        id: RequestId,
        /// Whose it was.
        tenant: TenantId,
        /// Why.
        reason: FinishReason,
        /// The stop id or end-of-text that ended it, the last of its tokens; its text is not output.
        stop_token: Option<TokenId>,
        /// Length of the prompt.
        num_prompt_tokens: u32,
        /// How many of them came from the prefix cache.
        num_cached_tokens: u32,
        /// Tokens reported by `Tokens` events.
        num_output_tokens: u32,
    },
}

/// A short list of tokens; the usual single one needs no allocation. Use it as a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenList {
    /// One token.
    One(TokenId),
    /// Any number.
    Many(Vec<TokenId>),
}

impl Deref for TokenList {
    type Target = [TokenId];

    fn deref(&self) -> &[TokenId] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Many(tokens) => tokens,
        }
    }
}

impl Scheduler {
    /// Takes the output of the oldest step in flight and appends what follows from it to `events`.
    ///
    /// # Panics
    /// If the output is not the oldest step's or its rows are not those of the plan.
    pub fn commit(&mut self, output: StepOutput, now: Micros, events: &mut Vec<CoreEvent>) {
        self.now = self.now.max(now);
        let Some(step) = self.in_flight.pop_oldest() else {
            unreachable!("step {} completed and none is in flight", output.id)
        };
        assert_eq!(step.id, output.id, "steps complete in the order of submission");
        assert_eq!(step.rows.len(), output.rows.len(), "rows of step {}", step.id);
        let mut tokens = output.tokens.as_slice();
        for (row, row_output) in step.rows.iter().zip(output.rows) {
            assert_eq!(row.slot, row_output.slot, "slot of a row of step {}", step.id);
            let (row_tokens, rest) = tokens.split_at(row_output.num_tokens as usize);
            tokens = rest;
            let request = &self.requests[row.request];
            let is_wanted = request.phase != Phase::Leaving && !request.is_tainted;
            let is_finite = row_output.status == RowStatus::Ok;
            if !is_finite {
                self.drop_not_finite(row.request, step.id, is_wanted, events);
            } else if is_wanted {
                self.commit_row(row, row_output, row_tokens, step.id, events);
            }
            match row.snapshot {
                Some(snapshot) if is_wanted && is_finite => {
                    self.commit_snapshot(row, snapshot, step.id);
                }
                pending => self.snapshots.drop_pending(pending),
            }
            if !self.shape.kv_groups.is_plain() {
                self.release_passed(row.request, row.start + row.num_tokens);
            }
            self.complete_row(row.request);
        }
        self.in_flight.recycle(step);
        self.check_slots();
    }

    /// Results of one row, for a request that has not ended.
    fn commit_row(
        &mut self,
        row: &FlightRow,
        output: RowOutput,
        tokens: &[TokenId],
        step: StepId,
        events: &mut Vec<CoreEvent>,
    ) {
        let index = row.request;
        let end = row.start + row.num_tokens;
        if end.is_multiple_of(self.shape.block_size) {
            self.register_blocks(index, end, step);
        }
        let request = &mut self.requests[index];
        if !request.is_prompt_reported && end >= request.num_prompt {
            request.is_prompt_reported = true;
            events.push(CoreEvent::PromptComputed {
                id: request.request.id,
                num_prompt_tokens: request.num_prompt,
                num_cached_tokens: request.num_cached,
                queue_wait: request.started_after,
            });
        }
        if !output.prompt_log_probs.is_empty() {
            self.commit_prompt_log_probs(row, output.prompt_log_probs, events);
        }
        let request = &self.requests[index];
        if row.is_sampled {
            assert_eq!(tokens.len(), 1, "tokens of a sampled row of step {step}");
            events.push(CoreEvent::Tokens {
                id: request.request.id,
                tokens: TokenList::One(tokens[0]),
                log_probs: output.log_probs,
            });
            self.commit_token(index, tokens[0], events);
        } else if matches!(request.request.kind, RequestKind::Embed(_)) && end == request.num_prompt
        {
            events.push(CoreEvent::Pooled { id: request.request.id, values: output.pooled });
            self.end(index, FinishReason::Stop, None, events);
        }
    }

    /// One token more; perhaps the last.
    fn commit_token(&mut self, index: RequestIndex, token: TokenId, events: &mut Vec<CoreEvent>) {
        let request = &mut self.requests[index];
        request.generated.push(token);
        let stop = &request.request.stop;
        let num_generated = count(request.generated.len());
        let is_stop_token = num_generated >= stop.min_tokens && stop.end_token_ids.contains(&token);
        if is_stop_token {
            self.end(index, FinishReason::Stop, Some(token), events);
        } else if num_generated >= stop.max_tokens {
            self.end(index, FinishReason::Length, None, events);
        }
    }

    /// Reports the positions that were not reported before a preemption.
    fn commit_prompt_log_probs(
        &mut self,
        row: &FlightRow,
        mut log_probs: Vec<TokenLogProbs>,
        events: &mut Vec<CoreEvent>,
    ) {
        let request = &mut self.requests[row.request];
        let num_known = request.num_prompt_log_probs.saturating_sub(row.start);
        log_probs.drain(..(num_known as usize).min(log_probs.len()));
        if !log_probs.is_empty() {
            let first_position = request.num_prompt_log_probs + 1;
            request.num_prompt_log_probs += count(log_probs.len());
            events.push(CoreEvent::PromptLogProbs {
                id: request.request.id,
                first_position,
                log_probs,
            });
        }
    }

    /// A step that named this request has completed. If it was the last one, a request that has ended or been
    /// preempted now gives back its slot and blocks.
    pub(crate) fn complete_row(&mut self, index: RequestIndex) {
        let request = &mut self.requests[index];
        request.num_in_flight -= 1;
        if request.num_in_flight > 0 {
            return;
        }
        match request.phase {
            Phase::Leaving => {
                self.running.remove_leaving();
                self.give_back(index);
                self.requests.remove(index);
            }
            Phase::Preempted => {
                self.running.remove_preempted(index);
                self.requeue(index);
            }
            _ => {}
        }
    }
}
