//! Compares the sampler with a slow version written from the contract, and with probabilities.

use super::*;
use crate::testing::Random;

fn auto() -> VectorPath {
    VectorPath::resolve(crate::CpuPath::Auto).expect("path")
}

/// Steps 1 to 11 with a full sort and no shortcuts.
fn slow(row: &SampleRow<'_>, prompt: &[u32], output: &[u32]) -> Option<TokenId> {
    if row.logits.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let params = row.params;
    let mut xs: Vec<(f32, u32)> =
        row.logits[..row.num_valid].iter().zip(0..).map(|(x, id)| (*x, id)).collect();
    for (id, bias) in &params.logit_bias {
        xs.iter_mut().filter(|(_, other)| *other == id.0).for_each(|(x, _)| *x += bias);
    }
    xs.retain(|(_, id)| {
        let allowed =
            params.allowed_token_ids.as_ref().is_none_or(|all| all.contains(&TokenId(*id)));
        let masked = row.mask.is_some_and(|mask| mask[*id as usize / 32] >> (id % 32) & 1 == 0);
        let banned = (output.len() as u32) < params.min_tokens
            && params.min_tokens_banned.contains(&TokenId(*id));
        allowed && !masked && !banned
    });
    for (x, id) in &mut xs {
        let is_known = prompt.contains(id) || output.contains(id);
        if is_known {
            let r = params.repetition_penalty;
            *x = if *x > 0.0 { *x / r } else { *x * r };
        }
        let count = output.iter().filter(|other| **other == *id).count();
        if count > 0 {
            *x = *x - params.frequency_penalty * count as f32 - params.presence_penalty;
        }
        if is_known && params.has_penalties() {
            *x = x.clamp(-1e30, 1e30);
        }
    }
    xs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let max = xs.first()?.0;
    if params.temperature == 0.0 {
        return Some(TokenId(xs[0].1));
    }
    xs.iter_mut().for_each(|(x, _)| *x = (*x - max) / params.temperature);
    let of_all = |f: &dyn Fn(f64) -> f64| {
        xs.iter().map(|(x, _)| f(f64::from(*x))).sum::<f64>() / xs.len() as f64
    };
    let mean = of_all(&|x| x);
    let sigma = of_all(&|x| (x - mean) * (x - mean)).sqrt() as f32;
    if params.top_k > 0 {
        xs.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let total: f64 = xs.iter().map(|(x, _)| f64::from(*x).exp()).sum();
        let mut reached = 0.0;
        let mut keep = 0;
        while keep < xs.len() && (keep == 0 || reached < f64::from(params.top_p) * total) {
            reached += f64::from(xs[keep].0).exp();
            keep += 1;
        }
        xs.truncate(keep);
    }
    xs.retain(|(x, _)| params.top_n_sigma == 0.0 || *x >= -params.top_n_sigma * sigma);
    xs.retain(|(x, _)| params.min_p == 0.0 || *x >= params.min_p.ln());
    let key = philox::RowKey::new(params.seed, params.choice_index, output.len() as u32);
    let all: Vec<Candidate> = xs.iter().map(|(x, id)| Candidate { x: *x, id: *id }).collect();
    Some(philox::gumbel_max_of(key, &all))
}

fn random_params(random: &mut Random, vocab: u32) -> SamplingParams {
    let mut pick = |choices: &[f32]| choices[(random.bits() % choices.len() as u64) as usize];
    let mut params = SamplingParams {
        temperature: pick(&[0.0, 0.3, 1.0, 2.0]),
        top_k: pick(&[0.0, 0.0, 1.0, 5.0, 40.0, 1e6]) as u32,
        top_p: pick(&[1.0, 1.0, 0.9, 0.5, 0.999]),
        min_p: pick(&[0.0, 0.0, 0.05, 0.5]),
        top_n_sigma: pick(&[0.0, 0.0, 0.3, 1.0, 2.5]),
        repetition_penalty: pick(&[1.0, 1.0, 1.3, 0.8, 0.01, 100.0, 1e-40]),
        presence_penalty: pick(&[0.0, 0.0, 0.7, -0.5]),
        frequency_penalty: pick(&[0.0, 0.0, 0.4]),
        min_tokens: pick(&[0.0, 3.0, 100.0]) as u32,
        ..SamplingParams::default()
    };
    let mut ids = |count: u64| -> Vec<TokenId> {
        (0..count).map(|_| TokenId((random.bits() % u64::from(vocab)) as u32)).collect()
    };
    params.min_tokens_banned = ids(3);
    params.logit_bias = ids(4).into_iter().map(|id| (id, 2.5)).collect();
    let mut allowed = ids(60);
    allowed.sort_unstable();
    allowed.dedup();
    params.seed = random.bits();
    if random.bits().is_multiple_of(4) {
        params.allowed_token_ids = Some(allowed);
    }
    if random.bits().is_multiple_of(2) {
        params.logit_bias.clear();
    }
    params
}

