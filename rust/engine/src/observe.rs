//! [7] What a request's tokens and its end add to the histograms. Engine thread.

use ingle_core::Micros;

use crate::choice::Choice;
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::trace::{Trace, TraceId};

/// Tokens that a choice has just got.
pub(crate) fn observe_tokens(
    metrics: &Metrics,
    choice: &mut Choice,
    taken: u64,
    (submitted_at, now): (Micros, Micros),
    trace: &Option<Box<Trace>>,
) {
    if taken == 0 {
        return;
    }
    if u64::from(choice.num_output_tokens) == taken {
        choice.first_token_at = Some(now);
        let trace = trace.as_ref().map(|trace| trace.id);
        metrics.time_to_first_token.observe_of(now.0.saturating_sub(submitted_at.0), trace);
    } else {
        let gap = now.0.saturating_sub(choice.last_token_at.0);
        for _ in 0..taken {
            metrics.inter_token_latency.observe(gap / taken);
        }
    }
    choice.last_token_at = now;
}

/// A choice that has just ended.
pub(crate) fn observe_end(
    shared: &Shared,
    choice: &Choice,
    (submitted_at, now): (Micros, Micros),
    trace: Option<TraceId>,
) {
    let metrics = &shared.metrics;
    metrics.e2e_latency.observe_of(now.0.saturating_sub(submitted_at.0), trace);
    metrics.request_generation_tokens.observe_of(u64::from(choice.num_output_tokens), trace);
    let Some(first) = choice.first_token_at else { return };
    let inference = now.0.saturating_sub(choice.scheduled_at.0);
    let decode = now.0.saturating_sub(first.0);
    metrics.inference_time.observe_of(inference, trace);
    metrics.decode_time.observe_of(decode, trace);
    shared.observe_service(inference);
    if choice.num_output_tokens > 1 {
        let each = decode / u64::from(choice.num_output_tokens - 1);
        metrics.time_per_output_token.observe_of(each, trace);
    }
}
