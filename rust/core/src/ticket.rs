//! [4] A request's place in line, while it waits and while it runs. Plain data.

use crate::ids::TenantIndex;
use crate::{ExecutorShape, Micros};

/// A request's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) priority: i32,
    pub(crate) tenant: TenantIndex,
    /// Unique; counts admissions.
    pub(crate) arrival: u64,
    /// Among requests of its tenant and priority it waits as if it had come then.
    pub(crate) place: Micros,
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

/// By how much so many prompt tokens put a request back in the line of those that wait: some times what they take to
/// compute in a step of `busy_rows`. Nothing where a step has no pause.
pub(crate) fn delay_in_line(num_tokens: u32, shape: &ExecutorShape) -> Micros {
    let rows = u64::from(shape.busy_rows.min(shape.max_num_batched_tokens).max(1));
    Micros(u64::from(num_tokens) * DELAY_IN_LINE * shape.pause.0 / rows)
}

/// More helps the shortest prompts little more and lets the longest wait longer: in a model of azure-conv, 5 takes a
/// quarter off the 90th percentile of the time to first token, and 50 a third.
const DELAY_IN_LINE: u64 = 5;
