//! How many workers a load takes: a fleet in virtual time. Each worker is the real scheduler with the step
//! times of a profile (`ingle_sim::Profile`); nothing is computed. Caller's thread.

mod fleet;
mod report;
mod requests;
mod search;
#[cfg(test)]
mod tests;
mod worker;

use std::path::PathBuf;

use ingle_sim::Profile;
use serde::Deserialize;
use serde_json::json;

use crate::error::EngineError;
use fleet::{FleetShape, simulate};
use report::Report;
use requests::Arrival;
use search::{Slo, fewest};

/// What to simulate: the JSON document of `plan`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanOptions {
    /// Requests in order of arrival: seconds, prompt tokens, answer tokens.
    arrivals: Vec<(f64, u32, u32)>,
    /// A profile's file; absent, an 8B model on one H200.
    profile: Option<PathBuf>,
    /// So many workers; absent, the fewest that meet the objective.
    workers: Option<usize>,
    /// Fleets of many workers are groups behind routers of their own; a request goes to a random one.
    groups: Option<usize>,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_model_len: u32,
    /// Time to first token that a request should see, in ms.
    slo_ttft_ms: Option<f64>,
    /// Time per output token after the first, in ms.
    slo_tpot_ms: Option<f64>,
    /// The share of requests that should see both.
    attainment: f64,
    seed: u64,
}

/// Simulates a fleet, or finds the smallest that meets an objective. Gives a JSON report. Blocking, about a
/// minute for each 100 million tokens.
///
/// # Errors
/// `EngineError::Model` for a document or profile that is not one, or an objective that no fleet meets.
pub fn plan(document: &[u8]) -> Result<Vec<u8>, EngineError> {
    let failed = |text: String| EngineError::Model(format!("plan: {text}"));
    let options: PlanOptions =
        serde_json::from_slice(document).map_err(|error| failed(error.to_string()))?;
    let profile = match &options.profile {
        Some(file) => Profile::load(file).map_err(|error| failed(error.to_string()))?,
        None => Profile::default(),
    };
    let shape = FleetShape {
        executor: profile.shape(
            BLOCK_SIZE,
            options.max_num_seqs,
            options.max_num_batched_tokens,
            2,
        ),
        profile,
        max_model_len: options.max_model_len,
        seed: options.seed,
    };
    let arrivals: Vec<Arrival> = options.arrivals.iter().map(Arrival::new).collect();
    if arrivals.is_empty() {
        return Err(failed("the trace has no requests".to_owned()));
    }
    let slo = Slo {
        ttft_us: options.slo_ttft_ms.map(|ms| ms * 1e3),
        tpot_us: options.slo_tpot_ms.map(|ms| ms * 1e3),
        attainment: options.attainment,
    };
    let groups_of = |workers: usize| options.groups.unwrap_or(workers.div_ceil(GROUP)).min(workers);
    let run = |workers: usize| simulate(&shape, &arrivals, workers, groups_of(workers));
    let (workers, served) = match options.workers {
        Some(workers) => (workers, run(workers)),
        None => fewest(&slo, run).ok_or_else(|| {
            failed("no fleet meets the objective: it fails for a request that is alone".to_owned())
        })?,
    };
    let report = Report::new(&served, &slo);
    let body = json!({
        "profile": shape.profile.name,
        "workers": workers,
        "groups": groups_of(workers),
        "report": report,
    });
    Ok(body.to_string().into_bytes())
}

/// Tokens; what a GPU has by default.
const BLOCK_SIZE: u32 = 64;
/// Workers behind one router, unless the caller says otherwise.
const GROUP: usize = 100;
