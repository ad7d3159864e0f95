//! [4] A request's place in line, while it waits and while it runs. Plain data.

use crate::Micros;
use crate::ids::TenantIndex;

/// A request's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) priority: i32,
    pub(crate) tenant: TenantIndex,
    /// Unique; counts admissions.
    pub(crate) arrival: u64,
    /// When all its waits together become too long.
    pub(crate) overdue_at: Micros,
    /// For all its tokens known now.
    pub(crate) num_blocks: u32,
}

/// How a request's tenant stands beside others; a smaller one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// No other tenant is active.
    Alone,
    /// With this request it holds at most its share.
    Within,
    /// It would hold more.
    Above,
    /// It has its prompt tokens of this step: nothing more of it starts.
    Served,
}

/// A running request's place in line: the smaller one is served first and preempted last.
///
/// The first field is 0 for a request that started on an overdue turn (then by the time it became
/// overdue), else 1 (then by priority); last comes arrival, so ranks are unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u8, i64, u64);

impl Rank {
    pub(crate) fn by_priority(ticket: &Ticket) -> Self {
        Self(1, i64::from(ticket.priority), ticket.arrival)
    }

    /// Of a request that started because it had waited too long.
    pub(crate) fn overdue(ticket: &Ticket) -> Self {
        Self(0, i64::try_from(ticket.overdue_at.0).unwrap_or(i64::MAX), ticket.arrival)
    }
}

/// Waiting for this long makes a request overdue. Ten seconds: longer than any wait that a client
/// takes for normal, shorter than the usual time-outs.
pub(crate) const OVERDUE_AFTER: Micros = Micros(10_000_000);
