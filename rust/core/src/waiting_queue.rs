//! [4] Who starts next. Engine thread only.
//!
//! Order: lowest `priority` first; within it the least served tenant; within a tenant by arrival. The
//! batcher never passes over the first request because it does not fit yet.
//!
//! Why nobody starves: one in `OVERDUE_TURN` starts goes to the request that has been *overdue*
//! (waited for `OVERDUE_AFTER`) the longest, whatever its priority and tenant. Starts never cease
//! while somebody waits: what runs ends, because `max_tokens` bounds it, and an empty pool can hold
//! any admitted request. So the request that became overdue first starts after finitely many starts;
//! a request started on such a turn is preempted after all others only, so it ends. Then the next one
//! is the first. The turn is a fraction, because a hog's backlog is overdue too and must not push
//! polite tenants aside.

use std::collections::{BTreeMap, BTreeSet};

use crate::Micros;
use crate::request_table::RequestIndex;
use crate::tenants::{TenantIndex, Tenants};

/// Requests that may start, in order.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    by_turn: BTreeMap<(i32, TenantIndex, u64), (RequestIndex, Ticket)>,
    by_deadline: BTreeSet<(Micros, u64, i32, TenantIndex)>,
    num_starts: u64,
}

/// A request's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) priority: i32,
    pub(crate) tenant: TenantIndex,
    /// Unique; counts admissions.
    pub(crate) arrival: u64,
    /// When it has waited too long, all its waits taken together.
    pub(crate) overdue_at: Micros,
}

/// The request whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) request: RequestIndex,
    pub(crate) ticket: Ticket,
    /// It starts because it waited too long.
    pub(crate) is_overdue: bool,
}

impl WaitingQueue {
    pub(crate) fn len(&self) -> usize {
        self.by_turn.len()
    }

    pub(crate) fn push(&mut self, request: RequestIndex, ticket: Ticket) {
        let old = self.by_turn.insert(turn_key(&ticket), (request, ticket));
        assert!(old.is_none(), "two waiting requests have the arrival number {}", ticket.arrival);
        self.by_deadline.insert(deadline_key(&ticket));
    }

    pub(crate) fn remove(&mut self, ticket: &Ticket) {
        let removed = self.by_turn.remove(&turn_key(ticket));
        assert!(removed.is_some(), "a request that does not wait is taken off the queue");
        self.by_deadline.remove(&deadline_key(ticket));
    }

    /// Whose turn it is; the same one until it starts, a better one comes or it is removed.
    pub(crate) fn next(&self, tenants: &Tenants, now: Micros) -> Option<Turn> {
        if self.num_starts % OVERDUE_TURN == OVERDUE_TURN - 1
            && let Some(&(overdue_at, arrival, priority, tenant)) = self.by_deadline.first()
            && overdue_at <= now
        {
            let (request, ticket) = self.by_turn[&(priority, tenant, arrival)];
            return Some(Turn { request, ticket, is_overdue: true });
        }
        let (request, ticket) = self.least_served(tenants)?;
        Some(Turn { request, ticket, is_overdue: false })
    }

    /// The request has started.
    pub(crate) fn start(&mut self, ticket: &Ticket) {
        self.remove(ticket);
        self.num_starts += 1;
    }

    /// The oldest request of the least served tenant among those with the lowest priority number.
    fn least_served(&self, tenants: &Tenants) -> Option<(RequestIndex, Ticket)> {
        let (&(priority, ..), _) = self.by_turn.first_key_value()?;
        let mut best: Option<((u64, u64), (RequestIndex, Ticket))> = None;
        let mut from = TenantIndex(0);
        while let Some((&(_, tenant, arrival), &found)) = self
            .by_turn
            .range((priority, from, 0)..=(priority, TenantIndex(u32::MAX), u64::MAX))
            .next()
        {
            let key = (tenants.service(tenant), arrival);
            if best.is_none_or(|(best_key, _)| key < best_key) {
                best = Some((key, found));
            }
            from = TenantIndex(tenant.0 + 1);
        }
        best.map(|(_, found)| found)
    }
}

fn turn_key(ticket: &Ticket) -> (i32, TenantIndex, u64) {
    (ticket.priority, ticket.tenant, ticket.arrival)
}

fn deadline_key(ticket: &Ticket) -> (Micros, u64, i32, TenantIndex) {
    (ticket.overdue_at, ticket.arrival, ticket.priority, ticket.tenant)
}

/// Waiting for this long makes a request overdue. Ten seconds: longer than any wait that a client
/// takes for normal, shorter than the usual time-outs.
pub(crate) const OVERDUE_AFTER: Micros = Micros(10_000_000);

/// One in this many starts is for the overdue.
const OVERDUE_TURN: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantId;

    fn ticket(priority: i32, tenant: TenantIndex, arrival: u64) -> Ticket {
        Ticket { priority, tenant, arrival, overdue_at: Micros(arrival + OVERDUE_AFTER.0) }
    }

    fn start_next(queue: &mut WaitingQueue, tenants: &Tenants, now: u64) -> u64 {
        let turn = queue.next(tenants, Micros(now)).unwrap();
        queue.start(&turn.ticket);
        turn.ticket.arrival
    }

    #[test]
    fn test_priority_then_tenant_then_arrival() {
        let mut tenants = Tenants::default();
        let mut queue = WaitingQueue::default();
        let (a, b) = (tenants.join(TenantId(1)), tenants.join(TenantId(2)));
        tenants.charge(a, 10);
        for (arrival, priority, tenant) in [(1, 0, a), (2, 0, a), (3, 0, b), (4, -1, a), (5, 1, b)]
        {
            queue.push(RequestIndex(arrival as u32), ticket(priority, tenant, arrival));
        }
        let order: Vec<u64> = (0..5).map(|_| start_next(&mut queue, &tenants, 0)).collect();
        assert_eq!(order, [4, 3, 1, 2, 5]);
        assert_eq!(queue.next(&tenants, Micros(0)), None);
    }

    #[test]
    fn test_one_hog_gets_its_share_only() {
        let mut tenants = Tenants::default();
        let mut queue = WaitingQueue::default();
        let hog = tenants.join(TenantId(1));
        for arrival in 0..100 {
            queue.push(RequestIndex(arrival), ticket(0, hog, u64::from(arrival)));
        }
        let polite = tenants.join(TenantId(2));
        for arrival in 100..110 {
            queue.push(RequestIndex(arrival), ticket(0, polite, u64::from(arrival)));
        }
        let mut polite_starts = 0;
        for _ in 0..20 {
            let turn = queue.next(&tenants, Micros(0)).unwrap();
            queue.start(&turn.ticket);
            tenants.charge(turn.ticket.tenant, 100);
            polite_starts += u32::from(turn.ticket.tenant == polite);
        }
        assert_eq!(polite_starts, 10);
    }

    #[test]
    fn test_overdue_request_starts_under_a_stream_of_better_ones() {
        let mut tenants = Tenants::default();
        let mut queue = WaitingQueue::default();
        let tenant = tenants.join(TenantId(1));
        queue.push(RequestIndex(0), ticket(9, tenant, 0));
        let mut starts = 0;
        for arrival in 1.. {
            queue.push(RequestIndex(1), ticket(0, tenant, arrival));
            if start_next(&mut queue, &tenants, OVERDUE_AFTER.0) == 0 {
                break;
            }
            starts += 1;
            assert!(starts <= OVERDUE_TURN, "it never starts");
        }
    }
}
