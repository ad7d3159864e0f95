//! [6] Turns one row of logits into one token id: the definition that every device is tested against.
//! Workers run it, one row each; a row's result depends only on its own logits, parameters and history.
//!
//! `V` is the vocabulary of the model, and the tokenizer does not know ids from `num_valid` on.
//!
//! 1. If one of the `V` logits is NaN or infinite, the row is `NotFinite` and the
//!    following steps are skipped.
//! 2. Log-probs, if requested, are `logit - ln(sum of e^logit over V)` of the unchanged logits.
//!    Ranks and best tokens consider ids below `num_valid`; among equal values the lowest id comes first.
//! 3. From here on only ids below `num_valid` exist. `logit_bias` is added (several entries of one id are
//!    summed).
//! 4. Removed are ids outside `allowed_token_ids`, ids whose bit is clear in the row's mask, and
//!    `min_tokens_banned` while the output is shorter than `min_tokens`. A row with no id left is
//!    reported as `NotFinite`, since no token can be sampled.
//! 5. Penalties. For every id in prompt or output: `x = x / r` if x is above 0, else `x * r`, with r the
//!    repetition penalty. Then for every id that occurs c times in the output:
//!    `x - f * c - p` with frequency penalty f and presence penalty p. The result is clamped to -1e30 to 1e30.
//! 6. Temperature 0: the highest x wins, the lowest id on a tie. Else `x = (x - max) / temperature`.
//! 7. Top-k: the first k ids in the order (x falling, id rising) are kept.
//! 8. Top-p: in the same order, the shortest prefix whose `sum of e^x` reaches top-p times the sum over
//!    all ids kept by step 7. At least one is kept.
//! 9. Min-p: ids with `x >= ln(min_p)` are kept; the best one, x = 0, always is.
//! 10. Top-n-sigma: ids with `x >= -top_n_sigma * s` are kept, s the standard deviation of x over all ids
//!     that step 4 left.
//! 11. The highest `x + g` wins, the lowest id on a tie, with Gumbel noise
//!     `g = -ln(-ln((floor(w / 512) + 0.5) / 2^23))`, w the id's 32 random bits (`philox.rs`).
//!
//! Values are f32; sums of step 8 are f64 along the order, the sum over all ids is f32 in 16 lanes
//! (lane = id modulo 16) where no top-k made a list.

mod filter;
mod history;
mod log_probs;
mod philox;

use ingle_core::{SamplingParams, TokenId};

pub(crate) use history::History;
pub(crate) use log_probs::log_probs;

use self::filter::{Candidate, top_k, top_p};
use crate::elementwise::{all_finite, maximum};
use crate::vector_path::VectorPath;

/// One row to sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRow<'a> {
    /// `[vocab_size]`
    pub(crate) logits: &'a [f32],
    pub(crate) params: &'a SamplingParams,
    pub(crate) history: &'a History,
    /// One bit an id.
    pub(crate) mask: Option<&'a [u32]>,
    /// Ids below this may be sampled.
    pub(crate) num_valid: usize,
}

/// Memory of one worker's sampler; grows to the vocabulary's size once.
#[derive(Debug, Default)]
pub(crate) struct SamplerScratch {
    /// `[num_valid]` logits on their way through the steps.
    values: Vec<f32>,
    /// What the filters left.
    candidates: Vec<Candidate>,
    /// `[num_valid]` their exponentials.
    powers: Vec<f32>,
}

/// Samples one token; `None` if a logit is not finite or no token may be sampled.
pub(crate) fn sample(
    path: VectorPath,
    row: &SampleRow<'_>,
    scratch: &mut SamplerScratch,
) -> Option<TokenId> {
    if !all_finite(path, row.logits) {
        return None;
    }
    let logits = &row.logits[..row.num_valid];
    let params = row.params;
    if params.temperature == 0.0 && is_untouched(row) {
        return Some(first_maximum(logits, maximum(path, logits)));
    }
    let SamplerScratch { values, candidates, powers } = scratch;
    values.clear();
    values.extend_from_slice(logits);
    add_bias(params, values);
    remove(row, values);
    row.history.apply_penalties(params, values);
    let max = maximum(path, values);
    if max == f32::NEG_INFINITY {
        return None;
    }
    if params.temperature == 0.0 {
        return Some(first_maximum(values, max));
    }
    for x in values.iter_mut() {
        *x = (*x - max) / params.temperature;
    }
    let floor = floor(params, values);
    candidates.clear();
    let mut filtered = false;
    if params.top_k > 0 && (params.top_k as usize) < values.len() {
        top_k(path, params.top_k as usize, values, candidates);
        filtered = true;
    }
    if params.top_p < 1.0 {
        top_p(path, params.top_p, values, filtered, candidates);
        filtered = true;
    }
    let key = philox::RowKey::new(params.seed, params.choice_index, row.history.output_len());
    Some(if filtered {
        candidates.retain(|candidate| candidate.x >= floor);
        philox::gumbel_max_of(key, candidates)
    } else {
        philox::gumbel_max(path, key, values, floor, powers)
    })
}

/// Whether steps 3 to 5 change nothing.
fn is_untouched(row: &SampleRow<'_>) -> bool {
    row.mask.is_none()
        && row.params.logit_bias.is_empty()
        && row.params.allowed_token_ids.is_none()
        && !row.params.has_penalties()
        && row.history.output_len() >= row.params.min_tokens
}

fn first_maximum(values: &[f32], max: f32) -> TokenId {
    // The maximum is one of the finite values, so the position exists.
    TokenId(values.iter().position(|x| *x == max).unwrap_or(0) as u32)
}

fn add_bias(params: &SamplingParams, values: &mut [f32]) {
    for (id, bias) in &params.logit_bias {
        if let Some(x) = values.get_mut(id.index()) {
            *x += bias;
        }
    }
}

/// Of steps 9 and 10: an id below it is dropped. The best id, 0, never is.
fn floor(params: &SamplingParams, values: &[f32]) -> f32 {
    let mut floor = f32::NEG_INFINITY;
    if params.min_p > 0.0 {
        floor = params.min_p.ln();
    }
    if params.top_n_sigma > 0.0 {
        floor = floor.max(-params.top_n_sigma * standard_deviation(values));
    }
    floor
}

/// Over the ids that are left, of which there is one at least.
fn standard_deviation(values: &[f32]) -> f32 {
    let (mut count, mut sum, mut squares) = (0_u32, 0.0, 0.0);
    for x in values.iter().filter(|x| **x > f32::NEG_INFINITY) {
        let x = f64::from(*x);
        count += 1;
        sum += x;
        squares += x * x;
    }
    let mean = sum / f64::from(count);
    (squares / f64::from(count) - mean * mean).max(0.0).sqrt() as f32
}

/// Step 4.
fn remove(row: &SampleRow<'_>, values: &mut [f32]) {
    if let Some(allowed) = &row.params.allowed_token_ids {
        let mut next = 0;
        for id in allowed {
            let id = id.index().min(values.len());
            values[next.min(id)..id].fill(f32::NEG_INFINITY);
            next = id + 1;
        }
        let next = next.min(values.len());
        values[next..].fill(f32::NEG_INFINITY);
    }
    if let Some(mask) = row.mask {
        for (values, word) in values.chunks_mut(32).zip(mask.iter().chain(std::iter::repeat(&0))) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, x) in values.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }
    if row.history.output_len() < row.params.min_tokens {
        for id in &row.params.min_tokens_banned {
            if let Some(x) = values.get_mut(id.index()) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
