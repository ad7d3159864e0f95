//! Errors in a simulated executor's settings.

/// All are the operator's fault, and the worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The profile's file cannot be read.
    #[error("profile {path}: {cause}")]
    Unreadable {
        /// As given.
        path: String,
        /// From the system.
        cause: std::io::Error,
    },
    /// The profile's file is not a profile.
    #[error("profile {path}: {cause}")]
    Malformed {
        /// As given.
        path: String,
        /// From the parser; names the field or the line.
        cause: serde_json::Error,
    },
    /// A number of the profile makes no sense.
    #[error("profile {name}: {field} is {value}; it must be {rule}")]
    BadProfile {
        /// Name in the profile.
        name: String,
        /// Name of the number.
        field: &'static str,
        /// The number.
        value: f64,
        /// What it must be.
        rule: &'static str,
    },
    /// The speed is not a factor.
    #[error("sim speed is {0}; it must be above 0, or inf")]
    BadSpeed(f64),
    /// There is nothing to answer with.
    #[error("the text to answer with has no tokens")]
    EmptyText,
    /// A token of the text is outside the vocabulary.
    #[error("token id {token} of the text is not below the vocabulary size of {vocab_size}")]
    UnknownToken {
        /// The first such id.
        token: u32,
        /// Ids below this exist.
        vocab_size: u32,
    },
    /// The timer thread could not be started.
    #[error("the sim's timer thread did not start: {0}")]
    Thread(std::io::Error),
}
