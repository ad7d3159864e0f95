//! Sleep: an engine that nothing runs on gives memory back, and takes it again when it is woken. The engine thread
//! starts the executor's part and hears of its end in its inbox; callers of `Engine::sleep` and `Engine::wake` wait.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use ingle_core::{ExecutorError, RestSink, SleepLevel};

use crate::engine::Engine;
use crate::engine_thread::EngineThread;
use crate::error::EngineError;
use crate::inbox::Message;
use crate::rest::{Rest, RestReply, Rested, Wakefulness};
use crate::shared::{EngineState, Shared};
use crate::shared_device::DeviceTurns;

impl Engine {
    /// Puts all engines to sleep: what `level` says is given back, cached prefixes are forgotten, and requests are
    /// refused with 503 from now on. Blocks until that is done. An engine that sleeps may be asked to sleep deeper.
    ///
    /// # Errors
    /// `Refused` with 501 if the device cannot sleep so deep, with 409 if a request runs or waits; `Overloaded` if the
    /// device could not; `Fatal` if an engine has stopped. Then all engines are awake, or as deep asleep as before.
    pub fn sleep(&self, level: SleepLevel) -> Result<(), EngineError> {
        let deepest = self.front.served.deepest_sleep;
        if level > deepest {
            return Err(too_deep(level, deepest));
        }
        let before: Vec<_> = self.engines.iter().map(|engine| engine.sleep_level()).collect();
        // Before an engine thread looks whether it is idle: what comes from now on is refused.
        for (engine, before) in self.engines.iter().zip(&before) {
            engine.set_sleep_level(Some(before.map_or(level, |before| before.max(level))));
        }
        let slept = answers(self.engines.iter().map(|engine| ask(engine, Rest::Sleep(level))));
        if slept.is_err() {
            let woken = self.engines.iter().zip(&before).filter(|(_, before)| before.is_none());
            // One that cannot wake sleeps on, and health says so.
            let _ = answers(woken.map(|(engine, _)| ask(engine, Rest::Wake)));
        }
        slept.map_err(|error| error.unwrap_or_else(|| self.stopped()))
    }

    /// Wakes all engines; they take requests again. Blocks until they can. No effect on one that is awake.
    ///
    /// # Errors
    /// `Overloaded` if a device could not take its memory back: that engine sleeps on, and can be woken again;
    /// `Fatal` if an engine has stopped.
    pub fn wake(&self) -> Result<(), EngineError> {
        let woken = answers(self.engines.iter().map(|engine| ask(engine, Rest::Wake)));
        woken.map_err(|error| error.unwrap_or_else(|| self.stopped()))
    }

    /// How deep the engine sleeps that sleeps deepest, or is about to; `None` if all are awake.
    #[must_use]
    pub fn sleep_level(&self) -> Option<SleepLevel> {
        self.engines.iter().filter_map(|engine| engine.sleep_level()).max()
    }
}

/// Waits for all engines, asked at once; the first error, `None` of an engine thread that has ended.
fn answers(
    asked: impl Iterator<Item = Receiver<Result<(), EngineError>>>,
) -> Result<(), Option<EngineError>> {
    let asked: Vec<_> = asked.collect();
    let heard = |answer: Receiver<Result<(), EngineError>>| match answer.recv() {
        Ok(result) => result.map_err(Some),
        Err(_) => Err(None),
    };
    // Each is waited for, also behind an error.
    let heard: Vec<_> = asked.into_iter().map(heard).collect();
    heard.into_iter().collect()
}

fn ask(engine: &Shared, rest: Rest) -> Receiver<Result<(), EngineError>> {
    let (reply, answer) = sync_channel(1);
    // A closed inbox drops the message and the sender in it.
    let _ = engine.inbox.put(Message::Rest(rest, reply));
    answer
}

fn too_deep(level: SleepLevel, deepest: SleepLevel) -> EngineError {
    EngineError::Refused {
        message: format!(
            "level: this worker can sleep at level {} at most, not {}",
            deepest as u8, level as u8
        ),
        param: Some("level".to_owned()),
        code: Some("not_supported"),
        status: 501,
    }
}

impl EngineThread {
    /// Starts a rest, or answers at once where there is nothing to do or something is in the way.
    pub(crate) fn rest(&mut self, rest: Rest, reply: RestReply) {
        let from = self.wakefulness;
        let answer = match (rest, from) {
            // First: a swap is no rest, and its end would leave the level that the caller has set.
            _ if self.turns.as_ref().is_some_and(DeviceTurns::swaps) => {
                self.shared.set_sleep_level(None);
                Err(conflict(SWAPS.to_owned()))
            }
            _ if from == Wakefulness::Changing || self.postponed_rest.is_some() => {
                Err(conflict("the engine is already falling asleep or waking up".to_owned()))
            }
            (Rest::Sleep(level), Wakefulness::Asleep(now)) if level <= now => Ok(()),
            (Rest::Sleep(_), Wakefulness::Awake) if self.scheduler.has_requests() => {
                self.shared.set_sleep_level(None);
                let running = self.shared.num_choices();
                Err(conflict(format!("{running} requests still run or wait")))
            }
            (Rest::Sleep(_), Wakefulness::Awake) if !self.scheduler.is_idle() => {
                // Steps that compute rows of aborted requests. `complete` asks again.
                self.postponed_rest = Some((rest, reply));
                return;
            }
            (Rest::Wake, Wakefulness::Awake | Wakefulness::Changing) => {
                self.shared.set_sleep_level(None);
                Ok(())
            }
            (Rest::Sleep(level), _) => {
                self.scheduler.clear_prefix_cache();
                let done = self.rest_sink(from, Wakefulness::Asleep(level), reply);
                return self.executor.sleep(level, done);
            }
            (Rest::Wake, Wakefulness::Asleep(_)) => {
                let done = self.rest_sink(from, Wakefulness::Awake, reply);
                return self.executor.wake(done);
            }
        };
        // The caller may have given up.
        let _ = reply.try_send(answer);
    }

    /// What the executor calls at the end of a rest: this thread hears of it.
    fn rest_sink(&mut self, from: Wakefulness, to: Wakefulness, reply: RestReply) -> RestSink {
        self.wakefulness = Wakefulness::Changing;
        let shared = Arc::clone(&self.shared);
        Box::new(move |result| {
            // A closed inbox: the engine has stopped, and the reply goes with the message.
            let _ = shared.inbox.put(Message::Rested(Rested { from, to, result, reply }));
        })
    }

    /// Ends a rest. A lost device is an error.
    pub(crate) fn rested(&mut self, rested: Rested) -> Result<(), String> {
        let Rested { from, to, result, reply } = rested;
        let (now, answer) = match result {
            Ok(()) => (to, Ok(())),
            Err(ExecutorError::Unchanged(reason)) => (from, Err(not_now(reason))),
            Err(error) => {
                // Before the caller sees that there is no answer.
                self.shared.advance(EngineState::Dead);
                return Err(error.to_string());
            }
        };
        self.wakefulness = now;
        self.shared.set_sleep_level(match now {
            Wakefulness::Asleep(level) => Some(level),
            Wakefulness::Awake | Wakefulness::Changing => None,
        });
        // The caller may have given up.
        let _ = reply.try_send(answer);
        Ok(())
    }
}

fn conflict(message: String) -> EngineError {
    EngineError::Refused { message, param: None, code: Some("still_running"), status: 409 }
}

/// The device could not; it may be able to later.
fn not_now(message: String) -> EngineError {
    EngineError::Overloaded { message, retry_after_s: 1, status: 503 }
}

const SWAPS: &str = "models make room for each other here: send single ones away";
