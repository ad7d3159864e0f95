//! What callers, the engine thread and its executor say to each other about sleep. Plain data; sleep.rs has the rules.

use std::sync::mpsc::SyncSender;

use ingle_core::{ExecutorError, SleepLevel};

use crate::error::EngineError;

/// What an engine is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Sleep(SleepLevel),
    Wake,
}

/// Takes the one answer. It has room, so sending never blocks.
pub(crate) type RestReply = SyncSender<Result<(), EngineError>>;

/// The end of a rest.
pub(crate) struct Rested {
    pub(crate) from: Wakefulness,
    pub(crate) to: Wakefulness,
    pub(crate) result: Result<(), ExecutorError>,
    pub(crate) reply: RestReply,
}

/// Whether an engine can run steps. Engine thread only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakefulness {
    Awake,
    /// The executor falls asleep or wakes up.
    Changing,
    Asleep(SleepLevel),
}

/// The error of a request that comes to a sleeping engine.
pub(crate) const ASLEEP: &str = "the engine is asleep until its operator wakes it";
