//! [3] [4] [7] The engine's state machine: requests in, plans out, outputs in, events out. Engine
//! thread only. Planning is in batcher.rs, results in step_commit.rs.

use std::collections::VecDeque;

use crate::fair_share::Share;
use crate::flight::FlightStep;
use crate::kv::{KvCache, Parent};
use crate::live_request::{LiveRequest, Phase};
use crate::request_table::{RequestIndex, RequestTable};
use crate::tenants::Tenants;
use crate::waiting_queue::{Ticket, WaitingQueue};
use crate::{
    AdmitError, CoreEvent, Counters, ExecutorShape, FinishReason, Limits, Micros, NewRequest,
    RequestFault, RequestId, RequestKind, SlotId, StepId, TokenId,
};

/// What a scheduler is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sizes of the executor.
    pub shape: ExecutorShape,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// Most requests that wait.
    pub max_queue: u32,
    /// Context tokens whose keys and values take as long to read as the weights: reading less hardly
    /// lengthens a step.
    pub weight_tokens: u32,
    /// Whether requests share computed prefixes; choices of one prompt do in any case.
    pub enable_prefix_caching: bool,
    /// Random for each process: nobody can predict the cache's hashes.
    pub cache_secret: u64,
}

/// Owns requests, queue, slots and KV blocks. `plan` and `commit` alternate freely as long as commits
/// come in the order of plans.
///
/// With `max_steps_in_flight` 2 a step is planned before the tokens of the one before it are known:
/// rows that decode name the slot's last sampled token instead of an id.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) shape: ExecutorShape,
    pub(crate) limits: Limits,
    pub(crate) weight_tokens: u32,
    pub(crate) enable_prefix_caching: bool,
    pub(crate) requests: RequestTable,
    pub(crate) queue: WaitingQueue,
    pub(crate) tenants: Tenants,
    /// Of each tenant in the step that was planned last; nothing if there is only one.
    pub(crate) share: Option<Share>,
    /// Blocks that requests within their tenant's share wait for.
    pub(crate) num_claimed: u32,
    /// By rank, best first; none is preempted or leaving.
    pub(crate) running: Vec<RequestIndex>,
    /// Those that still wait for steps in flight.
    pub(crate) preempted: Vec<RequestIndex>,
    pub(crate) num_blocked: u32,
    /// Requests that have ended and still hold a slot.
    pub(crate) num_leaving: u32,
    pub(crate) kv: KvCache,
    pub(crate) free_slots: Vec<SlotId>,
    /// Free slots that the executor has not been told about.
    pub(crate) closed: Vec<SlotId>,
    pub(crate) in_flight: VecDeque<FlightStep>,
    /// Emptied, for reuse.
    pub(crate) spare_steps: Vec<FlightStep>,
    pub(crate) next_step: StepId,
    next_arrival: u64,
    pub(crate) now: Micros,
    pub(crate) counters: Counters,
    pub(crate) scratch_tokens: Vec<TokenId>,
    pub(crate) scratch_requests: Vec<(RequestIndex, Ticket)>,
}

impl Scheduler {
    /// An empty scheduler.
    ///
    /// # Panics
    /// If a size is zero or there are fewer slots than `max_num_seqs`.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        let shape = config.shape;
        assert!(
            shape.num_blocks > 0
                && shape.block_size > 0
                && shape.max_num_seqs > 0
                && shape.max_num_batched_tokens > 0
                && shape.max_steps_in_flight > 0
                && shape.row_tile > 0
                && shape.num_slots >= shape.max_num_seqs,
            "sizes that nothing can run with: {shape:?}"
        );
        Self {
            shape,
            limits: Limits::new(&config),
            weight_tokens: config.weight_tokens,
            enable_prefix_caching: config.enable_prefix_caching,
            requests: RequestTable::default(),
            queue: WaitingQueue::default(),
            tenants: Tenants::default(),
            share: None,
            num_claimed: 0,
            running: Vec::new(),
            preempted: Vec::new(),
            num_blocked: 0,
            num_leaving: 0,
            kv: KvCache::new(shape.num_blocks, shape.block_size, config.cache_secret),
            free_slots: (0..shape.num_slots).rev().map(SlotId).collect(),
            closed: Vec::new(),
            in_flight: VecDeque::new(),
            spare_steps: Vec::new(),
            next_step: StepId(1),
            next_arrival: 0,
            now: Micros(0),
            counters: Counters::default(),
            scratch_tokens: Vec::new(),
            scratch_requests: Vec::new(),
        }
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
        let waiting = self.num_waiting();
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
    /// If a request with this id has not ended.
    pub fn admit(&mut self, request: NewRequest, now: Micros) -> Result<(), AdmitError> {
        let max_tokens = match request.kind {
            RequestKind::Generate => request.stop.max_tokens.max(1),
            RequestKind::Embed(_) => 0,
        };
        self.limits.check(request.prompt.len(), max_tokens)?;
        self.limits.check_tokens(&request.prompt)?;
        self.check_queue(1)?;

        self.now = self.now.max(now);
        let ticket = Ticket {
            priority: request.priority,
            tenant: self.tenants.join(request.tenant),
            arrival: self.next_arrival,
            overdue_at: now,
            num_blocks: 0,
        };
        self.next_arrival += 1;
        self.counters.admitted += 1;
        let leader = request.leader.and_then(|leader| self.requests.find(leader));
        let mut request = LiveRequest::new(request, ticket, self.now);
        request.request.stop.max_tokens = max_tokens.max(1);
        if self.enable_prefix_caching {
            request.root = Some(Parent::Salt(request.request.cache_salt));
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

    /// Ends a request at the client's wish, wherever it stands. False if it has already ended.
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
        while let Some(step) = self.in_flight.pop_front() {
            self.complete_rows(&step);
            self.recycle(step);
        }
        self.check_slots();
    }

    /// Whether there is nothing to do: no request waits or runs and no step is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.num_alive() == 0 && self.in_flight.is_empty()
    }

