//! [8] -> [9] Events for the HTTP side, and the eventfd that announces them. The engine thread
//! publishes once per step; the event loop drains. There is at most one write to the eventfd between
//! two drains. Neither side waits for the other longer than a swap of two vectors.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::json::string_into;
use crate::logprobs::LogEntry;
use crate::times::Times;

/// One event of one client request.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The request; 0 is the engine itself, whose only event is the error that killed it.
    pub key: u64,
    /// What happened.
    pub payload: Payload,
}

/// What an event carries. Per key: any number of frames or deltas, then exactly one end or error.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// Bytes for the transport, as they are.
    Frame(Vec<u8>),
    /// Like `Frame`, but the response head that came with the socket is already in front, or has been sent.
    Headed(Vec<u8>),
    /// A part of a choice, for the Python API.
    Delta(Box<Delta>),
    /// The stream is complete; its last frame has been sent.
    StreamEnd,
    /// The whole JSON body of a request that is not streamed.
    Body(Vec<u8>),
    /// The end of a request in delta format.
    UsageEnd(Usage),
    /// When it passed its stages; before the end, for a traced request that ended well and asked for it.
    Times(Box<Times>),
    /// The request failed: `{"error":{..},"status":n}`.
    Error(Vec<u8>),
}

/// Token counts of one client request, over all its choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Each prompt counted once.
    pub prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens of all choices.
    pub completion_tokens: u64,
}

/// A part of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// `prompt_index * n + choice`.
    pub index: u32,
    /// New text; may be empty.
    pub text: String,
    /// New tokens.
    pub token_ids: Vec<u32>,
    /// One per new token, if asked for.
    pub log_probs: Option<Vec<LogEntry>>,
    /// Why the choice ended, with its last delta.
    pub finish: Option<Finish>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// OpenAI's `finish_reason`.
    pub reason: &'static str,
    /// vLLM's `stop_reason`.
    pub stop: StopCause,
}

/// Which of the client's own stops ended a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// None of them: end-of-text or a limit.
    None,
    /// One of `stop`.
    Text(String),
    /// One of `stop_token_ids`.
    Token(u32),
}

/// The queue between the engine thread and the event loop.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    armed: AtomicBool,
    drains: AtomicU64,
    fd: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    /// Aborted by the caller, not yet forgotten by the engine thread.
    dead: HashSet<u64>,
}

impl Outbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            state: Mutex::default(),
            armed: AtomicBool::new(false),
            drains: AtomicU64::new(0),
            fd,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Moves `batch` into the queue and wakes the event loop unless it has been woken already.
    pub(crate) fn publish(&self, batch: &mut Vec<Event>) {
        if batch.is_empty() {
            return;
        }
        {
            let mut state = self.lock();
            if !state.dead.is_empty() {
                batch.retain(|event| !state.dead.contains(&event.key));
            }
            state.events.append(batch);
        }
        if !self.armed.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is full, and then the descriptor is readable already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Takes all events. It clears the descriptor, then the flag, then takes the queue: a publish in
    /// between writes to the descriptor again, so no event is left without a wake-up. If the descriptor
    /// is still clear, the publisher has set the flag and not written yet; the flag then stays set for
    /// the drain that this write causes. Otherwise that drain would not clear the descriptor, and the
    /// event loop would spin.
    pub(crate) fn drain(&self) -> Vec<Event> {
        if self.armed.load(Ordering::Acquire) && rustix::io::read(&self.fd, &mut [0_u8; 8]).is_ok()
        {
            self.armed.store(false, Ordering::Release);
        }
        let events = std::mem::take(&mut self.lock().events);
        self.drains.fetch_add(1, Ordering::Release);
        events
    }

    /// Number of drains so far. Once it exceeds an earlier reading, everything that was published before
    /// that reading has been taken.
    pub(crate) fn drains(&self) -> u64 {
        self.drains.load(Ordering::Acquire)
    }

    /// Drops the events of `key`, now and from now on. The thread that aborts the request calls this.
    pub(crate) fn silence(&self, key: u64) {
        let mut state = self.lock();
        state.events.retain(|event| event.key != key);
        state.dead.insert(key);
    }

    /// The engine thread knows that `key` is dead and publishes nothing more for it.
    pub(crate) fn forget(&self, key: u64) {
        self.lock().dead.remove(&key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The vector and the set stay valid if a thread panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `{"error":{..},"status":n}`
pub(crate) fn error_payload(message: &str, code: &str, status: u16) -> Payload {
    let mut out = b"{\"error\":".to_vec();
    out.extend_from_slice(&error_object(message, code));
    out.extend_from_slice(format!(",\"status\":{status}}}").as_bytes());
    Payload::Error(out)
}

/// OpenAI's error object.
pub(crate) fn error_object(message: &str, code: &str) -> Vec<u8> {
    let mut out = b"{\"message\":".to_vec();
    string_into(&mut out, message);
    out.extend_from_slice(b",\"type\":\"server_error\",\"param\":null,\"code\":");
    string_into(&mut out, code);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests;
