//! [7] How the engine thread ends: on request or by a fault. Every request still gets its end. Engine
//! thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::engine_thread::EngineThread;
use crate::inbox::{Message, Wait};
use crate::outbox::{Event, error_payload};
use crate::shared::EngineState;

impl EngineThread {
    /// Runs until shutdown. After a fatal fault it goes on refusing what still comes.
    pub(crate) fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve()));
        match ended {
            Ok(Ok(())) => self.stop(),
            Ok(Err(message)) => self.die(&message),
            // The panic's text can quote a request. The panic hook has already logged the place.
            Err(_) => self.die("the engine thread panicked"),
        }
    }

    /// Ends every request because the process is asked to end.
    fn stop(mut self) {
        self.turns = None;
        self.shared.advance(EngineState::Stopped);
        self.committer.end_all_with_error(SHUT_DOWN, "shutdown", 503);
        self.shared.outbox.publish(&mut self.committer.events);
        self.refuse_rest(SHUT_DOWN, "shutdown", 503);
        // Dropping the executor waits for its threads.
    }

    /// Ends every request, and refuses new ones until shutdown. `reason` is for the operator. Clients only see
    /// that the engine has ended.
    fn die(mut self, reason: &str) {
        let message = DIED;
        self.turns = None;
        self.shared.advance(EngineState::Dead);
        self.committer.end_all_with_error(message, "engine_dead", 500);
        let reason = match self.shared.served.num_engines {
            1 => reason.to_owned(),
            _ => format!("engine {}: {reason}", self.shared.number),
        };
        let payload = error_payload(&reason, "engine_dead", 500);
        self.committer.events.push(Event { key: ENGINE_KEY, payload });
        self.shared.outbox.publish(&mut self.committer.events);
        let mut batch = std::mem::take(&mut self.left);
        while !self.refuse_batch(&mut batch, message, "engine_dead", 500) {
            self.shared.inbox.take(&mut batch, Wait::ForAny);
        }
        self.refuse_rest(message, "engine_dead", 500);
    }

    /// Answers what came after the end, without waiting for more.
    fn refuse_rest(&mut self, message: &str, code: &str, status: u16) {
        let mut batch = std::mem::take(&mut self.left);
        self.refuse_batch(&mut batch, message, code, status);
        self.shared.inbox.close(&mut batch);
        self.refuse_batch(&mut batch, message, code, status);
    }

    /// Ends requests that will not run; true if `Shutdown` was among the messages.
    fn refuse_batch(
        &mut self,
        batch: &mut Vec<Message>,
        message: &str,
        code: &str,
        status: u16,
    ) -> bool {
        let mut shutdown = false;
        for item in batch.drain(..) {
            match item {
                Message::Submit(submission, _) => {
                    self.shared.release_at_end(submission.requests.len() as u32);
                    // The client of a stream must get a frame with the error; it may have got no other.
                    let key = submission.stream.key;
                    self.committer.insert(submission.stream);
                    self.committer.end_with_error(key, message, code, status);
                    self.committer.remove(key);
                }
                Message::Abort(key) => self.shared.outbox.forget(key),
                Message::Shutdown => shutdown = true,
                Message::Attach(..)
                | Message::Ping(_)
                | Message::Completed(_)
                | Message::Masks(_)
                | Message::Turn
                | Message::Swap(_)
                | Message::Swapped(_)
                | Message::Resized(_)
                | Message::ClearPrefixCache
                // Whoever waits for the reply sees that there is none.
                | Message::Rest(..)
                | Message::Rested(..) => {}
            }
        }
        self.shared.outbox.publish(&mut self.committer.events);
        shutdown
    }
}

/// The engine's own key in events.
const ENGINE_KEY: u64 = 0;
const SHUT_DOWN: &str = "the server is shutting down";
const DIED: &str = "the engine has stopped because of an internal error";
