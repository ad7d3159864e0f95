//! [3] Determines how much of a request's prompts each engine has cached and how busy it is, then lets
//! the router choose. Caller's thread; no lock here is ever taken by an engine thread.

use std::sync::{Arc, Mutex, PoisonError};

use ingle_core::{ChainHasher, TenantId};

use crate::engine_view::{EngineView, QueuedPrompt};
use crate::router::{Ask, Candidate, Router};
use crate::shared::Shared;
use crate::submission::Submission;

/// The choice between several engines.
#[derive(Debug)]
pub(crate) struct Routing {
    /// Cloned for each request; absent where requests share no prefixes.
    hasher: Option<ChainHasher>,
    limits: RoutingLimits,
    views: Vec<Arc<EngineView>>,
    /// Locked while engines are compared and the request is counted, so that concurrent requests see each
    /// other.
    router: Mutex<Router>,
}

/// Sizes of each engine that matter for the choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutingLimits {
    pub(crate) block_size: u32,
    /// Choices that can run at once.
    pub(crate) max_num_seqs: u32,
    /// Microseconds. An engine without progress for longer gets no request.
    pub(crate) stall_us: u64,
}

/// What a client says about where its request belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints {
    /// Hash of its session's name and its tenant.
    pub(crate) session: Option<u64>,
    pub(crate) tenant: TenantId,
}

/// A prompt as the routing sees it.
#[derive(Clone, Debug)]
pub(crate) struct HashedPrompt {
    /// Chain hashes of its full blocks; none where requests share no prefixes.
    pub(crate) hashes: Arc<[u128]>,
    pub(crate) num_tokens: u64,
}

impl Routing {
    pub(crate) fn new(
        views: Vec<Arc<EngineView>>,
        hasher: Option<ChainHasher>,
        limits: RoutingLimits,
    ) -> Self {
        let router = Mutex::new(Router::new(views.len()));
        Self { hasher, limits, views, router }
    }

    /// Returns the number of the request's engine and counts the request there.
    pub(crate) fn place(
        &self,
        submission: &mut Submission,
        hints: Hints,
        engines: &[Arc<Shared>],
    ) -> usize {
        let prompts = self.hash_prompts(submission);
        let count = submission.requests.len() as u32;
        let (number, queued) = self.choose(&prompts, count, hints, engines);
        for (state, queued) in submission.stream.prompts.iter_mut().zip(queued) {
            state.queued = Some(queued);
        }
        number
    }

    /// Chooses an engine for `count` choices of these prompts and counts them there. Returns its number and
    /// the prompts as queued there; they stay queued until they are dropped.
    pub(crate) fn choose(
        &self,
        prompts: &[HashedPrompt],
        count: u32,
        hints: Hints,
        engines: &[Arc<impl Load>],
    ) -> (usize, Vec<QueuedPrompt>) {
        let num_tokens = prompts.iter().map(|prompt| prompt.num_tokens).sum();
        let ask = Ask { num_tokens, session: hints.session, tenant: hints.tenant };
        let cached: Vec<Vec<u64>> = self
            .views
            .iter()
            .map(|view| prompts.iter().map(|prompt| self.num_cached(view, prompt)).collect())
            .collect();

        let mut router = self.router.lock().unwrap_or_else(PoisonError::into_inner);
        let candidate = |number: usize| Candidate {
            num_cached: cached[number].iter().sum(),
            num_queued: self.views[number].num_queued(),
            num_choices: engines[number].num_choices(),
            is_full: engines[number].num_choices() + count > self.limits.max_num_seqs,
            is_stuck: engines[number].standstill_us() > self.limits.stall_us,
        };
        let candidates: Vec<Candidate> = (0..engines.len()).map(candidate).collect();
        let number = router.choose(&ask, &candidates);
        let queued = prompts.iter().zip(&cached[number]).map(|(prompt, cached)| {
            QueuedPrompt::new(&self.views[number], &prompt.hashes, prompt.num_tokens - cached)
        });
        let queued = queued.collect();
        // Last, because nothing would undo it after a panic in the lines above.
        engines[number].enter(count);
        drop(router);
        (number, queued)
    }

    /// Hashes each prompt once, for the router and for the engine. Without shared prefixes there are no
    /// hashes.
    fn hash_prompts(&self, submission: &mut Submission) -> Vec<HashedPrompt> {
        let mut hasher = self.hasher.clone();
        let choices = submission.requests.chunks_mut(submission.stream.n as usize);
        choices
            .map(|choices| {
                let (prompt, salt) = (&choices[0].prompt, choices[0].cache_salt);
                let num_tokens = prompt.len() as u64;
                let hashes = hasher.as_mut().map(|hasher| hasher.of_prompt(salt, prompt));
                choices.iter_mut().for_each(|choice| choice.block_hashes.clone_from(&hashes));
                HashedPrompt { hashes: hashes.unwrap_or_default(), num_tokens }
            })
            .collect()
    }

    /// Tokens of a prompt that the engine need not compute: all but the last at most.
    fn num_cached(&self, view: &EngineView, prompt: &HashedPrompt) -> u64 {
        let known = view.num_known(&prompt.hashes) as u64 * u64::from(self.limits.block_size);
        known.min(prompt.num_tokens.saturating_sub(1))
    }
}

/// How busy an engine is.
pub(crate) trait Load {
    /// Choices that it has: running and waiting.
    fn num_choices(&self) -> u32;
    /// Microseconds without progress while there is work; 0 without work.
    fn standstill_us(&self) -> u64;
    /// Adds to the number of choices.
    fn enter(&self, count: u32);
}

impl Load for Shared {
    fn num_choices(&self) -> u32 {
        self.num_choices()
    }

    fn standstill_us(&self) -> u64 {
        self.standstill_us()
    }

    fn enter(&self, count: u32) {
        self.enter(count);
    }
}
