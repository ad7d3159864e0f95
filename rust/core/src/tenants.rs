//! [4] What each tenant has received and holds. Engine thread only.
//!
//! The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024,
//! section 4): every scheduled token row is charged to its tenant. A tenant that returns from idleness
//! is raised to the least served active one, so no tenant can save up credit.

use std::collections::HashMap;

use crate::ids::TenantIndex;
use crate::ticket::Rank;
use crate::{Micros, TenantId};

/// Counters of all tenants ever seen; as many as there are API keys.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    index: HashMap<TenantId, TenantIndex>,
    accounts: Vec<Account>,
    /// Those with a live request now or a while ago.
    active: Vec<TenantIndex>,
}

/// What a tenant's running requests hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) num_slots: u32,
    /// Without those found in the prefix cache, which others may hold too.
    pub(crate) num_blocks: u32,
}

/// Its token rows in the step that is being planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InStep {
    pub(crate) num_decodes: u32,
    pub(crate) num_chunk_tokens: u32,
}

#[derive(Debug, Default)]
struct Account {
    /// Token rows.
    service: u64,
    /// Requests that wait or run.
    num_live: u32,
    holding: Holding,
    in_step: InStep,
    /// Where its requests go on to take turns.
    last_decoded: Rank,
    /// When its last request ended.
    idle_since: Micros,
    is_active: bool,
}

impl Tenants {
    /// One more live request of this tenant.
    pub(crate) fn join(&mut self, tenant: TenantId) -> TenantIndex {
        let next = TenantIndex(u32::try_from(self.accounts.len()).unwrap_or(u32::MAX));
        let index = *self.index.entry(tenant).or_insert(next);
        if index == next {
            self.accounts.push(Account::default());
        }
        if self.account(index).num_live == 0 {
            let floor = self.floor();
            let account = self.account_mut(index);
            account.service = account.service.max(floor);
        }
        let account = self.account_mut(index);
        account.num_live += 1;
        if !std::mem::replace(&mut account.is_active, true) {
            self.active.push(index);
        }
        index
    }

    /// One live request less.
    pub(crate) fn leave(&mut self, index: TenantIndex, now: Micros) {
        let account = self.account_mut(index);
        account.num_live -= 1;
        account.idle_since = now;
    }

    pub(crate) fn charge(&mut self, index: TenantIndex, num_tokens: u32) {
        self.account_mut(index).service += u64::from(num_tokens);
    }

    pub(crate) fn service(&self, index: TenantIndex) -> u64 {
        self.account(index).service
    }

    pub(crate) fn num_live(&self) -> u32 {
        self.accounts.iter().map(|account| account.num_live).sum()
    }

    /// Begins a step without prompt tokens. Returns how many tenants are active: those with
    /// a live request, or with one in the last `ACTIVE_FOR`.
    pub(crate) fn begin_step(&mut self, now: Micros) -> u32 {
        let accounts = &mut self.accounts;
        self.active.retain(|index| {
            let account = &mut accounts[index.0 as usize];
            account.in_step = InStep::default();
            account.is_active =
                account.num_live > 0 || now.0 < account.idle_since.0.saturating_add(ACTIVE_FOR.0);
            account.is_active
        });
        u32::try_from(self.active.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn in_step(&self, index: TenantIndex) -> InStep {
        self.account(index).in_step
    }

    pub(crate) fn in_step_mut(&mut self, index: TenantIndex) -> &mut InStep {
        &mut self.account_mut(index).in_step
    }

    pub(crate) fn last_decoded(&self, index: TenantIndex) -> Rank {
        self.account(index).last_decoded
    }

    pub(crate) fn set_last_decoded(&mut self, index: TenantIndex, rank: Rank) {
        self.account_mut(index).last_decoded = rank;
    }

    pub(crate) fn num_active(&self) -> usize {
        self.active.len()
    }

    pub(crate) fn nth_active(&self, place: usize) -> TenantIndex {
        self.active[place]
    }

    pub(crate) fn holding(&self, index: TenantIndex) -> Holding {
        self.account(index).holding
    }

    pub(crate) fn holding_mut(&mut self, index: TenantIndex) -> &mut Holding {
        &mut self.account_mut(index).holding
    }

    /// Whoever may hold something, in no order.
    pub(crate) fn active(&self) -> impl Iterator<Item = TenantIndex> {
        self.active.iter().copied()
    }

    /// All ever seen.
    pub(crate) fn all(&self) -> impl Iterator<Item = TenantIndex> {
        (0..self.accounts.len() as u32).map(TenantIndex)
    }

    fn account(&self, index: TenantIndex) -> &Account {
        &self.accounts[index.0 as usize]
    }

    fn account_mut(&mut self, index: TenantIndex) -> &mut Account {
        &mut self.accounts[index.0 as usize]
    }

    /// Where a tenant that was idle starts: beside the least served active one, or, if all were idle,
    /// beside the most served one, so that old service does not count against anybody.
    fn floor(&self) -> u64 {
        let active = self.accounts.iter().filter(|account| account.num_live > 0);
        active.map(|account| account.service).min().unwrap_or_else(|| {
            self.accounts.iter().map(|account| account.service).max().unwrap_or(0)
        })
    }
}

/// A tenant counts for so long after its last request has ended: clients pause, and what was given
/// to others in a pause takes a step or two to come back.
const ACTIVE_FOR: Micros = Micros(10_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_idle_tenant_saves_no_credit() {
        let mut tenants = Tenants::default();
        let hog = tenants.join(TenantId(7));
        tenants.charge(hog, 1000);
        let late = tenants.join(TenantId(8));
        assert_eq!(tenants.service(late), 1000);
        tenants.charge(hog, 50);
        assert!(tenants.service(late) < tenants.service(hog));
        tenants.leave(hog, Micros(0));
        tenants.leave(late, Micros(0));
        assert_eq!(tenants.num_live(), 0);
        let late = tenants.join(TenantId(8));
        assert_eq!(tenants.service(late), 1050, "all were idle: the past is forgotten");
    }

    #[test]
    fn test_tenant_is_active_until_a_while_after_its_last_request() {
        let mut tenants = Tenants::default();
        let first = tenants.join(TenantId(7));
        tenants.join(TenantId(8));
        let long_after = Micros(5 * ACTIVE_FOR.0);
        assert_eq!(tenants.begin_step(long_after), 2, "live requests count");
        tenants.leave(first, long_after);
        assert_eq!(tenants.begin_step(Micros(long_after.0 + ACTIVE_FOR.0 - 1)), 2);
        assert_eq!(tenants.begin_step(Micros(long_after.0 + ACTIVE_FOR.0)), 1);
        tenants.join(TenantId(7));
        assert_eq!(tenants.begin_step(Micros(long_after.0 + ACTIVE_FOR.0)), 2);
        assert_eq!(tenants.active().count(), 2);
    }
}
