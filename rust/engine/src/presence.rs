//! What a shared device's memory, an engine thread and its executor say to each other about swaps. Plain data;
//! swap.rs has the rules.

use ingle_core::{ExecutorError, Micros};

use crate::rest::Wakefulness;

/// What the device's memory asks of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    /// Give the memory back once what runs has ended.
    Leave,
    /// Take it again: there is room.
    Return,
    /// There has been no room for too long: the requests that wait must end.
    Overdue,
    /// Give the KV pool another size.
    Resize {
        /// About what it then has.
        bytes: u64,
        /// As in `ingle_core::Move`.
        preempts: bool,
    },
}

/// The end of the executor's part.
pub(crate) struct Swapped {
    pub(crate) to: Wakefulness,
    pub(crate) result: Result<(), ExecutorError>,
    pub(crate) took: Micros,
}

/// Where an engine is that makes room for others. Engine thread only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// In memory, as far as others are concerned.
    #[default]
    Here,
    /// Finishes what runs.
    Leaving,
    /// Out of memory, or on the way.
    Away,
}
