//! [7] Client requests that end before their answer is complete: faults, aborts, answers that are too
//! long. Engine thread.

use ingle_core::{CoreEvent, RequestFault, RequestId, Scheduler};

use crate::answer_forms::too_long;
use crate::answer_room::TooLong;
use crate::commit::Committer;
use crate::outbox::{Event, error_object, error_payload};
use crate::submission::{request_id, split_id};

impl Committer {
    /// One choice failed: its client request ends with an error, the other choices are aborted.
    pub(crate) fn fail_stream(
        &mut self,
        id: RequestId,
        fault: &RequestFault,
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        let (key, at) = split_id(id);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.choices[at].is_over = true;
        let code = match fault {
            RequestFault::NotFinite => "not_finite",
            RequestFault::StepFailed(_) => "step_failed",
            RequestFault::DeviceLost(_) => "device_lost",
        };
        self.end_with_error(key, &fault.to_string(), code, 500);
        self.drop_stream(key, scheduler, core_events);
    }

    /// Ends whole answers that have too much text, alone or together.
    pub(crate) fn end_overlong(
        &mut self,
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        for key in std::mem::take(&mut self.overlong) {
            self.end_too_long(key, TooLong::Alone, scheduler, core_events);
        }
        while self.answers.is_full() {
            let longest = self.streams.iter().max_by_key(|(_, stream)| stream.held_bytes);
            let Some(key) = longest.map(|(key, _)| *key) else { return };
            self.end_too_long(key, TooLong::Together, scheduler, core_events);
        }
    }

    fn end_too_long(
        &mut self,
        key: u64,
        why: TooLong,
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        if self.streams.contains_key(&key) {
            self.events.push(Event { key, payload: too_long(why) });
            self.drop_stream(key, scheduler, core_events);
        }
    }

    /// Reports to a client request that it failed. The stream stays known until it is dropped.
    pub(crate) fn end_with_error(&mut self, key: u64, message: &str, code: &str, status: u16) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let frames = stream.show_error(&error_object(message, code), &mut self.shown);
        // A client that is gone or slow loses an error that it could not read anyway.
        self.send_frames(key, frames);
        self.events.push(Event { key, payload: error_payload(message, code, status) });
    }

    /// Ends everything with an error; the core is not asked, since it or its device is gone.
    pub(crate) fn end_all_with_error(&mut self, message: &str, code: &str, status: u16) {
        let keys: Vec<u64> = self.streams.keys().copied().collect();
        for key in keys {
            self.end_with_error(key, message, code, status);
            if let Some(stream) = self.remove(key) {
                let open = stream.choices.iter().filter(|choice| !choice.is_over).count();
                self.shared.release_at_end(open as u32);
            }
        }
    }

    /// Forgets a stream and aborts those of its choices that still run.
    pub(crate) fn drop_stream(
        &mut self,
        key: u64,
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        let Some(stream) = self.remove(key) else { return };
        for (at, choice) in stream.choices.iter().enumerate() {
            if !choice.is_over {
                scheduler.abort(request_id(key, at), core_events);
            }
        }
    }

    /// The caller gave up on `key`: no further event carries it.
    pub(crate) fn abort(
        &mut self,
        key: u64,
        scheduler: &mut Scheduler,
        core_events: &mut Vec<CoreEvent>,
    ) {
        self.drop_stream(key, scheduler, core_events);
        self.events.retain(|event| event.key != key);
        self.shared.outbox.forget(key);
    }
}
