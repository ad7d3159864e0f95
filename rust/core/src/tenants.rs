//! [4] Service received by each tenant, so that the least served one goes first. Engine thread only.
//!
//! The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024,
//! section 4): every token row scheduled is charged to its tenant, and a tenant that comes back from
//! idleness is lifted to the least served active one, so that nobody saves up credit.

use std::collections::HashMap;

use crate::TenantId;

/// Counters of all tenants ever seen; as many as there are API keys.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    index: HashMap<TenantId, TenantIndex>,
    accounts: Vec<Account>,
}

/// Place of a tenant in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantIndex(pub(crate) u32);

#[derive(Debug, Default)]
struct Account {
    /// Token rows.
    service: u64,
    /// Requests that wait or run.
    num_live: u32,
}

impl Tenants {
    /// One more live request of this tenant.
    pub(crate) fn join(&mut self, tenant: TenantId) -> TenantIndex {
        let next = TenantIndex(u32::try_from(self.accounts.len()).unwrap_or(u32::MAX));
        let index = *self.index.entry(tenant).or_insert(next);
        if index == next {
            self.accounts.push(Account::default());
        }
        if self.accounts[index.0 as usize].num_live == 0 {
            let floor = self.floor();
            let account = &mut self.accounts[index.0 as usize];
            account.service = account.service.max(floor);
        }
        self.accounts[index.0 as usize].num_live += 1;
        index
    }

    /// One live request less.
    pub(crate) fn leave(&mut self, index: TenantIndex) {
        self.accounts[index.0 as usize].num_live -= 1;
    }

    pub(crate) fn charge(&mut self, index: TenantIndex, num_tokens: u32) {
        self.accounts[index.0 as usize].service += u64::from(num_tokens);
    }

    pub(crate) fn service(&self, index: TenantIndex) -> u64 {
        self.accounts[index.0 as usize].service
    }

    pub(crate) fn num_live(&self) -> u32 {
        self.accounts.iter().map(|account| account.num_live).sum()
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
        tenants.leave(hog);
        tenants.leave(late);
        assert_eq!(tenants.num_live(), 0);
        let late = tenants.join(TenantId(8));
        assert_eq!(tenants.service(late), 1050, "all were idle: the past is forgotten");
    }
}
