//! Looks at a scheduler: counters for metrics, and a recount that panics on a broken invariant. Engine
//! thread only.

use std::collections::HashMap;

use crate::live_request::Phase;
use crate::scheduler::{Scheduler, count};
use crate::tenants::Holding;

/// Totals since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps planned.
    pub steps: u64,
    /// Token rows planned.
    pub scheduled_tokens: u64,
    /// Times a request lost its blocks to another.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries: u64,
    /// Prompt tokens found there.
    pub prefix_cache_hits: u64,
    /// Requests admitted.
    pub admitted: u64,
    /// Requests ended.
    pub finished: u64,
}

/// A look at the scheduler, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests that hold nothing: queued, preempted earlier or waiting for their leader.
    pub num_waiting: u32,
    /// Requests with a slot that have not ended.
    pub num_running: u32,
    /// Requests that have ended while a submitted step names them.
    pub num_leaving: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Blocks without owner and content.
    pub num_free_blocks: u32,
    /// Blocks owned by running requests.
    pub num_held_blocks: u32,
    /// Blocks owned by leaving requests only.
    pub num_leaving_blocks: u32,
    /// Blocks without owner whose prefix is known.
    pub num_cached_blocks: u32,
    /// Steps submitted and not completed.
    pub num_steps_in_flight: u32,
    /// Totals.
    pub counters: Counters,
}

impl Scheduler {
    /// A look at the counters.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        let pool = &self.kv.pool;
        let num_alive = count(self.requests.num_alive());
        let num_running = count(self.running.len() + self.preempted.len());
        SchedulerStats {
            num_waiting: num_alive - num_running,
            num_running,
            num_leaving: self.num_leaving,
            num_blocks: pool.num_blocks(),
            num_free_blocks: pool.num_free(),
            num_held_blocks: pool.num_held(),
            num_leaving_blocks: pool.num_leaving(),
            num_cached_blocks: pool.num_cached(),
            num_steps_in_flight: count(self.in_flight.len()),
            counters: self.counters,
        }
    }

    /// Free slots and those of running, preempted and leaving requests are counted apart.
    pub(crate) fn check_slots(&self) {
        let num_held = count(self.running.len() + self.preempted.len()) + self.num_leaving;
        assert_eq!(count(self.free_slots.len()) + num_held, self.shape.num_slots, "slots");
    }

    /// Recounts everything from the requests themselves. For tests, and once after a drain.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn verify(&self) {
        let mut owners = vec![(0_u32, 0_u32); self.shape.num_blocks as usize];
        let (mut num_held_slots, mut num_queued, mut num_blocked) = (0, 0, 0);
        let mut in_flight_of: HashMap<u32, u32> = HashMap::new();
        for row in self.in_flight.iter().flat_map(|step| &step.rows) {
            *in_flight_of.entry(row.request.0).or_default() += 1;
        }
        for (index, request) in self.requests.iter() {
            let submitted = in_flight_of.remove(&index.0).unwrap_or(0);
            assert_eq!(request.num_in_flight, submitted, "steps in flight of {}", request.id());
            match request.phase {
                Phase::Blocked => num_blocked += 1,
                Phase::Waiting => num_queued += 1,
                Phase::Running | Phase::Preempted | Phase::Leaving => {
                    num_held_slots += 1;
                    assert!(!self.free_slots.contains(&request.slot), "slot of {}", request.id());
                }
            }
            let has_ended = request.phase == Phase::Leaving;
            assert_eq!(self.requests.find(request.id()) != Some(index), has_ended, "id table");
            assert!(!has_ended || submitted > 0, "{} leaves without a step", request.id());
            for block in &request.table.blocks {
                let (running, leaving) = &mut owners[block.index()];
                *(if has_ended { leaving } else { running }) += 1;
            }
        }
        assert!(in_flight_of.is_empty(), "a step in flight names a request that is gone");
        assert_eq!(num_queued, self.queue.len(), "queued requests");
        assert_eq!(num_blocked, self.num_blocked, "requests that wait for their leader");
        assert_eq!(num_held_slots + self.free_slots.len(), self.shape.num_slots as usize, "slots");
        self.check_slots();
        assert_eq!(
            self.tenants.num_live() as usize,
            self.requests.num_alive(),
            "tenants' requests"
        );
        self.verify_holdings();
        let ranks: Vec<_> = self.running.iter().map(|&index| self.requests[index].rank).collect();
        assert!(ranks.is_sorted(), "running requests are out of order");
        self.kv.pool.verify_owners(&owners);
        self.kv.verify();
    }

    /// What tenants hold, from their running requests.
    fn verify_holdings(&self) {
        let mut holdings: HashMap<u32, Holding> = HashMap::new();
        for &index in &self.running {
            let request = &self.requests[index];
            let holding = holdings.entry(request.ticket.tenant.0).or_default();
            holding.num_slots += 1;
            holding.num_blocks += request.num_new_blocks();
        }
        for tenant in self.tenants.all() {
            let held = holdings.get(&tenant.0).copied().unwrap_or_default();
            assert_eq!(self.tenants.holding(tenant), held, "held by tenant {}", tenant.0);
        }
    }
}
