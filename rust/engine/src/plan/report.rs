//! What a simulated fleet did, in numbers.

use serde::Serialize;

use super::requests::Outcome;
use super::search::Slo;

/// Times in ms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    requests: usize,
    cut_requests: usize,
    seconds: f64,
    requests_per_second: f64,
    output_tokens_per_second: f64,
    ttft_ms: Quantiles,
    tpot_ms: Quantiles,
    /// Share of requests within the objective; 1 without one.
    pub(super) attained: f64,
    /// Share of the workers' time in which a step ran.
    busy: f64,
    steps: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Quantiles {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Report {
    pub(super) fn new(outcome: &Outcome, slo: &Slo) -> Self {
        let served = &outcome.served;
        let seconds = (outcome.last.0 - outcome.first.0) as f64 * 1e-6;
        let num_tokens: u64 = served.iter().map(|each| u64::from(each.num_tokens)).sum();
        Self {
            requests: served.len(),
            cut_requests: outcome.num_cut,
            seconds,
            requests_per_second: served.len() as f64 / seconds,
            output_tokens_per_second: num_tokens as f64 / seconds,
            ttft_ms: quantiles(served.iter().map(|each| each.ttft_us)),
            // A request of one token has no time between tokens.
            tpot_ms: quantiles(
                served.iter().filter(|each| each.num_tokens > 1).map(|each| each.tpot_us),
            ),
            attained: slo.attained(outcome),
            busy: outcome.busy_us as f64 * 1e-6 / (seconds * outcome.num_workers as f64),
            steps: outcome.num_steps,
        }
    }
}

fn quantiles(micros: impl Iterator<Item = f64>) -> Quantiles {
    let mut values: Vec<f64> = micros.map(|micros| micros * 1e-3).collect();
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (share * values.len() as f64) as usize;
        values.get(place.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    Quantiles { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}
