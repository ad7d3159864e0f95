//! [5] -> [7] Turns finished steps into completions. One thread, which sleeps in the driver on the
//! oldest step's event; it never spins and never launches.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use ingle_core::{
    CompletionSink, ExecutorError, RowOutput, RowStatus, StepCompletion, StepId, StepOutput,
    TokenId, TokenLogProbs,
};

use crate::CudaError;
use crate::context::Context;
use crate::contract::{MAX_BEST, STATUS_OK, SampleOut, Words};
use crate::exchange::ExchangeMemory;
use crate::memory::PinnedBuffer;
use crate::metadata::RowPlace;
use crate::sleep::RestJob;
use crate::slots::Staging;
use crate::stream::Event;

/// Host memory of one step in flight. It travels: executor, waiter, back to the executor.
#[derive(Debug)]
pub(crate) struct StepBuffers {
    /// The packed metadata.
    pub(crate) meta: PinnedBuffer,
    /// Small uploads.
    pub(crate) staging: Staging,
    /// `[samples]` SampleOut
    pub(crate) out: PinnedBuffer,
    /// `[tokens]` SampleOut, prompt log-probs
    pub(crate) list_out: PinnedBuffer,
    /// `[rows, hidden_size]` f32
    pub(crate) pooled: PinnedBuffer,
    /// Reached when all of the above has come back: of each rank, the leader's first.
    pub(crate) done: Vec<Event>,
}

/// Messages from the executor to the waiter.
#[derive(Debug)]
pub(crate) enum Message {
    /// A step whose event is queued.
    Submitted(Submitted),
    /// A step that was accepted and could not be started.
    Failed(StepId, ExecutorError),
    /// Fall asleep or wake up; no step is in flight.
    Rest(RestJob),
}

/// A step on its way.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<RowPlace>,
    pub(crate) hidden_size: usize,
    pub(crate) buffers: StepBuffers,
}

/// Starts the thread, which ends when the executor hangs up.
///
/// # Errors
/// If there is no thread, or the context cannot be used on it.
pub(crate) fn start(
    context: &Arc<Context>,
    messages: Receiver<Message>,
    free: Sender<StepBuffers>,
    losing: Losing,
    sink: CompletionSink,
) -> Result<JoinHandle<()>, CudaError> {
    let context = Arc::clone(context);
    let (started, has_started) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("ingle-waiter".to_owned())
        .spawn(move || {
            let current = context.make_current();
            let is_current = current.is_ok();
            // The receiver waits for it below.
            let _ = started.send(current);
            if is_current {
                run(&messages, &free, &losing, &sink);
            }
        })
        .map_err(|source| CudaError::Io { what: "waiter thread".to_owned(), source })?;
    match has_started.recv() {
        Ok(current) => current.map(|()| thread),
        Err(_) => Err(CudaError::Unsupported("the waiter thread has ended".to_owned())),
    }
}

/// Runs until the executor hangs up.
fn run(
    messages: &Receiver<Message>,
    free: &Sender<StepBuffers>,
    losing: &Losing,
    sink: &CompletionSink,
) {
    while let Ok(message) = messages.recv() {
        let (id, result) = match message {
            Message::Rest(RestJob { rest, sleeper, done }) => {
                done(sleeper.run(rest).map_err(|error| {
                    let is_lost = error.is_sticky();
                    let unchanged = || ExecutorError::Unchanged(error.to_string());
                    if is_lost { losing.lose(&error) } else { unchanged() }
                }));
                continue;
            }
            Message::Failed(id, error) => (id, Err(error)),
            Message::Submitted(step) => {
                let reached = step.buffers.done.iter().try_for_each(Event::synchronise);
                let result = reached.map_err(|error| losing.lose(&error)).map(|()| {
                    let returned = Returned {
                        out: step.buffers.out.as_words(),
                        list: step.buffers.list_out.as_words(),
                        pooled: step.buffers.pooled.as_words(),
                        hidden_size: step.hidden_size,
                    };
                    output(step.id, &step.rows, &returned)
                });
                // Sending fails if the executor is gone, and then nothing needs the buffers.
                let _ = free.send(step.buffers);
                (step.id, result)
            }
        };
        sink(StepCompletion { id, result });
    }
}

/// What a lost device leaves.
#[derive(Clone, Debug)]
pub(crate) struct Losing {
    /// Why nothing runs any more.
    pub(crate) lost: Arc<OnceLock<String>>,
    /// Of a group of ranks.
    pub(crate) exchange: Option<Arc<ExchangeMemory>>,
}

impl Losing {
    /// Whatever a wait reports came from a kernel or a copy and is sticky: nothing runs any more, on no rank.
    fn lose(&self, error: &CudaError) -> ExecutorError {
        let reason = || match &self.exchange {
            None => error.to_string(),
            Some(exchange) => {
                exchange.fault.abort();
                exchange.fault.reason(error)
            }
        };
        ExecutorError::DeviceLost(self.lost.get_or_init(reason).clone())
    }
}

