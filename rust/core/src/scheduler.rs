//! [3] [4] [7] The engine's state machine: requests in, plans out; outputs in, events out. Engine
//! thread only. batcher.rs plans, step_commit.rs handles results.

use std::sync::Arc;

use crate::fair_share::FairShare;
use crate::flight::InFlight;
use crate::ids::RequestIndex;
use crate::kv::{KvCache, Parent, Snapshots};
use crate::live_request::{LiveRequest, Phase};
use crate::request_table::RequestTable;
use crate::running::RunningSet;
use crate::slots::Slots;
use crate::waiting_queue::WaitingQueue;
use crate::{
    AdmitError, CoreEvent, Counters, ExecutorShape, FinishReason, Limits, Micros, NewRequest,
    PrefixWatcher, RequestFault, RequestId, RequestKind, SchedulerConfig, TokenId,
};

/// Owns requests, queue, slots and KV blocks. `plan` and `commit` alternate freely as long as commits
/// come in the order of plans.
///
/// With `max_steps_in_flight` 2 a step is planned before the tokens of the one before it are known:
/// rows that decode name the slot's last sampled token instead of an id.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) shape: ExecutorShape,
    pub(crate) limits: Limits,
    pub(crate) enable_prefix_caching: bool,
    /// Whether a request can begin with blocks of another one at all.
    pub(crate) shares: bool,
    pub(crate) whole_prompts: bool,
    pub(crate) requests: RequestTable,
    pub(crate) queue: WaitingQueue,
    pub(crate) running: RunningSet,
    pub(crate) fairness: FairShare,
    pub(crate) kv: KvCache,
    pub(crate) snapshots: Snapshots,
    pub(crate) slots: Slots,
    pub(crate) in_flight: InFlight,
    pub(crate) now: Micros,
    /// Most token rows of a step that has parts of prompts.
    pub(crate) most_rows: u32,
    /// Whether waiting requests may start.
    pub(crate) starts: bool,
    pub(crate) counters: Counters,
}

