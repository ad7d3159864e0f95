//! [7] -> [9] One running client request: its choices, its response format and where the bytes go.
//! Engine thread.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ingle_core::{Micros, TokenLogProbs};
use ingle_text::Tokenizer;
use smallvec::SmallVec;

use crate::choice::Choice;
use crate::choice_mask::CancelOnDrop;
use crate::embedding::Embeddings;
use crate::frame::{ChoicePart, FrameBuilder, UsagePolicy};
use crate::outbox::{Event, Usage};
use crate::prompt_state::PromptState;
use crate::trace::{Trace, TraceId};

/// A client request: `prompts.len() * n` choices that answer under one key.
///
/// With hundreds of streams the CPU caches hold nothing of the previous step. So the fields that a token uses are next
/// to each other: first the choice itself, since most requests have one, then the fields for committing and sending it.
#[repr(C, align(64))]
pub(crate) struct Stream {
    pub(crate) choices: SmallVec<[Choice; 1]>,
    pub(crate) submitted_at: Micros,
    pub(crate) usage: Usage,
    /// Bytes of text in the choices of a whole answer, echoed prompts included.
    pub(crate) held_bytes: u64,
    /// The range of choices that holds all those with unsent output.
    pub(crate) dirty: Range<u16>,
    /// In the engine's list of streams with unsent output.
    pub(crate) queued: bool,
    /// The last event has been written.
    is_done: bool,
    /// A keep-alive comment is due.
    pub(crate) wants_comment: bool,
    /// Choices without a finish.
    pub(crate) num_open: u32,
    /// Choices per prompt.
    pub(crate) n: u32,
    pub(crate) form: Form,
    pub(crate) key: u64,
    /// When frames were last sent; the time of submission if none were.
    pub(crate) sent_at: Micros,
    /// Where frames go.
    pub(crate) route: Route,
    pub(crate) prompts: Vec<PromptState>,
    pub(crate) trace: Option<Box<Trace>>,
    /// Stops the grammar workers' jobs for this request when it ends.
    pub(crate) cancel_masks: CancelOnDrop,
}

/// What the client reads.
pub(crate) enum Form {
    /// SSE events.
    Events(FrameBuilder, Trailer),
    /// One JSON body at the end.
    Body(FrameBuilder, Trailer),
    /// Python objects.
    Deltas {
        /// Log-probs with each token.
        log_probs: bool,
    },
    /// One JSON body at the end, vectors instead of choices.
    Embeddings(Embeddings),
}

/// Extras of events and bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trailer {
    /// A usage event of its own before `[DONE]`.
    pub(crate) usage_event: bool,
    pub(crate) log_probs: bool,
    pub(crate) token_ids: bool,
    /// How many choices of each prompt a body contains; `None`: all.
    pub(crate) keep: Option<usize>,
}

/// Where frames go.
pub(crate) enum Route {
    /// To the event loop. `bytes` were published since drain number `drain`, `num_frames` since the start.
    Drain { num_frames: u64, bytes: usize, drain: u64 },
    /// To the client's socket, by this thread.
    Socket(ClientSocket),
}

/// A client's socket, lent to the engine thread for the frames of one stream.
#[derive(Debug)]
pub struct ClientSocket {
    /// A copy of the connection's descriptor.
    pub fd: OwnedFd,
    /// How many frames of the stream the event loop has received; it has written all of them.
    pub frames_seen: u64,
    /// Sent before the first frame; may be empty.
    pub head: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(key: u64, form: Form, n: u32, submitted_at: Micros) -> Self {
        Self {
            key,
            form,
            prompts: Vec::new(),
            trace: None,
            n,
            choices: SmallVec::new(),
            num_open: 0,
            dirty: 0..0,
            queued: false,
            usage: Usage::default(),
            held_bytes: 0,
            submitted_at,
            route: Route::Drain { num_frames: 0, bytes: 0, drain: 0 },
            sent_at: submitted_at,
            is_done: false,
            wants_comment: false,
            cancel_masks: CancelOnDrop::default(),
        }
    }

    /// The trace that its observations belong to.
    pub(crate) fn trace_id(&self) -> Option<TraceId> {
        self.trace.as_ref().map(|trace| trace.id)
    }

