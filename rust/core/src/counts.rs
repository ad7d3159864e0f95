//! Counters for lists, history and current state. Plain data, any thread.

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
    /// KV blocks that are handed out.
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

/// The length of one of our own lists; all are bounded by u32 sizes.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
