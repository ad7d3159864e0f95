//! How one request's next token is chosen. Plain data, shared by plan and executor. Any thread.

use crate::TokenId;

/// Sampling parameters of one request, already validated and complete.
///
/// The order of the sampler is fixed: raw log-probs, `logit_bias`, allowed ids and masks, penalties,
/// temperature, top-k, top-p, min-p, then Gumbel-max with Philox keyed by seed, choice index, output
/// position and token id. A temperature of 0 is argmax; the lowest id wins a tie.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy. Range 0 to 2 on HTTP; any finite value that is not negative here.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches `top_p`; 1 keeps all. In (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all. In [0, 1].
    pub min_p: f32,
    /// Above 1 makes tokens of prompt and output less likely; 1 is off.
    pub repetition_penalty: f32,
    /// Taken once from every token the output holds; 0 is off.
    pub presence_penalty: f32,
    /// Taken from a token as often as the output holds it; 0 is off.
    pub frequency_penalty: f32,
    /// Added to raw logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// If set, no other token can be sampled; sorted, without doubles, not empty.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// While the output is shorter than this, `min_tokens_banned` cannot be sampled.
    pub min_tokens: u32,
    /// The ids that `min_tokens` holds back: end-of-text and stop ids.
    pub min_tokens_banned: Vec<TokenId>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Which of the `n` choices this is; part of the random key.
    pub choice_index: u32,
    /// Log-probs wanted with each sampled token: `Some(k)` is the token itself and the `k` best.
    pub log_probs: Option<u32>,
}

impl Default for SamplingParams {
    /// Greedy, nothing else changed.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            min_tokens: 0,
            min_tokens_banned: Vec::new(),
            seed: 0,
            choice_index: 0,
            log_probs: None,
        }
    }
}

impl SamplingParams {
    /// Whether the sampler must know which tokens came before.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}
