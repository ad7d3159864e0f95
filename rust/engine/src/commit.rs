//! [7] Turns the core's events into text, stop decisions and ends. Engine thread only; the only place
//! that knows all running client requests. Each of them ends exactly once; stream_end.rs has the ends
//! that come early.

use std::collections::HashMap;
use std::sync::Arc;

use ingle_core::{
    CoreEvent, FinishReason, Micros, RequestFault, RequestId, Scheduler, TenantId, TokenId,
    TokenLogProbs,
};
use rustc_hash::FxHashMap;

use crate::answer_room::{AnswerRoom, MAX_ANSWER_BYTES};
use crate::histogram::add;
use crate::observe::{observe_end, observe_tokens};
use crate::outbox::Event;
use crate::shared::Shared;
use crate::stream::{ClientSocket, Form, Route, Stream};
use crate::submission::split_id;
use crate::tenant_load::TenantLoad;

/// The running client requests and the events about to be published for them.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    /// By key. We assign keys by counting, so a client cannot choose colliding ones.
    pub(crate) streams: FxHashMap<u64, Stream>,
    /// All tenants that ever had a request.
    pub(crate) tenants: HashMap<TenantId, Arc<TenantLoad>>,
    /// Streams with something to show, each once.
    pub(crate) touched: Vec<u64>,
    /// Events of this step.
    pub(crate) events: Vec<Event>,
    /// Time of the wake-up that is being worked off.
    pub(crate) now: Micros,
    /// Frames of one stream between being shown and being sent; one buffer for all stays in the cache.
    pub(crate) shown: Vec<u8>,
    /// Text of one token, reused.
    pub(crate) scratch: String,
    /// Choices whose stop string was found in this commit.
    stopped: Vec<RequestId>,
    /// Whole answers that have got too much text in this commit.
    pub(crate) overlong: Vec<u64>,
    pub(crate) answers: AnswerRoom,
    /// Choices that need the mask for their next token.
    pub(crate) mask_wanted: Vec<RequestId>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            streams: FxHashMap::default(),
            tenants: HashMap::new(),
            touched: Vec::new(),
            events: Vec::new(),
            now: Micros(0),
            shown: Vec::new(),
            scratch: String::new(),
            stopped: Vec::new(),
            overlong: Vec::new(),
            answers: AnswerRoom::default(),
            mask_wanted: Vec::new(),
        }
    }

    /// Works through the core's events, and those that stop strings and failures bring about, until
    /// none is left.
    pub(crate) fn commit(&mut self, core_events: &mut Vec<CoreEvent>, scheduler: &mut Scheduler) {
        let now = self.now;
        while !core_events.is_empty() {
            let mut batch = std::mem::take(core_events);
            let mut events = batch.drain(..).peekable();
            while let Some(event) = events.next() {
                match event {
                    CoreEvent::Tokens { id, tokens, log_probs } => {
                        let ends = matches!(
                            events.peek(),
                            Some(CoreEvent::Finished { id: next, stop_token: Some(_), .. })
                                if *next == id
                        );
                        self.take_tokens(id, &tokens, log_probs, ends, now);
                    }
                    CoreEvent::PromptComputed { id, num_cached_tokens, queue_wait, .. } => {
                        self.take_prompt(id, num_cached_tokens, queue_wait, now);
                    }
                    CoreEvent::PromptLogProbs { id, log_probs, .. } => {
                        let (key, choice) = split_id(id);
                        if let Some(stream) = self.streams.get_mut(&key) {
                            stream.push_prompt_log_probs(choice, log_probs);
                        }
                    }
                    CoreEvent::Pooled { id, values } => {
                        let (key, choice) = split_id(id);
                        if let Some(stream) = self.streams.get_mut(&key)
                            && let Form::Embeddings(embeddings) = &mut stream.form
                        {
                            embeddings.take(choice, values);
                        }
                    }
                    CoreEvent::Finished { id, tenant, reason, stop_token, .. } => {
                        if let Some(tenant) = self.tenants.get(&tenant) {
                            self.shared.release(tenant, 1);
                        }
                        let fault = self.take_finish(id, reason, stop_token, now);
                        if let Some(fault) = fault {
                            self.fail_stream(id, &fault, scheduler, core_events);
                        }
                    }
                }
            }
            drop(events);
            for id in self.stopped.drain(..) {
                // Ended already if the same token was its last one.
                scheduler.finish(id, FinishReason::Stop, core_events);
            }
            self.end_overlong(scheduler, core_events);
            if core_events.is_empty() {
                // Keep the larger buffer.
                *core_events = batch;
            }
        }
    }

    fn take_tokens(
        &mut self,
        id: RequestId,
        tokens: &[TokenId],
        log_probs: Vec<TokenLogProbs>,
        ends: bool,
        now: Micros,
    ) {
        let (key, at) = split_id(id);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let (submitted_at, trace) = (stream.submitted_at, &stream.trace);
        let choice = &mut stream.choices[at];
        if let Some(constraint) = &mut choice.constraint {
            constraint.push(tokens);
            self.mask_wanted.push(id);
        }
        let before = choice.num_output_tokens;
        let pushed = choice.push(tokens, log_probs, ends, &mut self.scratch);
        if pushed.is_stopped {
            self.stopped.push(id);
        }
        let taken = u64::from(choice.num_output_tokens - before);
        let metrics = &self.shared.metrics;
        observe_tokens(metrics, choice, taken, (submitted_at, now), trace);
        add(&metrics.generation_tokens, taken);
        stream.usage.completion_tokens += taken;
        if matches!(stream.form, Form::Body(..)) {
            stream.held_bytes += pushed.text_bytes;
            self.answers.add(pushed.text_bytes);
            if stream.held_bytes > MAX_ANSWER_BYTES {
                self.overlong.push(key);
            }
        }
        if stream.mark(at) {
            self.touched.push(key);
        }
    }

    fn take_prompt(&mut self, id: RequestId, num_cached: u32, queue_wait: Micros, now: Micros) {
        let (key, at) = split_id(id);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let metrics = &self.shared.metrics;
        if at.is_multiple_of(stream.n as usize) {
            stream.usage.cached_tokens += u64::from(num_cached);
            let prompt = &mut stream.prompts[at / stream.n as usize];
            add(&metrics.prompt_tokens, prompt.ids.len() as u64);
            prompt.queued = None;
        }
        let trace = stream.trace_id();
        let choice = &mut stream.choices[at];
        choice.scheduled_at = Micros(stream.submitted_at.0 + queue_wait.0);
        metrics.queue_time.observe_of(queue_wait.0, trace);
        metrics.prefill_time.observe_of(now.0.saturating_sub(choice.scheduled_at.0), trace);
    }

    /// Ends a choice; gives back the fault if it failed. Choices of streams that are no longer known
    /// were aborted by us.
    fn take_finish(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        stop_token: Option<TokenId>,
        now: Micros,
    ) -> Option<RequestFault> {
        let metrics = &self.shared.metrics;
        let (word, counter) = match reason {
            FinishReason::Stop => ("stop", &metrics.finished_stop),
            FinishReason::Length => ("length", &metrics.finished_length),
            FinishReason::Abort => ("abort", &metrics.finished_abort),
            FinishReason::Error(fault) => {
                add(&metrics.finished_error, 1);
                return Some(fault);
            }
        };
        add(counter, 1);
        let (key, at) = split_id(id);
        let stream = self.streams.get_mut(&key)?;
        let trace = stream.trace_id();
        let choice = &mut stream.choices[at];
        choice.is_over = true;
        choice.end(word, stop_token.map(|id| id.0));
        observe_end(&self.shared, choice, (stream.submitted_at, now), trace);
        stream.num_open -= 1;
        let is_last = stream.num_open == 0;
        if stream.mark(at) {
            self.touched.push(key);
        }
        if is_last {
            self.report_times(key);
        }
        None
    }

    /// A client request begins.
    pub(crate) fn insert(&mut self, mut stream: Stream) {
        if !matches!(stream.form, Form::Body(..)) {
            // What is echoed leaves with the first event.
            stream.held_bytes = 0;
        }
        self.answers.add(stream.held_bytes);
        self.streams.insert(stream.key, stream);
    }

    /// A client request is over.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Stream> {
        let stream = self.streams.remove(&key)?;
        self.answers.release(stream.held_bytes);
        Some(stream)
    }

    /// From now on frames of `key` go to `socket`, unless the event loop still has
    /// frames of it to write that this thread would overtake.
    pub(crate) fn attach(&mut self, key: u64, socket: ClientSocket) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        match stream.route {
            Route::Drain { num_frames, .. } if num_frames == socket.frames_seen => {
                stream.route = Route::Socket(socket);
            }
            Route::Drain { .. } | Route::Socket(_) => {}
        }
    }
}
