//! Counters for metrics, and a full recount that panics on a broken invariant. Engine thread only.

use std::collections::HashMap;

use crate::SchedulerStats;
use crate::counts::count;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::tenants::Holding;

impl Scheduler {
    /// The counters and gauges, for metrics.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        let pool = &self.kv.pool;
        let num_alive = count(self.requests.num_alive());
        let num_running = self.running.num_alive();
        SchedulerStats {
            num_waiting: num_alive - num_running,
            num_running,
            num_leaving: self.running.num_leaving(),
            num_blocks: pool.end(),
            num_free_blocks: pool.num_free(),
            num_held_blocks: pool.num_held(),
            num_leaving_blocks: pool.num_leaving(),
            num_cached_blocks: pool.num_cached(),
            num_steps_in_flight: self.in_flight.len(),
            counters: self.counters,
        }
    }

    /// Recounts everything from the requests themselves. For tests, and once after a drain.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn verify(&self) {
        let mut owners = vec![(0_u32, 0_u32); self.kv.pool.num_blocks() as usize];
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
                    assert!(!self.slots.is_free(request.slot), "slot of {}", request.id());
                }
            }
            let has_ended = request.phase == Phase::Leaving;
            assert_eq!(self.requests.find(request.id()) != Some(index), has_ended, "id table");
            assert!(!has_ended || submitted > 0, "{} leaves without a step", request.id());
            self.verify_windows(index);
            for block in request.held() {
                let (running, leaving) = &mut owners[block.index()];
                *(if has_ended { leaving } else { running }) += 1;
            }
        }
        assert!(in_flight_of.is_empty(), "a step in flight names a request that is gone");
        assert_eq!(num_queued, self.queue.len(), "queued requests");
        assert_eq!(num_blocked, self.queue.num_blocked(), "requests that wait for their leader");
        assert_eq!(num_held_slots, self.running.num_holding(), "requests with a slot");
        self.check_slots();
        let num_live = self.fairness.tenants.num_live() as usize;
        assert_eq!(num_live, self.requests.num_alive(), "tenants' requests");
        self.verify_holdings();
        self.running.verify(|index| self.requests[index].rank);
        self.kv.pool.verify_owners(&owners);
        self.kv.verify();
        let rows = self.in_flight.iter().flat_map(|step| &step.rows);
        self.snapshots.verify(rows.filter_map(|row| row.snapshot));
    }

    /// What tenants hold, from their running requests.
    fn verify_holdings(&self) {
        let mut holdings: HashMap<u32, Holding> = HashMap::new();
        for index in self.running.iter() {
            let request = &self.requests[index];
            let holding = holdings.entry(request.ticket.tenant.0).or_default();
            holding.num_slots += 1;
            holding.num_blocks += request.num_new_blocks();
        }
        for tenant in self.fairness.tenants.all() {
            let held = holdings.get(&tenant.0).copied().unwrap_or_default();
            assert_eq!(self.fairness.tenants.holding(tenant), held, "held by tenant {}", tenant.0);
        }
    }
}
