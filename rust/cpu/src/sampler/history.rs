//! What the sampler needs to know about earlier tokens. It is rebuilt from token ids whenever a
//! request enters a slot, so preemption changes nothing.

use std::collections::HashMap;

use ingle_core::{SamplingParams, TokenId};

/// Bound of a logit after penalties; far from any real one, and finite under every temperature.
const MOST_PENALISED: f32 = 1e30;

/// Tokens of one request so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    output_len: u32,
    /// How often the output holds an id; ids of the prompt are there with 0. Absent without penalties.
    counts: Option<HashMap<TokenId, u32>>,
}

impl History {
    pub(crate) fn new(params: &SamplingParams, prompt: &[TokenId], generated: &[TokenId]) -> Self {
        let counts = params.has_penalties().then(|| prompt.iter().map(|id| (*id, 0)).collect());
        let mut history = Self { output_len: 0, counts };
        for id in generated {
            history.push(*id);
        }
        history
    }

    /// Position of the next token in the output.
    pub(crate) fn output_len(&self) -> u32 {
        self.output_len
    }

    /// Takes in a sampled token.
    pub(crate) fn push(&mut self, id: TokenId) {
        self.output_len += 1;
        if let Some(counts) = &mut self.counts {
            *counts.entry(id).or_insert(0) += 1;
        }
    }

    /// Step 5 of the sampler.
    pub(crate) fn apply_penalties(&self, params: &SamplingParams, values: &mut [f32]) {
        let Some(counts) = &self.counts else { return };
        for (id, count) in counts {
            let Some(x) = values.get_mut(id.index()) else { continue };
            // What a mask has ruled out stays out.
            if *x == f32::NEG_INFINITY {
                continue;
            }
            let repetition = params.repetition_penalty;
            *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
            if *count > 0 {
                *x = *x - params.frequency_penalty * *count as f32 - params.presence_penalty;
            }
            // A tiny repetition penalty overflows; an infinite logit would be no number after the softmax.
            *x = x.clamp(-MOST_PENALISED, MOST_PENALISED);
        }
    }
}
