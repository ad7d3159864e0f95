//! Prompt log-probs and pooled hidden states.

use ingle_core::{PooledRow, Pooling, SampleMode, TokenId, TokenLogProbs};

use crate::harness::{Harness, Request, config, model};
use crate::{MODEL, greedy, prompt};

/// Prompt log-probs of a prompt cut into chunks.
fn prompt_log_probs(prompt: &[u32], chunk: usize) -> Vec<TokenLogProbs> {
    let mut harness = Harness::new(MODEL, &config(16));
    let mut request = Request::new(0, prompt, greedy());
    let mut found = Vec::new();
    let mut done = 0;
    while done < prompt.len() {
        let count = chunk.min(prompt.len() - done);
        let mut plan = harness.plan(&mut [(&mut request, count as u32)]);
        done += count;
        plan.rows[0].wants.prompt_log_probs = Some(2);
        plan.rows[0].wants.next_prompt_token = prompt.get(done).map(|id| TokenId(*id));
        found.extend(harness.run(plan).expect("step").rows.remove(0).prompt_log_probs);
    }
    found
}

#[test]
fn test_prompt_log_probs_are_those_of_teacher_forced_steps() {
    let prompt = prompt(150);
    let whole = prompt_log_probs(&prompt, 1000);
    assert_eq!(whole.len(), prompt.len() - 1);
    for chunk in [1, 7, 70] {
        assert_eq!(whole, prompt_log_probs(&prompt, chunk), "chunks of {chunk}");
    }
    // Each is the log-prob of the token as a sampler would report it.
    let mut harness = Harness::new(MODEL, &config(16));
    for at in [1, 60, 149] {
        let mut request = Request::new(0, &prompt[..at], greedy());
        let plan = harness.plan(&mut [(&mut request, at as u32)]);
        let row = harness.run(plan).expect("step").rows.remove(0);
        let (entry, sampled) = (&whole[at - 1], &row.log_probs[0]);
        assert_eq!(entry.token, TokenId(prompt[at]));
        assert_eq!(entry.top[..], sampled.top[..2], "position {at}");
        assert!(entry.log_prob <= sampled.log_prob);
        assert_eq!(entry.rank == 1, entry.token == sampled.token);
    }
}

fn pooled(prompt: &[u32], pooling: Pooling, chunk: usize) -> Vec<f32> {
    let mut harness = Harness::new(MODEL, &config(16));
    let mut request = Request::new(0, prompt, greedy());
    let mut done = 0;
    loop {
        let count = chunk.min(prompt.len() - done);
        let mut plan = harness.plan(&mut [(&mut request, count as u32)]);
        done += count;
        let is_last = done == prompt.len();
        plan.rows[0].wants.sample = SampleMode::None;
        plan.rows[0].wants.pooled = Some(PooledRow { pooling, is_last });
        let output = harness.run(plan).expect("step");
        assert!(output.tokens.is_empty());
        let vector = output.rows[0].pooled.clone();
        assert_eq!(vector.is_empty(), !is_last);
        if is_last {
            return vector;
        }
    }
}

#[test]
fn test_pooled_states_do_not_depend_on_chunks() {
    let prompt = prompt(40);
    for pooling in [Pooling::Mean, Pooling::Last] {
        let whole = pooled(&prompt, pooling, 1000);
        assert_eq!(whole.len(), model(MODEL).spec.hidden_size as usize);
        assert_eq!(whole, pooled(&prompt, pooling, 7), "{pooling:?}");
    }
    // The mean is that of the states that shorter prompts end with.
    let lasts: Vec<Vec<f32>> =
        (1..=5).map(|len| pooled(&prompt[..len], Pooling::Last, 1000)).collect();
    let mean = pooled(&prompt[..5], Pooling::Mean, 1000);
    for (i, mean) in mean.iter().enumerate() {
        let want: f32 = lasts.iter().map(|last| last[i]).sum::<f32>() / 5.0;
        assert!((mean - want).abs() < 1e-5, "element {i}: {mean}, {want}");
    }
}