#[test]
fn test_every_parameter_does_what_the_contract_says() {
    let mut scratch = SamplerScratch::default();
    for seed in 0..3000 {
        let mut random = Random(seed);
        let vocab = [7, 64, 300, 1000][seed as usize % 4];
        let num_valid = vocab as usize - seed as usize % 3;
        let spread = [1.0, 8.0, 30.0][seed as usize % 3];
        let mut logits: Vec<f32> = (0..vocab).map(|_| random.float() * spread).collect();
        // Ties, and now and then something broken.
        let copied = (random.bits() % u64::from(vocab)) as usize;
        logits[0] = logits[copied];
        if seed % 50 == 0 {
            logits[copied] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][seed as usize / 50 % 3];
        }
        let params = random_params(&mut random, vocab);
        let mut tokens = |count: u64| -> Vec<u32> {
            (0..count).map(|_| (random.bits() % u64::from(vocab)) as u32).collect()
        };
        let (prompt, output) = (tokens(9), tokens(seed % 7));
        let mask: Vec<u32> =
            (0..vocab.div_ceil(32)).map(|_| (random.bits() | random.bits()) as u32).collect();
        let newtypes = |ids: &[u32]| ids.iter().map(|id| TokenId(*id)).collect::<Vec<_>>();
        let history = History::new(&params, &newtypes(&prompt), &newtypes(&output));
        let row = SampleRow {
            logits: &logits,
            params: &params,
            history: &history,
            mask: (seed % 5 == 0).then_some(&*mask),
            num_valid,
        };
        let ours = sample(auto(), &row, &mut scratch);
        assert_eq!(ours, slow(&row, &prompt, &output), "seed {seed}, {params:?}");
        for path in VectorPath::all() {
            assert_eq!(ours, sample(path, &row, &mut scratch), "seed {seed}, {}", path.name());
        }
    }
}

#[test]
fn test_frequencies_follow_the_probabilities() {
    let logits = [1.0f32, 0.0, 2.0, -1.0, 1.5, 0.5];
    let params = SamplingParams { temperature: 0.8, seed: 42, ..SamplingParams::default() };
    let total: f64 = logits.iter().map(|x| (f64::from(*x) / 0.8).exp()).sum();
    let mut counts = [0u32; 6];
    let mut history = History::default();
    let mut scratch = SamplerScratch::default();
    let draws = 40_000;
    for _ in 0..draws {
        let row = SampleRow {
            logits: &logits,
            params: &params,
            history: &history,
            mask: None,
            num_valid: 6,
        };
        let token = sample(auto(), &row, &mut scratch).expect("token");
        counts[token.index()] += 1;
        history.push(token);
    }
    let chi_square: f64 = counts
        .iter()
        .zip(logits)
        .map(|(count, x)| {
            let expected = f64::from(draws) * (f64::from(x) / 0.8).exp() / total;
            (f64::from(*count) - expected).powi(2) / expected
        })
        .sum();
    // Five degrees of freedom: one in ten thousand lies above 25.7.
    assert!(chi_square < 25.7, "chi square {chi_square}, counts {counts:?}");
}

#[test]
fn test_log_probs_count_the_whole_row_and_rank_the_known_ids() {
    // Ids 4 and 5 are unknown to the tokenizer, 1 and 3 tie.
    let logits = [0.5f32, 2.0, -1.0, 2.0, 9.0, 1.0];
    let log_sum = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
    let around = log_probs(auto(), &logits, 4, TokenId(3), 3);
    assert!((f64::from(around.log_prob) - (2.0 - log_sum)).abs() < 1e-6);
    assert_eq!(around.rank, 2);
    let ids: Vec<u32> = around.top.iter().map(|(id, _)| id.0).collect();
    assert_eq!(ids, [1, 3, 0]);
    assert_eq!(around.top[1].1, around.log_prob);
    assert_eq!(log_probs(auto(), &logits, 4, TokenId(1), 0).rank, 1);
}
