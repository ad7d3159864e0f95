//! [5] -> [7] Turns finished steps into completions. One thread, asleep in the driver on the oldest
//! step's event; it never spins and never launches.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use ingle_core::{
    CompletionSink, ExecutorError, RowOutput, RowStatus, StepCompletion, StepId, StepOutput,
    TokenId, TokenLogProbs,
};

use crate::CudaError;
use crate::buffers::OUT_WORDS;
use crate::context::Context;
use crate::memory::PinnedBuffer;
use crate::metadata::RowPlace;
use crate::slots::Staging;
use crate::stream::Event;

/// Host memory of one step in flight. It travels: executor, waiter, back to the executor.
#[derive(Debug)]
pub(crate) struct StepBuffers {
    /// The packed metadata.
    pub(crate) meta: PinnedBuffer,
    /// Small uploads.
    pub(crate) staging: Staging,
    /// `[samples, OUT_WORDS]`
    pub(crate) out: PinnedBuffer,
    /// `[tokens, OUT_WORDS]`, prompt log-probs
    pub(crate) list_out: PinnedBuffer,
    /// `[rows, hidden_size]` f32
    pub(crate) pooled: PinnedBuffer,
    /// Reached when all of the above has come back.
    pub(crate) done: Event,
}

/// What the executor tells the waiter.
#[derive(Debug)]
pub(crate) enum Message {
    /// A step whose event is queued.
    Submitted(Submitted),
    /// A step that was accepted and could not be started.
    Failed(StepId, ExecutorError),
}

/// A step on its way.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<RowPlace>,
    pub(crate) hidden_size: usize,
    pub(crate) buffers: StepBuffers,
}

/// Runs until the executor hangs up.
pub(crate) fn run(
    context: &Arc<Context>,
    messages: &Receiver<Message>,
    free: &Sender<StepBuffers>,
    lost: &OnceLock<String>,
    sink: &CompletionSink,
) {
    let current = context.make_current();
    while let Ok(message) = messages.recv() {
        let (id, result) = match message {
            Message::Failed(id, error) => (id, Err(error)),
            Message::Submitted(step) => {
                let reached = match &current {
                    Ok(()) => step.buffers.done.synchronise().map_err(|error| lose(lost, &error)),
                    Err(error) => Err(lose(lost, error)),
                };
                let result = reached.map(|()| output(&step));
                // The executor may be gone; then nobody needs the buffers.
                let _ = free.send(step.buffers);
                (step.id, result)
            }
        };
        sink(StepCompletion { id, result });
    }
}

/// Whatever a wait reports came from a kernel or a copy and is sticky: nothing runs any more.
fn lose(lost: &OnceLock<String>, error: &CudaError) -> ExecutorError {
    ExecutorError::DeviceLost(lost.get_or_init(|| error.to_string()).clone())
}

fn output(step: &Submitted) -> StepOutput {
    let mut tokens = Vec::new();
    let out = step.buffers.out.as_words();
    let list = step.buffers.list_out.as_words();
    let rows = step
        .rows
        .iter()
        .map(|place| {
            let mut row = RowOutput {
                slot: place.slot,
                status: RowStatus::Ok,
                num_tokens: 0,
                log_probs: Vec::new(),
                prompt_log_probs: Vec::new(),
                pooled: Vec::new(),
            };
            if let Some(sample) = place.sample {
                let words = &out[sample as usize * OUT_WORDS..][..OUT_WORDS];
                if words[1] == 0 {
                    row.num_tokens = 1;
                    tokens.push(TokenId(words[0]));
                    if place.wants_log_probs {
                        row.log_probs.push(log_probs(words));
                    }
                } else {
                    row.status = RowStatus::NotFinite;
                }
            }
            for index in place.list.clone() {
                let words = &list[index as usize * OUT_WORDS..][..OUT_WORDS];
                if words[1] != 0 {
                    row.status = RowStatus::NotFinite;
                }
                let mut entry = log_probs(words);
                entry.top.truncate(place.list_top as usize);
                row.prompt_log_probs.push(entry);
            }
            if let Some(index) = place.pooled {
                let width = step.hidden_size;
                let words = &step.buffers.pooled.as_words()[index as usize * width..][..width];
                row.pooled = words.iter().map(|word| f32::from_bits(*word)).collect();
                if row.pooled.iter().any(|value| !value.is_finite()) {
                    row.status = RowStatus::NotFinite;
                }
            }
            row
        })
        .collect();
    StepOutput { id: step.id, rows, tokens }
}

/// One row of the sampler's output: token, status, log-prob, rank, count, then ids and log-probs of the
/// most likely tokens.
fn log_probs(words: &[u32]) -> TokenLogProbs {
    let count = (words[4] as usize).min(20);
    let ids = &words[8..28];
    let values = &words[28..48];
    TokenLogProbs {
        token: TokenId(words[0]),
        log_prob: f32::from_bits(words[2]),
        rank: words[3],
        top: ids
            .iter()
            .zip(values)
            .take(count)
            .map(|(id, value)| (TokenId(*id), f32::from_bits(*value)))
            .collect(),
    }
}
