//! The output of a simulated row: a pure function of the request's prompt and the position, so that
//! neither batching nor preemption can change it. Any thread.

use std::sync::Arc;

use ingle_core::{PlanRow, TokenId, TokenLogProbs, TokenSource};

/// The fixed text, as token ids.
#[derive(Clone, Debug)]
pub struct Answers {
    tokens: Arc<[TokenId]>,
}

impl Answers {
    /// Answers taken from these tokens; at least one.
    #[must_use]
    pub fn new(tokens: Arc<[TokenId]>) -> Self {
        assert!(!tokens.is_empty(), "the text to answer with has no tokens");
        Self { tokens }
    }

    /// The position in the text at which answers to this prompt begin.
    #[must_use]
    pub fn offset(&self, prompt: &[TokenId]) -> usize {
        // FNV-1a over ids; 64-bit offset basis and prime from its definition.
        let hash = prompt.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
            (hash ^ u64::from(token.0)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        // The high half is mixed better than the low one.
        (hash >> 32) as usize % self.tokens.len()
    }

    /// Token number `index` of the output of a request with this offset.
    #[must_use]
    pub fn token(&self, offset: usize, index: usize) -> TokenId {
        self.tokens[(offset + index) % self.tokens.len()]
    }

    /// The first `len` tokens that a prompt is answered with.
    #[must_use]
    pub fn expected(&self, prompt: &[TokenId], len: usize) -> Vec<TokenId> {
        let offset = self.offset(prompt);
        (0..len).map(|index| self.token(offset, index)).collect()
    }
}

/// The token if the mask allows it, else the lowest allowed one; `None` for an empty mask.
pub(crate) fn masked(token: TokenId, allowed: &[u32]) -> Option<TokenId> {
    let is_allowed =
        |id: u32| allowed.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1);
    if is_allowed(token.0) {
        return Some(token);
    }
    let (word, bits) = (0_u32..).zip(allowed).find(|&(_, &bits)| bits != 0)?;
    Some(TokenId(word * 32 + bits.trailing_zeros()))
}

/// Artificial log-probs: the token is the most likely, its neighbours by id follow.
pub(crate) fn log_probs_of(token: TokenId, top: u32, vocab_size: u32) -> TokenLogProbs {
    let log_prob = |place: u32| -0.25 - place as f32;
    let top = (0..top.min(vocab_size))
        .map(|place| (TokenId(token.0.wrapping_add(place) % vocab_size), log_prob(place)))
        .collect();
    TokenLogProbs { token, log_prob: log_prob(0), rank: 1, top }
}

/// One entry for each position of the row that a prompt token follows.
pub(crate) fn prompt_log_probs_of(row: &PlanRow, vocab_size: u32) -> Vec<TokenLogProbs> {
    let (Some(top), TokenSource::Host(ids)) = (row.wants.prompt_log_probs, &row.source) else {
        return Vec::new();
    };
    let targets = ids.iter().skip(1).copied().chain(row.wants.next_prompt_token);
    targets.map(|token| log_probs_of(token, top, vocab_size)).collect()
}

/// An artificial embedding of length 1 that depends on the prompt.
pub(crate) fn pooled_of(offset: usize, hidden_size: u32) -> Vec<f32> {
    let mut values = vec![0.0; hidden_size as usize];
    values[offset % hidden_size as usize] = 1.0;
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_answers_depend_on_prompt_and_position_only() {
        let answers = Answers::new((0..50).map(TokenId).collect());
        let prompt = [TokenId(3), TokenId(4)];
        let all = answers.expected(&prompt, 120);
        assert_eq!(all[..50], all[50..100]);
        assert_eq!(all[7], answers.token(answers.offset(&prompt), 7));
        let offsets: std::collections::HashSet<usize> =
            (0..100).map(|id| answers.offset(&[TokenId(id)])).collect();
        assert!(offsets.len() > 20, "prompts are spread over the text: {offsets:?}");
    }

    #[test]
    fn test_masks_hold() {
        assert_eq!(masked(TokenId(33), &[0, 2]), Some(TokenId(33)));
        assert_eq!(masked(TokenId(5), &[0, 12]), Some(TokenId(34)));
        assert_eq!(masked(TokenId(500), &[1]), Some(TokenId(0)));
        assert_eq!(masked(TokenId(0), &[0, 0]), None);
    }
}
