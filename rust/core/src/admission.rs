//! [3] Takes requests into the queue. Engine thread only. Choices of one prompt wait until they can
//! share the first one's blocks.

use crate::ids::RequestIndex;
use crate::kv::Parent;
use crate::live_request::{LiveRequest, Phase};
use crate::scheduler::Scheduler;
use crate::ticket::delay_in_line;
use crate::{AdmitError, Micros, NewRequest, RequestKind};

impl Scheduler {
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
        let place = self.place_in_line(index);
        let request = &mut self.requests[index];
        request.ticket.place = place;
        let ticket = request.queue_at(self.now, self.shape.block_size);
        self.queue.push(index, ticket);
    }

    /// When the request came, later the more of its prompt is to be computed. One that has run before keeps the time
    /// at which it came.
    fn place_in_line(&mut self, index: RequestIndex) -> Micros {
        let request = &self.requests[index];
        let (came, num_tokens) = (request.admitted_at, request.num_tokens());
        let delay = delay_in_line(num_tokens, &self.shape);
        if request.has_started || delay == Micros(0) {
            return came;
        }
        let num_cached = self.find_cached(index).num_places * self.shape.block_size;
        Micros(came.0 + delay_in_line(num_tokens - num_cached, &self.shape).0)
    }

    /// A preempted request that no submitted step names gives up everything and waits again.
    pub(crate) fn requeue(&mut self, index: RequestIndex) {
        self.give_back(index);
        self.requests[index].is_tainted = false;
        self.enqueue(index);
    }
}
