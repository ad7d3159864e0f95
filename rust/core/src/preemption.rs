//! [4] Which running requests are preempted: for one that needs another block, or for a waiting one
//! within its tenant's share. Engine thread only.

use crate::counts::count;
use crate::fair_share::Share;
use crate::flight::Draft;
use crate::ids::{RequestIndex, TenantIndex};
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::ticket::Standing;

impl Scheduler {
    /// Gives a decoding request one more block of each group; false if it must wait for them. If too few
    /// are left, a running request is preempted, perhaps this one, unless enough blocks will be free once
    /// the steps in flight have completed. A tenant above its share does not use blocks that are promised
    /// to a waiting request.
    pub(crate) fn grow(&mut self, index: RequestIndex, draft: &mut Draft) -> bool {
        let tenant = self.requests[index].ticket.tenant;
        let num_needed = count(self.shape.kv_groups.len());
        loop {
            // The only running request always continues; otherwise none might make progress.
            let is_bound = self.running.len() > 1 && self.fairness.is_above_share(tenant);
            let num_claimed = if is_bound { self.fairness.num_claimed_blocks } else { 0 };
            if self.kv.num_available() >= num_claimed + num_needed {
                let num_places = count(self.requests[index].table.blocks.len());
                self.extend_tables(index, num_places + 1);
                return true;
            }
            let num_returning = match draft.num_returning {
                Some(num_returning) => num_returning,
                None => self.num_returning_blocks(),
            };
            draft.num_returning = Some(num_returning);
            let num_spare = (self.kv.num_available() + num_returning).saturating_sub(num_claimed);
            if num_spare >= draft.num_stalled + num_needed {
                draft.num_stalled += num_needed;
                return false;
            }
            if self.running.len() == 1 {
                // It fits alone, so blocks are still held by requests that were preempted or have ended, or are lent.
                let waits = !self.in_flight.is_empty() || self.lacks_memory();
                assert!(waits, "one request alone outgrows the pool");
                return false;
            }
            let victim = self.victim_for_growth();
            let num_freed = self.preempt(victim);
            draft.prefills.retain(|&other| other != victim);
            draft.num_returning = Some(num_returning + num_freed);
            if victim == index {
                return false;
            }
        }
    }

    /// Blocks that will be free or cached once the steps in flight have completed.
    fn num_returning_blocks(&self) -> u32 {
        let preempted = self.running.preempted().map(|index| self.num_own_blocks(index));
        self.kv.pool.num_leaving() + preempted.sum::<u32>()
    }

    /// Blocks that no other request owns.
    fn num_own_blocks(&self, index: RequestIndex) -> u32 {
        let held = self.requests[index].held();
        count(held.filter(|&block| self.kv.pool.has_one_owner(block)).count())
    }

    /// Preempts a running request: no further plan names it. Returns how many of its blocks are released
    /// later; 0 if all were released at once, because no submitted step names the request.
    pub(crate) fn preempt(&mut self, victim: RequestIndex) -> u32 {
        self.stop_running(victim);
        self.counters.preemptions += 1;
        self.requests[victim].phase = Phase::Preempted;
        if self.requests[victim].num_in_flight == 0 {
            self.requeue(victim);
            return 0;
        }
        self.running.add_preempted(victim);
        self.num_own_blocks(victim)
    }

    /// Preempts running requests to make room for waiting ones within their tenant's share, one of each
    /// tenant. It runs before rows are chosen, so that slots and blocks are free a step earlier.
    pub(crate) fn make_room(&mut self) {
        let Some(share) = self.fairness.share() else { return };
        let firsts = self.queue.first_of_tenants();
        let within = |ticket: &_| self.fairness.standing(ticket) == Standing::Within;
        let waiting: Vec<RequestIndex> =
            firsts.filter(|(_, ticket)| within(ticket)).map(|(index, _)| index).collect();
        while count(self.running.len() + waiting.len()) > self.shape.max_running() {
            let Some(victim) = self.victim_for_slot(&share) else { break };
            self.preempt(victim);
        }
        let mut num_claimed = 0;
        for index in waiting {
            num_claimed += self.fit(index).num_missing();
        }
        let mut num_returning = self.num_returning_blocks();
        while num_claimed > self.kv.num_available() + num_returning {
            let Some(victim) = self.victim_for_blocks(&share) else { break };
            num_returning += self.preempt(victim);
        }
        self.fairness.num_claimed_blocks = num_claimed;
    }

    /// Whether a tenant holds so many blocks that it would give some to a request within its share.
    pub(crate) fn has_victim_for_blocks(&self) -> bool {
        self.fairness.share().is_some_and(|share| self.victim_for_blocks(&share).is_some())
    }

    /// The request to preempt when a running one needs a block: the worst-ranked of the tenant that holds
    /// most blocks.
    fn victim_for_growth(&self) -> RequestIndex {
        let most = self.fairness.share().and_then(|_| self.most_blocks());
        let victim = most.and_then(|tenant| self.newest_of(tenant));
        victim.unwrap_or_else(|| self.running.at(self.running.len() - 1))
    }

    fn victim_for_slot(&self, share: &Share) -> Option<RequestIndex> {
        let holding = |&tenant: &TenantIndex| self.fairness.tenants.holding(tenant).num_slots;
        let tenant = self.fairness.tenants.active().max_by_key(holding)?;
        if holding(&tenant) <= share.num_slots {
            return None;
        }
        self.newest_of(tenant)
    }

    fn victim_for_blocks(&self, share: &Share) -> Option<RequestIndex> {
        let tenant = self.most_blocks()?;
        let victim = self.newest_of(tenant)?;
        let num_held = self.fairness.tenants.holding(tenant).num_blocks;
        let num_left = num_held - self.requests[victim].num_new_blocks();
        (num_left >= share.num_blocks).then_some(victim)
    }

    fn most_blocks(&self) -> Option<TenantIndex> {
        let tenants = &self.fairness.tenants;
        tenants.active().max_by_key(|&tenant| tenants.holding(tenant).num_blocks)
    }

    /// The worst-ranked running request of the tenant.
    fn newest_of(&self, tenant: TenantIndex) -> Option<RequestIndex> {
        self.running.iter().rev().find(|&index| self.requests[index].ticket.tenant == tenant)
    }
}
