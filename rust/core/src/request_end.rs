//! [7] Ends requests, whether they wait or run. Engine thread only. What a submitted step names is given
//! back only once that step has completed.

use crate::ids::RequestIndex;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::{CoreEvent, FinishReason, RequestFault, RequestId, TokenId};

impl Scheduler {
    /// Ends a request because its client has asked for it or left, whether it waits or runs. False if it has
    /// already ended.
    pub fn abort(&mut self, id: RequestId, events: &mut Vec<CoreEvent>) -> bool {
        self.finish(id, FinishReason::Abort, events)
    }

    /// Ends a request for a reason that the core does not see, such as a stop string. False if it has
    /// already ended.
    pub fn finish(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        events: &mut Vec<CoreEvent>,
    ) -> bool {
        let Some(index) = self.requests.find(id) else { return false };
        self.end(index, reason, None, events);
        self.check_slots();
        true
    }

    /// Ends every request because nothing can run any more. Steps in flight count as completed: the
    /// executor must not be used again.
    pub fn fail_all(&mut self, fault: &RequestFault, events: &mut Vec<CoreEvent>) {
        let mut alive: Vec<RequestIndex> = self.requests.alive().collect();
        alive.sort_unstable_by_key(|&index| self.requests[index].ticket.arrival);
        for index in alive {
            self.end(index, FinishReason::Error(fault.clone()), None, events);
        }
        while let Some(step) = self.in_flight.pop_oldest() {
            for row in &step.rows {
                self.snapshots.drop_pending(row.snapshot);
                self.complete_row(row.request);
            }
            self.in_flight.recycle(step);
        }
        self.check_slots();
    }

    /// Ends a request: reports it, and gives back what it holds or lets it leave.
    pub(crate) fn end(
        &mut self,
        index: RequestIndex,
        reason: FinishReason,
        stop_token: Option<TokenId>,
        events: &mut Vec<CoreEvent>,
    ) {
        self.release_followers(index);
        let request = &self.requests[index];
        events.push(CoreEvent::Finished {
            id: request.id(),
            tenant: request.request.tenant,
            reason,
            stop_token,
            num_prompt_tokens: request.num_prompt,
            num_cached_tokens: request.num_cached,
            num_output_tokens: request.num_generated(),
        });
        self.fairness.tenants.leave(request.ticket.tenant, self.now);
        self.counters.finished += 1;
        self.requests.end(index);
        match self.requests[index].phase {
            Phase::Blocked => self.unfollow(index),
            Phase::Waiting => self.queue.remove(&self.requests[index].ticket),
            Phase::Running => self.stop_running(index),
            Phase::Preempted => self.running.remove_preempted(index),
            Phase::Leaving => unreachable!("a request ended twice"),
        }
        match self.requests[index].phase {
            Phase::Blocked | Phase::Waiting => self.requests.remove(index),
            _ if self.requests[index].num_in_flight > 0 => {
                self.requests[index].phase = Phase::Leaving;
                self.running.add_leaving();
                for block in self.requests[index].held() {
                    self.kv.pool.leave(block);
                }
            }
            _ => {
                self.give_back(index);
                self.requests.remove(index);
            }
        }
    }

    fn unfollow(&mut self, index: RequestIndex) {
        if let Some(leader) = self.requests[index].leader {
            self.requests[leader].followers.retain(|&other| other != index);
            self.queue.remove_blocked();
        }
    }

    /// Takes a request off the list of running ones.
    pub(crate) fn stop_running(&mut self, index: RequestIndex) {
        let request = &self.requests[index];
        self.running.remove(request.rank);
        let holding = self.fairness.tenants.holding_mut(request.ticket.tenant);
        holding.num_slots -= 1;
        holding.num_blocks -= request.num_new_blocks();
    }

    /// Slot and blocks of a request that no submitted step names go back.
    pub(crate) fn give_back(&mut self, index: RequestIndex) {
        let request = &mut self.requests[index];
        let is_leaving = request.phase == Phase::Leaving;
        for block in request.close_tables() {
            if is_leaving {
                self.kv.pool.release_leaving(block);
            } else {
                self.kv.pool.release(block);
            }
        }
        self.slots.free(request.slot);
    }
}
