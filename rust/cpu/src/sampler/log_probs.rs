//! Step 2 of the sampler: log-probabilities of the raw logits.

use ingle_core::{TokenId, TokenLogProbs};

use super::filter::{Candidate, top_k};
use crate::elementwise::{maximum, sum_of_exp_less};
use crate::vector_path::VectorPath;

/// Log-probs around `token`: its own, its rank, and the `count` best ids below `num_valid`.
pub(crate) fn log_probs(
    path: VectorPath,
    logits: &[f32],
    num_valid: usize,
    token: TokenId,
    count: u32,
) -> TokenLogProbs {
    let max = maximum(path, logits);
    let log_sum = max + sum_of_exp_less(path, logits, max).ln();
    let valid = &logits[..num_valid];
    let own = logits[token.index()];
    let better = valid
        .iter()
        .enumerate()
        .filter(|(id, x)| **x > own || (**x == own && *id < token.index()))
        .count();
    let mut best: Vec<Candidate> = Vec::new();
    if count > 0 {
        top_k(path, (count as usize).min(num_valid), valid, &mut best);
    }
    TokenLogProbs {
        token,
        log_prob: own - log_sum,
        rank: better as u32 + 1,
        top: best.into_iter().map(|c| (TokenId(c.id), c.x - log_sum)).collect(),
    }
}
