//! [3] Chooses the engine of a request where there are several. Caller's thread; its lock is never taken
//! by an engine thread.

use std::sync::{Arc, Mutex, PoisonError};

use crate::shared::Shared;
use crate::submission::Submission;

/// The choice between engines.
#[derive(Debug, Default)]
pub(crate) struct Routing {
    /// Held while the engines are compared, so that requests that come together see each other.
    turn: Mutex<()>,
}

impl Routing {
    /// The number of the engine for the request, which counts there from now on.
    pub(crate) fn place(&self, submission: &Submission, engines: &[Arc<Shared>]) -> usize {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let least = engines.iter().min_by_key(|engine| engine.num_choices());
        let number = least.map_or(0, |engine| engine.number);
        engines[number].enter(submission.requests.len() as u32);
        number
    }
}
