//! [7] Answers that are no SSE stream: whole bodies, deltas for the Python API, vectors. Engine thread.

use ingle_text::Tokenizer;

use crate::answer_room::TooLong;
use crate::choice::Choice;
use crate::frame::ChoicePart;
use crate::outbox::{Delta, Event, Payload, error_payload};
use crate::stream::{Form, Stream, Trailer, dirty_choices, part};

impl Stream {
    /// One JSON body, once every choice has ended.
    pub(crate) fn show_body(&mut self, tokenizer: &Tokenizer, events: &mut Vec<Event>) {
        let Form::Body(builder, trailer) = &self.form else { return };
        if self.num_open > 0 {
            return;
        }
        self.choices.iter_mut().for_each(Choice::collect);
        let parts: Vec<ChoicePart<'_>> = kept_choices(&self.choices, *trailer, self.n)
            .zip(0..)
            .map(|(choice, index)| ChoicePart {
                index,
                prompt_log_probs: self.prompts[(choice.index / self.n) as usize].separate(),
                ..part(choice, *trailer, &self.prompts, self.n)
            })
            .collect();
        let payload = match builder.body(&parts, self.usage, tokenizer) {
            Some(body) => Payload::Body(body),
            None => too_long(TooLong::Body),
        };
        events.push(Event { key: self.key, payload });
    }

    pub(crate) fn show_deltas(&mut self, log_probs: bool, events: &mut Vec<Event>) {
        for choice in dirty_choices(&mut self.choices, &mut self.dirty) {
            let delta = Delta {
                index: choice.index,
                text: std::mem::take(&mut choice.text),
                token_ids: std::mem::take(&mut choice.token_ids),
                log_probs: log_probs.then(|| std::mem::take(&mut choice.log_probs)),
                finish: choice.finish.as_deref().cloned(),
            };
            choice.started = true;
            events.push(Event { key: self.key, payload: Payload::Delta(Box::new(delta)) });
        }
        if self.num_open == 0 {
            events.push(Event { key: self.key, payload: Payload::UsageEnd(self.usage) });
        }
    }

    /// One JSON body with vectors, once all are computed.
    pub(crate) fn show_vectors(&mut self, events: &mut Vec<Event>) {
        let Form::Embeddings(embeddings) = &self.form else { return };
        if self.num_open == 0 {
            let body = embeddings.body(self.usage);
            events.push(Event { key: self.key, payload: Payload::Body(body) });
        }
    }
}

/// The choices that a body has, in its order.
fn kept_choices(choices: &[Choice], trailer: Trailer, n: u32) -> impl Iterator<Item = &Choice> {
    choices.chunks(n as usize).flat_map(move |of_prompt| {
        let mut kept: Vec<&Choice> = of_prompt.iter().collect();
        if let Some(keep) = trailer.keep {
            // The sort is stable: equal ones keep the order of their index.
            kept.sort_by(|a, b| b.mean_log_prob().total_cmp(&a.mean_log_prob()));
            kept.truncate(keep);
        }
        kept
    })
}

/// The end of an answer that takes too much memory.
pub(crate) fn too_long(why: TooLong) -> Payload {
    let (code, status) = why.code();
    error_payload(&why.to_string(), code, status)
}