    /// Requests that hold nothing.
    fn num_waiting(&self) -> u32 {
        count(self.queue.len()) + self.num_blocked
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
        self.num_blocked += 1;
    }

    /// Lets those that wait for this request's prompt go on.
    pub(crate) fn release_followers(&mut self, index: RequestIndex) {
        for follower in std::mem::take(&mut self.requests[index].followers) {
            self.requests[follower].leader = None;
            self.num_blocked -= 1;
            self.enqueue(follower);
        }
    }

    fn enqueue(&mut self, index: RequestIndex) {
        let ticket = self.requests[index].queue_at(self.now, self.shape.block_size);
        self.queue.push(index, ticket);
    }

    /// Ends a request: tells it, and gives back what it holds or lets it leave.
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
        self.tenants.leave(request.ticket.tenant, self.now);
        self.counters.finished += 1;
        self.requests.end(index);
        match self.requests[index].phase {
            Phase::Blocked => self.unfollow(index),
            Phase::Waiting => self.queue.remove(&self.requests[index].ticket),
            Phase::Running => self.stop_running(index),
            Phase::Preempted => self.preempted.retain(|&other| other != index),
            Phase::Leaving => unreachable!("a request ended twice"),
        }
        match self.requests[index].phase {
            Phase::Blocked | Phase::Waiting => self.requests.remove(index),
            _ if self.requests[index].num_in_flight > 0 => {
                self.requests[index].phase = Phase::Leaving;
                self.num_leaving += 1;
                for block in self.requests[index].table.blocks.iter().rev() {
                    self.kv.pool.leave(*block);
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
            self.num_blocked -= 1;
        }
    }

    /// Takes a request off the list of running ones.
    pub(crate) fn stop_running(&mut self, index: RequestIndex) {
        let rank = self.requests[index].rank;
        let place = self.running.binary_search_by_key(&rank, |&other| self.requests[other].rank);
        match place {
            Ok(place) => self.running.remove(place),
            Err(_) => unreachable!("a running request is not on the list"),
        };
        let request = &self.requests[index];
        let holding = self.tenants.holding_mut(request.ticket.tenant);
        holding.num_slots -= 1;
        holding.num_blocks -= request.num_new_blocks();
    }

    /// Slot and blocks of a request that no submitted step names go back.
    fn give_back(&mut self, index: RequestIndex) {
        let request = &mut self.requests[index];
        let is_leaving = request.phase == Phase::Leaving;
        for block in request.table.close() {
            if is_leaving {
                self.kv.pool.release_leaving(block);
            } else {
                self.kv.pool.release(block);
            }
        }
        self.closed.push(request.slot);
        self.free_slots.push(request.slot);
    }

    /// One submitted step less names this request; acts if it was the last and somebody waits for it.
    pub(crate) fn complete_row(&mut self, index: RequestIndex) {
        let request = &mut self.requests[index];
        request.num_in_flight -= 1;
        if request.num_in_flight > 0 {
            return;
        }
        match request.phase {
            Phase::Leaving => {
                self.num_leaving -= 1;
                self.give_back(index);
                self.requests.remove(index);
            }
            Phase::Preempted => {
                self.preempted.retain(|&other| other != index);
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
}

/// Lengths of our own lists; all are bounded by u32 sizes.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
