//! The engine thread's only place to sleep: requests, aborts and step completions arrive here. Any
//! thread puts, the engine thread takes. Nothing is computed under its lock.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ingle_core::StepCompletion;

use crate::grammar_pool::MaskResult;
use crate::prepare::Submission;
use crate::shared::TenantLoad;

/// What the engine thread wakes up for.
pub(crate) enum Message {
    /// A new client request.
    Submit(Box<Submission>, Arc<TenantLoad>),
    /// The client is gone.
    Abort(u64),
    /// Frames may go to this socket, if the event loop holds none of the stream's.
    Attach { key: u64, fd: OwnedFd, frames_seen: u64 },
    /// Show life on this stream if it has been silent.
    Ping(u64),
    /// A step ended.
    Completed(StepCompletion),
    /// Token masks of grammars are ready.
    Masks(Vec<MaskResult>),
    /// Abort everything and end.
    Shutdown,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    sleeping: bool,
    closed: bool,
}

impl Inbox {
    /// Puts a message and wakes the engine thread if it sleeps; gives the message back if the engine
    /// thread has ended.
    pub(crate) fn put(&self, message: Message) -> Result<(), Message> {
        let mut state = self.lock();
        if state.closed {
            return Err(message);
        }
        state.messages.push(message);
        // std's notify costs a system call whether or not anyone waits.
        if std::mem::take(&mut state.sleeping) {
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes the last messages into the empty `into`; from now on nothing is taken any more.
    pub(crate) fn close(&self, into: &mut Vec<Message>) {
        let mut state = self.lock();
        state.closed = true;
        std::mem::swap(&mut state.messages, into);
    }

    /// Takes all messages into the empty `into`; sleeps until something wakes it if there are none.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        let mut state = self.lock();
        while state.messages.is_empty() {
            state.sleeping = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            // A wake-up without reason finds it still set.
            state.sleeping = false;
        }
        std::mem::swap(&mut state.messages, into);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves a valid vector.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
