//! [4] Which request starts next. Engine thread only.
//!
//! Order: requests within their tenant's share (`fair_share.rs`), then lowest `priority`, then least
//! served tenant; within a tenant by priority and place. The place is the time of arrival, later the longer the
//! prompt is: a short one that comes soon after a long one has its first token before it, and the long one hardly
//! later. The scheduler never skips the first request because it does not fit yet.
//!
//! Why no request starves: one in `OVERDUE_TURN` starts goes to the request that has been *overdue*
//! (waited for `OVERDUE_AFTER`) the longest, whatever its priority and tenant. If its tenant is being
//! served and has its share, the request does not displace those within theirs: the turn is then owed,
//! its tenant starts nothing else before it, and it may start once that tenant's requests have ended.
//! Starts never stop while requests wait: running requests end, because `max_tokens` bounds them, and
//! an empty pool can hold any admitted request. So the request that became overdue first starts after
//! finitely many starts. A request started on such a turn is preempted after all others of its tenant,
//! so it ends. Then the next one is first. The turn is a fraction, because a hog's backlog is overdue
//! too.

use std::collections::BTreeMap;

use crate::Micros;
use crate::counts::count;
use crate::ids::{RequestIndex, TenantIndex};
use crate::tenants::Tenants;
use crate::ticket::{Standing, Ticket};

/// Requests that may start, in order.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    by_turn: BTreeMap<TurnKey, (RequestIndex, Ticket)>,
    by_deadline: BTreeMap<(TenantIndex, Micros, u64), TurnKey>,
    /// Of the prompts in line.
    num_blocks: u64,
    num_starts: u64,
    num_tickets: u64,
    /// Requests that wait for their leader's prompt and are not in line yet.
    num_blocked: u32,
    /// Whose overdue request was passed over when it was its turn.
    owes_to: Option<TenantIndex>,
}

/// The request whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) request: RequestIndex,
    pub(crate) ticket: Ticket,
    pub(crate) standing: Standing,
    /// It starts because it waited too long.
    pub(crate) is_overdue: bool,
    /// Whose request waited too long and would have its turn now.
    passes_over: Option<TenantIndex>,
}

impl WaitingQueue {
    /// Requests in line.
    pub(crate) fn len(&self) -> usize {
        self.by_turn.len()
    }

    /// Requests that hold nothing, whether in line or waiting for their leader.
    pub(crate) fn num_waiting(&self) -> u32 {
        count(self.by_turn.len()) + self.num_blocked
    }

    /// Blocks that the prompts in line fill.
    pub(crate) fn num_blocks(&self) -> u64 {
        self.num_blocks
    }

    pub(crate) fn num_blocked(&self) -> u32 {
        self.num_blocked
    }

    pub(crate) fn add_blocked(&mut self) {
        self.num_blocked += 1;
    }

    pub(crate) fn remove_blocked(&mut self) {
        self.num_blocked -= 1;
    }

    /// A ticket for a request that has just been admitted.
    pub(crate) fn ticket(&mut self, priority: i32, tenant: TenantIndex) -> Ticket {
        let arrival = self.num_tickets;
        self.num_tickets += 1;
        let (place, overdue_at) = (Micros(0), Micros(0));
        Ticket { priority, tenant, arrival, place, overdue_at, num_blocks: 0 }
    }

    pub(crate) fn push(&mut self, request: RequestIndex, ticket: Ticket) {
        let old = self.by_turn.insert(turn_key(&ticket), (request, ticket));
        assert!(old.is_none(), "two waiting requests have the arrival number {}", ticket.arrival);
        self.by_deadline.insert(deadline_key(&ticket), turn_key(&ticket));
        self.num_blocks += u64::from(ticket.num_blocks);
    }

    pub(crate) fn remove(&mut self, ticket: &Ticket) {
        let removed = self.by_turn.remove(&turn_key(ticket));
        assert!(removed.is_some(), "a request that does not wait is taken off the queue");
        self.by_deadline.remove(&deadline_key(ticket));
        self.num_blocks -= u64::from(ticket.num_blocks);
    }

    /// Whose turn it is; the same one until it starts, a better one comes or it is removed.
    pub(crate) fn next(
        &self,
        tenants: &Tenants,
        now: Micros,
        standing_of: impl Fn(&Ticket) -> Standing,
    ) -> Option<Turn> {
        let first = self.first(tenants, now, &standing_of)?;
        if num_starts_till_overdue(self.num_starts) > 0 && self.owes_to.is_none() {
            return Some(first);
        }
        let (mut longest, mut passed_over): (Option<Turn>, Option<Turn>) = (None, None);
        for (_, Ticket { tenant, .. }) in self.first_of_tenants() {
            let Some((request, ticket)) = self.overdue_of(tenant, now) else { continue };
            let standing = standing_of(&ticket);
            if standing == Standing::Served {
                continue;
            }
            let may_go = standing <= first.standing || tenants.holding(tenant).num_slots == 0;
            let best = if may_go { &mut longest } else { &mut passed_over };
            let key = |ticket: &Ticket| (ticket.overdue_at, ticket.arrival);
            if best.is_none_or(|turn| key(&ticket) < key(&turn.ticket)) {
                let is_overdue = true;
                *best = Some(Turn { request, ticket, standing, is_overdue, passes_over: None });
            }
        }
        let passes_over = passed_over.map(|turn| turn.ticket.tenant);
        Some(longest.unwrap_or(Turn { passes_over, ..first }))
    }

