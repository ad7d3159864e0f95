//! [7] Applies the results of a step: tokens, ends, failures. Engine thread only.

use crate::core_event::TokenList;
use crate::counts::count;
use crate::flight::{FlightRow, LateRow};
use crate::ids::RequestIndex;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::{
    CoreEvent, FinishReason, Micros, RequestFault, RequestKind, RowOutput, RowStatus, StepId,
    StepOutput, TokenId,
};

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

    /// Takes back a step that failed, or that could not be submitted. Its requests end with an error;
    /// others that were about to build on its blocks are computed again. Later steps stay in flight.
    ///
    /// # Panics
    /// If the step is not in flight.
    pub fn fail_step(&mut self, id: StepId, fault: RequestFault, events: &mut Vec<CoreEvent>) {
        let Some(step) = self.in_flight.remove(id) else {
            unreachable!("step {id} failed and is not in flight")
        };
        self.snapshots.forget_since(id);
        for row in &step.rows {
            self.snapshots.drop_pending(row.snapshot);
            self.forget_blocks(row.request, id);
            if self.requests[row.request].phase != Phase::Leaving {
                self.end(row.request, FinishReason::Error(fault.clone()), None, events);
            }
            self.complete_row(row.request);
        }
        self.recompute_dependents(id);
        self.in_flight.recycle(step);
        self.check_slots();
    }

    /// The late-sampled rows whose masks are due, if any: those of the oldest step in flight, since
    /// every token before them is committed then. The engine calls `Executor::sample` with a mask
    /// for each row and then `note_masks_issued`; the step does not complete before.
    #[must_use]
    pub fn late_rows(&self, rows: &mut Vec<LateRow>) -> Option<StepId> {
        rows.clear();
        let step = self.in_flight.oldest().filter(|step| step.needs_masks)?;
        rows.extend(step.rows.iter().filter(|row| row.is_late).map(|row| {
            let request = &self.requests[row.request];
            LateRow {
                slot: row.slot,
                request: request.id(),
                is_live: request.phase != Phase::Leaving && !request.is_tainted,
            }
        }));
        Some(step.id)
    }

    /// Whether the oldest step in flight waits for `note_masks_issued`.
    #[must_use]
    pub fn waits_for_masks(&self) -> bool {
        self.in_flight.oldest().is_some_and(|step| step.needs_masks)
    }

    /// The sampler of the step's late rows has been started: their requests may be planned again.
    ///
    /// # Panics
    /// If the step does not wait for masks.
    pub fn note_masks_issued(&mut self, id: StepId) {
        let Some(step) = self.in_flight.waiting_for_masks(id) else {
            unreachable!("step {id} does not wait for masks")
        };
        step.needs_masks = false;
        for row in step.rows.iter().filter(|row| row.is_late) {
            self.requests[row.request].is_mask_pending = false;
        }
    }

    /// The request's blocks may hold NaN: no request may find them, and those that have just done so
    /// start anew, also if the request itself has ended.
    fn drop_not_finite(
        &mut self,
        index: RequestIndex,
        step: StepId,
        is_wanted: bool,
        events: &mut Vec<CoreEvent>,
    ) {
        self.forget_blocks(index, StepId(0));
        self.snapshots.forget_since(StepId(0));
        if is_wanted {
            self.end(index, FinishReason::Error(RequestFault::NotFinite), None, events);
        }
        self.recompute_dependents(step);
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
        let is_stop_token = num_generated >= stop.min_tokens
            && (stop.stop_token_ids.contains(&token)
                || (!stop.ignore_eos && stop.eos_token_ids.contains(&token)));
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
        mut log_probs: Vec<crate::TokenLogProbs>,
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

    /// Requests that took blocks which this step, or a later one still in flight, fills: what they
    /// computed since may be worthless, though nothing of it has been committed.
    fn recompute_dependents(&mut self, failed: StepId) {
        let depends = |scheduler: &Self, index: RequestIndex| {
            scheduler.requests[index].depends_on.is_some_and(|step| step >= failed)
        };
        for place in (0..self.running.len()).rev() {
            let index = self.running.at(place);
            if depends(self, index) {
                self.requests[index].is_tainted = true;
                self.preempt(index);
            }
        }
        for index in self.running.preempted() {
            if depends(self, index) {
                self.requests[index].is_tainted = true;
            }
        }
    }
}
