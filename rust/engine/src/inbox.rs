//! The engine thread's message queue and its only place to sleep. Requests, aborts and step completions
//! arrive here. Any thread puts, the engine thread takes. Nothing is computed under its lock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ingle_core::{ExecutorError, StepCompletion};

use crate::choice_mask::MaskResult;
use crate::presence::{Swap, Swapped};
use crate::rest::{Rest, RestReply, Rested};
use crate::stream::ClientSocket;
use crate::submission::Submission;
use crate::tenant_load::TenantLoad;

/// What the engine thread wakes up for.
pub(crate) enum Message {
    /// A new client request.
    Submit(Box<Submission>, Arc<TenantLoad>),
    /// The client is gone.
    Abort(u64),
    /// Frames may go to this socket, if the event loop holds none of the stream's.
    Attach(u64, ClientSocket),
    /// Send a keep-alive comment on this stream if it has been silent.
    Ping(u64),
    /// A step ended.
    Completed(StepCompletion),
    /// Token masks of grammars are ready.
    Masks(Vec<MaskResult>),
    /// The device that the engine shares with others is its own until its next step.
    Turn,
    /// Forget all cached prefixes.
    ClearPrefixCache,
    /// Fall asleep, if nothing runs, or wake up.
    Rest(Rest, RestReply),
    /// That has ended.
    Rested(Rested),
    /// Make room in a shared device's memory, or return.
    Swap(Swap),
    /// That has ended.
    Swapped(Swapped),
    /// The executor has changed the KV pool: what it has now.
    Resized(Result<u64, ExecutorError>),
    /// Abort everything and end.
    Shutdown,
}

/// What the engine thread waits for when the inbox is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wait {
    /// Nothing: it does not sleep.
    No,
    /// The end of a step, or a message as important: the maximum number of steps is in flight.
    ForStep,
    /// The same, but at most until then: it is time to plan the next step.
    ForStepUntil(Instant),
    /// Any message.
    ForAny,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    sleep: Sleep,
    closed: bool,
}

/// What the engine thread does.
#[derive(Clone, Copy, Default, PartialEq)]
enum Sleep {
    #[default]
    Awake,
    /// Sleeps until a message comes.
    Idle,
    /// Sleeps with the maximum number of steps in flight. Until one ends most messages change nothing,
    /// and a wake-up for each would cost more than handling it.
    UntilStep,
}

impl Inbox {
    /// Puts a message and wakes the engine thread if it sleeps. Returns the message as an error if the
    /// engine thread has ended.
    pub(crate) fn put(&self, message: Message) -> Result<(), Message> {
        self.push(message, |sleep| sleep != Sleep::Awake)
    }

    /// Like `put`, for a message that changes nothing while the maximum number of steps is in flight: it
    /// does not wake the engine thread before one of them ends.
    pub(crate) fn put_for_next_step(&self, message: Message) -> Result<(), Message> {
        self.push(message, |sleep| sleep == Sleep::Idle)
    }

    fn push(&self, message: Message, wakes: impl Fn(Sleep) -> bool) -> Result<(), Message> {
        let mut state = self.lock();
        if state.closed {
            return Err(message);
        }
        state.messages.push(message);
        // std's notify makes a system call even if no thread waits.
        if wakes(state.sleep) {
            state.sleep = Sleep::Awake;
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Moves the remaining messages into `into`, which must be empty. Later messages are refused.
    pub(crate) fn close(&self, into: &mut Vec<Message>) {
        let mut state = self.lock();
        state.closed = true;
        std::mem::swap(&mut state.messages, into);
    }

    /// Moves all messages into `into`, which must be empty. If there are none, sleeps as `wait` says.
    pub(crate) fn take(&self, into: &mut Vec<Message>, wait: Wait) {
        let (sleep, until) = match wait {
            Wait::No => (Sleep::Awake, None),
            Wait::ForStep => (Sleep::UntilStep, None),
            Wait::ForStepUntil(time) => (Sleep::UntilStep, Some(time)),
            Wait::ForAny => (Sleep::Idle, None),
        };
        let mut state = self.lock();
        while state.messages.is_empty() && sleep != Sleep::Awake {
            state.sleep = sleep;
            // A spurious wake-up leaves `sleep` as it was.
            while state.sleep != Sleep::Awake {
                let Some(until) = until else {
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                };
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    state.sleep = Sleep::Awake;
                    // Messages that did not wake it are there all the same.
                    return std::mem::swap(&mut state.messages, into);
                }
                let waited = self.wake.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        std::mem::swap(&mut state.messages, into);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The vector stays valid if a thread panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