impl Scheduler {
    /// An empty scheduler.
    ///
    /// # Panics
    /// If a size is zero or there are fewer slots than `max_num_seqs`.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        config.check();
        let shape = config.shape;
        let shares = !config.whole_prompts && (!shape.keeps_state || shape.num_snapshots > 0);
        Self {
            shape,
            limits: Limits::new(&config),
            enable_prefix_caching: config.enable_prefix_caching && shares,
            shares,
            whole_prompts: config.whole_prompts,
            requests: RequestTable::default(),
            queue: WaitingQueue::default(),
            running: RunningSet::default(),
            fairness: FairShare::new(&shape, config.weight_tokens),
            kv: KvCache::new(shape.num_blocks, shape.block_size, config.cache_secret),
            snapshots: Snapshots::new(&shape, config.cache_secret),
            slots: Slots::new(shape.num_slots),
            in_flight: InFlight::new(),
            now: Micros(0),
            most_rows: u32::MAX,
            starts: true,
            counters: Counters::default(),
        }
    }

    /// Whether requests share computed prefixes.
    #[must_use]
    pub fn shares_prefixes(&self) -> bool {
        self.enable_prefix_caching
    }

    /// From now on reports to `watcher` which prefixes the cache can find.
    ///
    /// # Panics
    /// If requests have run.
    pub fn watch_prefixes(&mut self, watcher: Arc<dyn PrefixWatcher>) {
        self.kv.prefix.watch(watcher);
    }

    /// From now on steps have at most so many token rows, where there are parts of prompts to leave out.
    pub fn limit_rows(&mut self, most_rows: u32) {
        self.most_rows = most_rows;
    }

    /// Whether waiting requests start from now on; running ones go on in any case.
    pub fn let_start(&mut self, starts: bool) {
        self.starts = starts;
    }

    /// Whether no request runs and no step is in flight; others may wait.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.running.num_holding() == 0 && self.in_flight.is_empty()
    }

    /// Forgets all cached prefixes; returns how many blocks could be found. Running requests keep their
    /// blocks, but nobody shares them any more.
    pub fn clear_prefix_cache(&mut self) -> u32 {
        self.snapshots.forget_all();
        self.kv.forget_all()
    }

    /// The stateless part of admission, for other threads.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether this many more requests may wait now; ask before the choices of one prompt are
    /// admitted one by one.
    ///
    /// # Errors
    /// `AdmitError::QueueFull`.
    pub fn check_queue(&self, num_requests: u32) -> Result<(), AdmitError> {
        let waiting = self.queue.num_waiting();
        if waiting.saturating_add(num_requests) > self.limits.max_queue {
            return Err(AdmitError::QueueFull { waiting, max: self.limits.max_queue });
        }
        Ok(())
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// `AdmitError`; then nothing is kept and no event will come.
    ///
    /// # Panics
    /// If a request with this id has not ended, or text is asked of a scheduler of whole prompts.
    pub fn admit(&mut self, request: NewRequest, now: Micros) -> Result<(), AdmitError> {
        let max_tokens = match request.kind {
            RequestKind::Generate => request.stop.max_tokens.max(1),
            RequestKind::Embed(_) => 0,
        };
        assert!(!self.whole_prompts || max_tokens == 0, "whole prompts are embedded only");
        self.limits.check(request.prompt.len(), max_tokens)?;
        self.limits.check_tokens(&request.prompt)?;
        self.check_queue(1)?;

        self.now = self.now.max(now);
        let tenant = self.fairness.tenants.join(request.tenant);
        let ticket = self.queue.ticket(request.priority, tenant);
        self.counters.admitted += 1;
        let leader = request.leader.filter(|_| self.shares);
        let leader = leader.and_then(|leader| self.requests.find(leader));
        let mut request = LiveRequest::new(request, ticket, self.now);
        request.request.stop.max_tokens = max_tokens.max(1);
        if self.enable_prefix_caching {
            request.root = Some(Parent::Salt(request.request.cache_salt));
            if let Some(hashes) = request.request.block_hashes.take() {
                request.table.hashes = hashes.to_vec();
            }
        }
        let index = self.requests.insert(request);
        match leader {
            Some(leader) if !self.requests[leader].is_prompt_submitted => {
                self.follow(index, leader)
            }
            _ => self.enqueue(index),
        }
        Ok(())
    }

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

    /// Whether there is nothing to do: no request waits or runs and no step is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.has_requests() && self.in_flight.is_empty()
    }

    /// Whether a request waits or runs; of those that have ended, a step may still be in flight.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.requests.num_alive() > 0
    }

    /// Another choice of the leader's prompt waits until it can share the leader's blocks.
    fn follow(&mut self, index: RequestIndex, leader: RequestIndex) {
        let id = self.requests[leader].id();
        let leading = &mut self.requests[leader];
        leading.followers.push(index);
        let root = *leading.root.get_or_insert(Parent::Leader(id));
        let following = &mut self.requests[index];
        following.phase = Phase::Blocked;
        following.leader = Some(leader);
        following.root.get_or_insert(root);
        self.queue.add_blocked();
    }

    /// Lets those that wait for this request's prompt go on.
    pub(crate) fn release_followers(&mut self, index: RequestIndex) {
        for follower in std::mem::take(&mut self.requests[index].followers) {
            self.requests[follower].leader = None;
            self.queue.remove_blocked();
            self.enqueue(follower);
        }
    }

    fn enqueue(&mut self, index: RequestIndex) {
        let ticket = self.requests[index].queue_at(self.now, self.shape.block_size);
        self.queue.push(index, ticket);
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
    fn give_back(&mut self, index: RequestIndex) {
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

    /// A preempted request that no submitted step names gives up everything and waits again.
    pub(crate) fn requeue(&mut self, index: RequestIndex) {
        self.give_back(index);
        self.requests[index].is_tainted = false;
        self.enqueue(index);
    }

    /// Slots that are free and slots that requests hold are counted apart.
    pub(crate) fn check_slots(&self) {
        self.slots.check(self.running.num_holding());
    }
}
