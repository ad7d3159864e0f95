//! The requests of a simulated fleet, as they come and as they end. Plain data.

use ingle_core::Micros;

/// A request of the trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrival {
    pub(super) at: Micros,
    pub(super) num_prompt: u32,
    pub(super) num_answer: u32,
}

impl Arrival {
    pub(super) fn new(&(seconds, num_prompt, num_answer): &(f64, u32, u32)) -> Self {
        Self {
            at: Micros((seconds.max(0.0) * 1e6) as u64),
            num_prompt: num_prompt.max(1),
            num_answer: num_answer.max(1),
        }
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Served {
    pub(super) end: Micros,
    pub(super) num_tokens: u32,
    pub(super) ttft_us: f64,
    /// Mean between tokens.
    pub(super) tpot_us: f64,
}

/// What a fleet did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) served: Vec<Served>,
    pub(super) first: Micros,
    pub(super) last: Micros,
    /// Of all workers, while a step ran.
    pub(super) busy_us: u64,
    pub(super) num_steps: u64,
    pub(super) num_workers: usize,
    /// Requests that were cut to the context.
    pub(super) num_cut: usize,
}
