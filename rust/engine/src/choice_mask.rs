//! [6] [7] The constraints on one choice's tokens: a grammar, bad words, or both. The state belongs to
//! the choice, or to a worker while it computes the next mask. A mask depends only on the answer's
//! tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ingle_core::{RequestId, SamplingParams, TokenId};
use ingle_text::{BadWordsState, GrammarError, GrammarState};

/// The constraint of a choice, on the engine thread.
#[derive(Debug)]
pub(crate) struct ChoiceMask {
    state: Option<MaskState>,
    /// What the next token may be; there until that token comes, since a row may have to run again.
    mask: Option<Arc<[u32]>>,
    /// Tokens that the state has not seen.
    tokens: Vec<u32>,
}

impl ChoiceMask {
    pub(crate) fn new(state: MaskState) -> Self {
        Self { state: Some(state), mask: None, tokens: Vec::new() }
    }

    /// A token was sampled under the mask.
    pub(crate) fn push(&mut self, tokens: &[TokenId]) {
        self.mask = None;
        self.tokens.extend(tokens.iter().map(|token| token.0));
    }

    /// The work up to the next mask, unless a worker has it.
    pub(crate) fn job(&mut self, id: RequestId, cancelled: CancelFlag) -> Option<MaskJob> {
        let state = self.state.take()?;
        Some(MaskJob { id, state, tokens: std::mem::take(&mut self.tokens), cancelled })
    }

    /// A worker is done; false if tokens came meanwhile, so that another mask is needed.
    pub(crate) fn finish_job(&mut self, masked: Masked) -> bool {
        self.state = Some(masked.state);
        if !self.tokens.is_empty() {
            return false;
        }
        self.mask = Some(masked.mask);
        true
    }

    pub(crate) fn mask(&self) -> Option<Arc<[u32]>> {
        self.mask.clone()
    }
}

/// The work up to the next mask of one choice, for a worker.
pub(crate) struct MaskJob {
    pub(crate) id: RequestId,
    pub(crate) state: MaskState,
    /// Sampled since the last mask.
    pub(crate) tokens: Vec<u32>,
    pub(crate) cancelled: CancelFlag,
}

/// True once a request's masks are no longer needed.
pub(crate) type CancelFlag = Arc<AtomicBool>;

/// Held by a request; once it is dropped, workers begin no further job of it.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop(CancelFlag);

impl CancelOnDrop {
    pub(crate) fn flag(&self) -> CancelFlag {
        Arc::clone(&self.0)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What became of a job.
pub(crate) struct MaskResult {
    pub(crate) id: RequestId,
    pub(crate) outcome: Result<Masked, GrammarError>,
}

/// The position after the tokens, and what may come next.
pub(crate) struct Masked {
    pub(crate) state: MaskState,
    pub(crate) mask: Arc<[u32]>,
    pub(crate) goes_on: GoesOn,
}

/// A position in a grammar, among bad words, or both.
#[derive(Debug)]
pub(crate) struct MaskState {
    grammar: Option<GrammarState>,
    words: Option<WordsState>,
}

/// A position among bad words.
#[derive(Debug)]
struct WordsState {
    state: BadWordsState,
    /// What else rules tokens out: words alone always leave some.
    sampling: Arc<SamplingParams>,
    num_tokens: u32,
}

/// How an answer can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoesOn {
    /// With the tokens of the mask.
    Tokens,
    /// Not at all: the grammar is at its end.
    Complete,
    /// Not at all: every token would complete a word, or is ruled out otherwise.
    Stuck,
}

impl MaskState {
    /// `None` if nothing binds the choice.
    pub(crate) fn new(
        grammar: Option<GrammarState>,
        words: Option<BadWordsState>,
        sampling: &Arc<SamplingParams>,
    ) -> Option<Self> {
        let words =
            words.map(|state| WordsState { state, sampling: Arc::clone(sampling), num_tokens: 0 });
        (grammar.is_some() || words.is_some()).then_some(Self { grammar, words })
    }

    /// Takes a token that was sampled under the last mask.
    pub(crate) fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if let Some(words) = &mut self.words {
            words.num_tokens += 1;
            words.state.accept(token);
        }
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept(token))
    }

    /// Which tokens may come next, one bit an id.
    pub(crate) fn mask(&mut self) -> Result<(Arc<[u32]>, GoesOn), GrammarError> {
        let bound = self.grammar.as_mut().map(GrammarState::mask).transpose()?;
        let free = self.words.as_ref().map(|words| words.state.mask());
        let mask = match (bound, free) {
            (Some(mut bound), Some(free)) => {
                bound.iter_mut().zip(free.iter()).for_each(|(bound, free)| *bound &= free);
                self.drop_doomed(&mut bound);
                bound.into()
            }
            (Some(bound), None) => bound.into(),
            (None, free) => free.unwrap_or_default(),
        };
        let goes_on = if self.grammar.as_ref().is_some_and(GrammarState::is_finished) {
            GoesOn::Complete
        } else if self.words.as_ref().is_some_and(|words| !words.leaves_any(&mask)) {
            GoesOn::Stuck
        } else {
            GoesOn::Tokens
        };
        Ok((mask, goes_on))
    }

    /// Where the grammar leaves few tokens, takes out those after which it forces a word to its end: the
    /// answer would be stuck there (`tru` where `true` is banned), and others are still open here.
    fn drop_doomed(&self, mask: &mut [u32]) {
        let (Some(grammar), Some(words)) = (&self.grammar, &self.words) else { return };
        // White space does not tell one structure from another, and JSON allows it almost everywhere.
        let deciding = ids_of(mask).filter(|&id| !words.state.is_blank(id));
        let ids: Vec<u32> = deciding.take(MAX_LOOKED_AHEAD + 1).collect();
        if ids.len() > MAX_LOOKED_AHEAD {
            return;
        }
        for id in ids {
            if words.state.completes_word(id, &grammar.forced_after(id)) {
                mask[id as usize / 32] &= !(1 << (id % 32));
            }
        }
    }
}

impl WordsState {
    /// Whether the sampler finds a token: in the mask, among the allowed ones, and not held back.
    fn leaves_any(&self, mask: &[u32]) -> bool {
        let params = &self.sampling;
        let is_early = self.num_tokens < params.min_tokens;
        let is_held = |id: &u32| is_early && params.min_tokens_banned.contains(&TokenId(*id));
        if let Some(allowed) = &params.allowed_token_ids {
            return allowed.iter().any(|id| is_set(mask, id.0) && !is_held(&id.0));
        }
        ids_of(mask).any(|id| !is_held(&id))
    }
}

fn is_set(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32).is_some_and(|bits| bits >> (id % 32) & 1 == 1)
}

fn ids_of(mask: &[u32]) -> impl Iterator<Item = u32> {
    let words = (0_u32..).step_by(32).zip(mask).filter(|&(_, &bits)| bits != 0);
    words.flat_map(|(first, _)| first..first + 32).filter(|&id| is_set(mask, id))
}

/// Tokens of a mask, each of which costs some 25 us to look ahead from; text has thousands of ways on.
const MAX_LOOKED_AHEAD: usize = 64;
