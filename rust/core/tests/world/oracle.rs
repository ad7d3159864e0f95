//! What a request must answer, whatever the scheduler does: a function of its prompt and its stop rules.

use std::sync::Arc;

use ingle_core::{
    CoreEvent, FinishReason, NewRequest, RequestId, RequestKind, SamplingParams, StopRules,
    TenantId, TokenId,
};
use ingle_sim::Answers;

/// One request as its client sees it.
pub struct Tracked {
    pub id: RequestId,
    pub tenant: TenantId,
    pub prompt: Arc<[TokenId]>,
    pub tokens: Vec<TokenId>,
    pub end: Option<FinishReason>,
    pub num_cached_tokens: Option<u32>,
    /// The test ends it after this many tokens, as a stop string would.
    pub stops_after: Option<usize>,
    expected: Vec<TokenId>,
    /// How it ends if nobody interferes.
    expected_end: FinishReason,
    expected_stop_token: Option<TokenId>,
    is_embedding: bool,
    is_late: bool,
    vocab_size: u32,
    wants_prompt_log_probs: bool,
    num_prompt_log_probs: usize,
    is_pooled: bool,
}

impl Tracked {
    pub fn new(request: &NewRequest, answers: &Answers, vocab_size: u32) -> Self {
        let is_embedding = matches!(request.kind, RequestKind::Embed(_));
        let mut tracked = Self {
            id: request.id,
            tenant: request.tenant,
            prompt: Arc::clone(&request.prompt),
            tokens: Vec::new(),
            end: None,
            num_cached_tokens: None,
            stops_after: None,
            expected: answers.expected(&request.prompt, request.stop.max_tokens as usize),
            expected_end: if is_embedding { FinishReason::Stop } else { FinishReason::Length },
            expected_stop_token: None,
            is_embedding,
            is_late: request.late_sampled,
            vocab_size,
            wants_prompt_log_probs: request.prompt_log_probs.is_some(),
            num_prompt_log_probs: 0,
            is_pooled: false,
        };
        if is_embedding {
            tracked.expected.clear();
        }
        if tracked.is_late {
            for place in (0..tracked.expected.len()).filter(|place| place % 3 == 0) {
                tracked.expected[place] = TokenId((tracked.expected[place].0 + 1) % vocab_size);
            }
        }
        let stop = &request.stop;
        let ends = |token: &TokenId| stop.end_token_ids.contains(token);
        let first = (stop.min_tokens.max(1) as usize) - 1;
        let found = (first..tracked.expected.len()).find(|&place| ends(&tracked.expected[place]));
        if let Some(place) = found {
            tracked.expected_stop_token = Some(tracked.expected[place]);
            tracked.expected.truncate(place + 1);
            tracked.expected_end = FinishReason::Stop;
        }
        tracked
    }

    /// The mask for output position `place`: every third token is pushed to its neighbour.
    pub fn mask(&self, place: usize) -> Arc<[u32]> {
        let mut words = vec![u32::MAX; self.vocab_size.div_ceil(32) as usize];
        if let Some(token) = self.expected.get(place)
            && place.is_multiple_of(3)
        {
            words.fill(0);
            words[token.0 as usize / 32] |= 1 << (token.0 % 32);
        }
        words.into()
    }

    /// Checks an event. True if the test wants the request to end now.
    pub fn take(&mut self, event: CoreEvent) -> bool {
        let id = self.id;
        assert!(self.end.is_none(), "{id} has ended and {event:?} comes");
        match event {
            CoreEvent::PromptComputed { num_prompt_tokens, num_cached_tokens, .. } => {
                assert!(self.num_cached_tokens.is_none(), "{id}: the prompt is computed twice");
                assert_eq!(num_prompt_tokens as usize, self.prompt.len());
                assert!(num_cached_tokens < num_prompt_tokens, "{id}: nothing was computed");
                self.num_cached_tokens = Some(num_cached_tokens);
            }
            CoreEvent::Tokens { tokens, log_probs, .. } => {
                assert!(self.num_cached_tokens.is_some(), "{id}: a token before its prompt");
                let complete = !self.wants_prompt_log_probs
                    || self.num_prompt_log_probs == self.prompt.len() - 1;
                assert!(complete, "{id}: log-probs of the prompt are missing");
                assert!(log_probs.is_empty(), "{id} asked for no log-probs");
                for &token in &*tokens {
                    let place = self.tokens.len();
                    assert_eq!(Some(&token), self.expected.get(place), "{id}: token {place}");
                    self.tokens.push(token);
                }
                return self.stops_after == Some(self.tokens.len());
            }
            CoreEvent::PromptLogProbs { first_position, log_probs, .. } => {
                assert!(self.wants_prompt_log_probs, "{id} asked for no log-probs");
                assert_eq!(first_position as usize, self.num_prompt_log_probs + 1);
                for entry in log_probs {
                    self.num_prompt_log_probs += 1;
                    assert_eq!(entry.token, self.prompt[self.num_prompt_log_probs]);
                }
            }
            CoreEvent::Pooled { values, .. } => {
                assert!(self.is_embedding && !self.is_pooled && values.len() == 4, "{id}");
                self.is_pooled = true;
            }
            CoreEvent::Finished { reason, stop_token, num_output_tokens, .. } => {
                self.check_end(&reason, stop_token);
                assert_eq!(num_output_tokens as usize, self.tokens.len(), "{id}: output tokens");
                self.end = Some(reason);
            }
        }
        false
    }

    fn check_end(&self, reason: &FinishReason, stop_token: Option<TokenId>) {
        let id = self.id;
        match reason {
            FinishReason::Abort | FinishReason::Error(_) => assert_eq!(stop_token, None),
            FinishReason::Stop if self.stops_after == Some(self.tokens.len()) => {}
            _ => {
                assert_eq!(*reason, self.expected_end, "{id}: end");
                assert_eq!(self.tokens, self.expected, "{id}: all tokens");
                assert_eq!(stop_token, self.expected_stop_token, "{id}: stop token");
                assert_eq!(self.is_pooled, self.is_embedding, "{id}: embedding");
            }
        }
    }
}

pub fn id_of(event: &CoreEvent) -> RequestId {
    match event {
        CoreEvent::PromptComputed { id, .. }
        | CoreEvent::Tokens { id, .. }
        | CoreEvent::PromptLogProbs { id, .. }
        | CoreEvent::Pooled { id, .. }
        | CoreEvent::Finished { id, .. } => *id,
    }
}

/// A plain request: greedy, no stop ids, tenant 0.
pub fn request(id: u64, prompt: &[u32], max_tokens: u32) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        prompt: prompt.iter().copied().map(TokenId).collect(),
        sampling: Arc::new(SamplingParams::default()),
        stop: StopRules { max_tokens, end_token_ids: Arc::from([]), min_tokens: 0 },
        kind: RequestKind::Generate,
        priority: 0,
        tenant: TenantId(0),
        cache_salt: 0,
        block_hashes: None,
        prompt_log_probs: None,
        leader: None,
        late_sampled: false,
    }
}