    /// Marks a choice as having something to show; true if the stream itself was not yet marked.
    pub(crate) fn mark(&mut self, choice: usize) -> bool {
        self.choices[choice].dirty = true;
        // Below MAX_CHOICES.
        let at = choice as u16;
        self.dirty = if self.dirty.is_empty() {
            at..at + 1
        } else {
            self.dirty.start.min(at)..self.dirty.end.max(at + 1)
        };
        !std::mem::replace(&mut self.queued, true)
    }

    /// Log-probs of a prompt, for all its choices (only the first one asked the core for them).
    pub(crate) fn push_prompt_log_probs(&mut self, choice: usize, sources: Vec<TokenLogProbs>) {
        let prompt = choice / self.n as usize;
        let Some(entries) = self.prompts[prompt].take(sources) else { return };
        let first = prompt * self.n as usize;
        for choice in &mut self.choices[first..first + self.n as usize] {
            choice.push_prompt(&entries);
        }
    }

    /// Shows what is new. Frames of a stream are appended to `out`, and their place there is returned;
    /// everything else becomes an event.
    pub(crate) fn show(
        &mut self,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        self.queued = false;
        match &self.form {
            Form::Events(..) => return self.show_events(tokenizer, out),
            Form::Body(..) => self.show_body(tokenizer, events),
            Form::Deltas { log_probs } => {
                let log_probs = *log_probs;
                self.show_deltas(log_probs, events);
            }
            Form::Embeddings(..) => self.show_vectors(events),
        }
        NO_FRAMES
    }

    fn show_events(&mut self, tokenizer: &Tokenizer, out: &mut Vec<u8>) -> Range<usize> {
        let Form::Events(builder, trailer) = &self.form else { return NO_FRAMES };
        let start = builder.open(out);
        if std::mem::take(&mut self.wants_comment) {
            // Clients ignore comments.
            out.extend_from_slice(b":\n\n");
        }
        for choice in dirty_choices(&mut self.choices, &mut self.dirty) {
            if !choice.has_news() {
                continue;
            }
            choice.collect();
            let mut usage = self.usage;
            if builder.usage_policy() == UsagePolicy::Continuous {
                usage.completion_tokens = u64::from(choice.num_output_tokens);
            }
            let part = part(choice, *trailer, &self.prompts, self.n);
            builder.event_into(out, &part, usage, tokenizer);
            choice.shown();
        }
        if self.num_open == 0 {
            builder.done_into(out, trailer.usage_event.then_some(self.usage));
            self.is_done = true;
        }
        builder.seal(out, start, self.is_done)
    }

    /// Appends an error event and `[DONE]` to the frames of a stream; nothing for other forms.
    pub(crate) fn show_error(&self, error_object: &[u8], out: &mut Vec<u8>) -> Range<usize> {
        let Form::Events(builder, _) = &self.form else { return NO_FRAMES };
        let start = builder.open(out);
        FrameBuilder::error_into(out, error_object);
        builder.seal(out, start, self.is_done)
    }
}

/// The choices with something to show, in order of index; afterwards none has.
pub(crate) fn dirty_choices<'a>(
    choices: &'a mut [Choice],
    dirty: &mut Range<u16>,
) -> impl Iterator<Item = &'a mut Choice> {
    let dirty = std::mem::replace(dirty, 0..0);
    let within = &mut choices[dirty.start as usize..dirty.end as usize];
    within.iter_mut().filter_map(|choice| std::mem::take(&mut choice.dirty).then_some(choice))
}

/// What an event shows of a choice.
pub(crate) fn part<'a>(
    choice: &'a Choice,
    trailer: Trailer,
    prompts: &'a [PromptState],
    n: u32,
) -> ChoicePart<'a> {
    let first = !choice.started;
    let prompt_ids = || &*prompts[(choice.index / n) as usize].ids;
    let log_probs = trailer.log_probs && !choice.log_probs.is_empty();
    ChoicePart {
        index: choice.index,
        text: &choice.text,
        pieces: choice.pieces(),
        with_role: first,
        log_probs: log_probs.then_some(choice.log_probs.as_slice()),
        token_ids: trailer.token_ids.then_some(choice.token_ids.as_slice()),
        prompt_token_ids: (first && trailer.token_ids).then(prompt_ids),
        prompt_log_probs: None,
        finish: choice.finish.as_deref(),
    }
}

const NO_FRAMES: Range<usize> = 0..0;