    /// The request has started.
    pub(crate) fn start(&mut self, turn: &Turn) {
        self.remove(&turn.ticket);
        self.num_starts += 1;
        if turn.is_overdue {
            self.owes_to = None;
        } else if self.owes_to.is_none() {
            self.owes_to = turn.passes_over;
        }
    }

    /// When the request that has waited longest is overdue, of each tenant.
    pub(crate) fn first_overdue_at(&self) -> impl Iterator<Item = Micros> {
        let mut from = Some(TenantIndex(0));
        std::iter::from_fn(move || {
            let (&(tenant, overdue_at, _), _) =
                self.by_deadline.range((from?, Micros(0), 0)..).next()?;
            from = tenant.0.checked_add(1).map(TenantIndex);
            Some(overdue_at)
        })
    }

    /// The next request of each tenant that waits.
    pub(crate) fn first_of_tenants(&self) -> impl Iterator<Item = (RequestIndex, Ticket)> {
        let mut from = Some(TenantIndex(0));
        std::iter::from_fn(move || {
            let first = (from?, i32::MIN, Micros(0), 0);
            let (&(tenant, ..), &found) = self.by_turn.range(first..).next()?;
            from = tenant.0.checked_add(1).map(TenantIndex);
            Some(found)
        })
    }

    /// The best request, however long others wait.
    fn first(
        &self,
        tenants: &Tenants,
        now: Micros,
        standing_of: impl Fn(&Ticket) -> Standing,
    ) -> Option<Turn> {
        let turns = self.first_of_tenants().filter_map(|found| {
            let owed = (self.owes_to == Some(found.1.tenant))
                .then(|| self.overdue_of(found.1.tenant, now))
                .flatten();
            let (request, ticket) = owed.unwrap_or(found);
            let standing = standing_of(&ticket);
            let turn = Turn { request, ticket, standing, is_overdue: false, passes_over: None };
            (standing != Standing::Served).then_some(turn)
        });
        turns.min_by_key(|Turn { standing, ticket, .. }| {
            let service = tenants.service(ticket.tenant);
            (*standing, ticket.priority, service, ticket.place, ticket.arrival)
        })
    }

    /// What the tenant has waited for the longest, if that is too long.
    fn overdue_of(&self, tenant: TenantIndex, now: Micros) -> Option<(RequestIndex, Ticket)> {
        let range = (tenant, Micros(0), 0)..=(tenant, now, u64::MAX);
        let (_, turn) = self.by_deadline.range(range).next()?;
        Some(self.by_turn[turn])
    }
}

fn num_starts_till_overdue(num_starts: u64) -> u64 {
    OVERDUE_TURN - 1 - num_starts % OVERDUE_TURN
}

/// Tenant, priority, place, arrival.
type TurnKey = (TenantIndex, i32, Micros, u64);

fn turn_key(ticket: &Ticket) -> TurnKey {
    (ticket.tenant, ticket.priority, ticket.place, ticket.arrival)
}

fn deadline_key(ticket: &Ticket) -> (TenantIndex, Micros, u64) {
    (ticket.tenant, ticket.overdue_at, ticket.arrival)
}

/// One in this many starts is for the overdue.
const OVERDUE_TURN: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantId;
    use crate::ticket::OVERDUE_AFTER;

    fn ticket(priority: i32, tenant: TenantIndex, arrival: u64) -> Ticket {
        Ticket {
            priority,
            tenant,
            arrival,
            place: Micros(arrival),
            overdue_at: Micros(arrival + OVERDUE_AFTER.0),
            num_blocks: 1,
        }
    }

    fn start_next(queue: &mut WaitingQueue, tenants: &Tenants, now: u64) -> u64 {
        let turn = queue.next(tenants, Micros(now), |_| Standing::Alone).unwrap();
        queue.start(&turn);
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
        assert_eq!(queue.next(&tenants, Micros(0), |_| Standing::Alone), None);
    }

    #[test]
    fn within_a_tenant_and_priority_the_place_decides() {
        let mut tenants = Tenants::default();
        let mut queue = WaitingQueue::default();
        let tenant = tenants.join(TenantId(1));
        for (arrival, place) in [(0, 500), (1, 100), (2, 500), (3, 499)] {
            let ticket = Ticket { place: Micros(place), ..ticket(0, tenant, arrival) };
            queue.push(RequestIndex(arrival as u32), ticket);
        }
        let order: Vec<u64> = (0..4).map(|_| start_next(&mut queue, &tenants, 0)).collect();
        assert_eq!(order, [1, 3, 0, 2]);
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
            let turn = queue.next(&tenants, Micros(0), |_| Standing::Alone).unwrap();
            queue.start(&turn);
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
