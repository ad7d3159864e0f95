//! What can go wrong while a process is locked down. Every one of them stops the start.

use std::io;

/// Why a process could not be locked down as asked.
#[derive(Debug, thiserror::Error)]
pub enum HardeningError {
    /// A policy file that was built in is wrong.
    #[error("security/policy/{name}: {reason}")]
    Policy {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A filter that the kernel would not take.
    #[error("a filter of {instructions} instructions is too long")]
    TooLong {
        /// How many it has.
        instructions: usize,
    },
    /// A step that failed.
    #[error("hardening: {what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// The process is not in the state that a step needs, or not in the one that it should have reached.
    #[error("hardening: {0}")]
    State(String),
    /// With `strict`, what this machine lacks.
    #[error("hardening: strict, but missing here: {}", .0.join("; "))]
    Missing(Vec<String>),
}

impl HardeningError {
    /// For `map_err`: a step that failed.
    pub(crate) fn at<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |cause| Self::System { what: what.into(), cause: cause.into() }
    }
}
