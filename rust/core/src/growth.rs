//! [4] What happens when a running request needs a block and none is left. Engine thread only.

use crate::batcher::Draft;
use crate::live_request::Phase;
use crate::request_table::RequestIndex;
use crate::scheduler::{Scheduler, count};

impl Scheduler {
    /// One more block for a running request; if none is left, another one is preempted, perhaps this
    /// one. Blocks that are on their way back are waited for first; those that a waiting request was
    /// promised are left alone by tenants above their share.
    pub(crate) fn grow(&mut self, index: RequestIndex, draft: &mut Draft) -> bool {
        let tenant = self.requests[index].ticket.tenant;
        loop {
            // The last one goes on in any case, or nothing might.
            let is_bound = self.running.len() > 1 && self.is_above_share(tenant);
            let num_claimed = if is_bound { self.num_claimed } else { 0 };
            if self.kv.num_available() > num_claimed
                && let Some(block) = self.kv.allocate()
            {
                self.requests[index].table.blocks.push(block);
                self.tenants.holding_mut(tenant).num_blocks += 1;
                return true;
            }
            let num_returning = match draft.num_returning {
                Some(num_returning) => num_returning,
                None => self.num_returning_blocks(),
            };
            draft.num_returning = Some(num_returning);
            let num_spare = (self.kv.num_available() + num_returning).saturating_sub(num_claimed);
            if num_spare > draft.num_stalled {
                draft.num_stalled += 1;
                return false;
            }
            if self.running.len() == 1 {
                // Alone it fits: others that have been preempted or have ended still hold blocks.
                assert!(!self.in_flight.is_empty(), "one request alone outgrows the pool");
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
    pub(crate) fn num_returning_blocks(&self) -> u32 {
        let preempted = self.preempted.iter().map(|&index| self.num_own_blocks(index));
        self.kv.pool.num_leaving() + preempted.sum::<u32>()
    }

    /// Blocks that nobody else owns.
    fn num_own_blocks(&self, index: RequestIndex) -> u32 {
        let blocks = &self.requests[index].table.blocks;
        count(blocks.iter().filter(|&&block| self.kv.pool.has_one_owner(block)).count())
    }

    /// Leaves the running request out of further plans. Returns how many blocks will come back later;
    /// none if they came back at once, because no submitted step names it.
    pub(crate) fn preempt(&mut self, victim: RequestIndex) -> u32 {
        self.stop_running(victim);
        self.counters.preemptions += 1;
        self.requests[victim].phase = Phase::Preempted;
        if self.requests[victim].num_in_flight == 0 {
            self.requeue(victim);
            return 0;
        }
        self.preempted.push(victim);
        self.num_own_blocks(victim)
    }
}