/// What came back of one step.
struct Returned<'a> {
    out: &'a [u32],
    list: &'a [u32],
    pooled: &'a [u32],
    hidden_size: usize,
}

fn output(id: StepId, rows: &[RowPlace], returned: &Returned<'_>) -> StepOutput {
    let mut tokens = Vec::new();
    let Returned { out, list, pooled, hidden_size } = *returned;
    let rows = rows
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
                let sampled = SampleOut::read(&out[sample as usize * SampleOut::COUNT..]);
                if sampled.status == STATUS_OK {
                    row.num_tokens = 1;
                    tokens.push(TokenId(sampled.token));
                    if place.wants_log_probs {
                        row.log_probs.push(log_probs(&sampled));
                    }
                } else {
                    row.status = RowStatus::NotFinite;
                }
            }
            for index in place.list.clone() {
                let scored = SampleOut::read(&list[index as usize * SampleOut::COUNT..]);
                if scored.status != STATUS_OK {
                    row.status = RowStatus::NotFinite;
                }
                let mut entry = log_probs(&scored);
                entry.top.truncate(place.list_top as usize);
                row.prompt_log_probs.push(entry);
            }
            if let Some(index) = place.pooled {
                let words = &pooled[index as usize * hidden_size..][..hidden_size];
                row.pooled = words.iter().map(|word| f32::from_bits(*word)).collect();
                if row.pooled.iter().any(|value| !value.is_finite()) {
                    row.status = RowStatus::NotFinite;
                }
            }
            row
        })
        .collect();
    StepOutput { id, rows, tokens }
}

/// The log-probability of a row's token, its rank, and those of the best tokens.
fn log_probs(row: &SampleOut) -> TokenLogProbs {
    let count = row.num_best.min(MAX_BEST) as usize;
    let best = row.best_ids.iter().zip(&row.best_log_probs).take(count);
    TokenLogProbs {
        token: TokenId(row.token),
        log_prob: row.log_prob,
        rank: row.rank,
        top: best.map(|(id, value)| (TokenId(*id), *value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingle_core::SlotId;

    fn place(slot: u32, sample: Option<u32>) -> RowPlace {
        RowPlace {
            slot: SlotId::first(slot),
            sample,
            wants_log_probs: false,
            list: 0..0,
            list_top: 0,
            pooled: None,
        }
    }

    fn entry(token: u32, status: u32, top: &[(u32, f32)]) -> [u32; SampleOut::COUNT] {
        let num_best = top.len() as u32;
        let mut row =
            SampleOut { token, status, log_prob: -1.5, rank: 3, num_best, ..SampleOut::default() };
        for (index, (id, value)) in top.iter().enumerate() {
            (row.best_ids[index], row.best_log_probs[index]) = (*id, *value);
        }
        let mut words = [0; SampleOut::COUNT];
        row.write(&mut words);
        words
    }

    fn decode(rows: &[RowPlace], out: &[u32], list: &[u32], pooled: &[u32]) -> StepOutput {
        output(StepId(4), rows, &Returned { out, list, pooled, hidden_size: 2 })
    }

    #[test]
    fn tokens_come_in_row_order_and_bad_rows_have_none() {
        // Late samples are last in the sampler's list, whatever their row is.
        let rows = [place(7, Some(2)), place(5, None), place(3, Some(0)), place(1, Some(1))];
        let out = [entry(10, 0, &[]), entry(0, 1, &[]), entry(12, 0, &[])].concat();
        let step = decode(&rows, &out, &[], &[]);
        assert_eq!(step.tokens, [TokenId(12), TokenId(10)]);
        let counts: Vec<u32> = step.rows.iter().map(|row| row.num_tokens).collect();
        assert_eq!(counts, [1, 0, 1, 0]);
        assert_eq!(step.rows[3].status, RowStatus::NotFinite);
        assert!(step.rows.iter().take(3).all(|row| row.status == RowStatus::Ok));
    }

    #[test]
    fn log_probs_and_vectors_reach_their_rows() {
        let mut row = place(0, Some(0));
        row.wants_log_probs = true;
        let mut prompt = place(1, None);
        (prompt.list, prompt.list_top, prompt.pooled) = (1..2, 1, Some(1));
        let top = [(5, -0.5), (6, -0.75)];
        let list = [entry(1, 0, &[]), entry(9, 0, &top)].concat();
        let pooled = [0.0f32, 0.0, 2.5, -1.0].map(f32::to_bits);
        let step = decode(&[row, prompt], &entry(5, 0, &top), &list, &pooled);
        let sampled = &step.rows[0].log_probs[0];
        assert_eq!((sampled.token, sampled.log_prob, sampled.rank), (TokenId(5), -1.5, 3));
        assert_eq!(sampled.top, [(TokenId(5), -0.5), (TokenId(6), -0.75)]);
        assert_eq!(step.rows[1].prompt_log_probs[0].top, [(TokenId(5), -0.5)]);
        assert_eq!(step.rows[1].pooled, [2.5, -1.0]);
    }
}
