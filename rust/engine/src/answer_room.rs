//! [7] Bounds the text of whole answers, which stay in memory until their last choice has ended. How long a token's
//! text is, the model's files decide: up to a kilobyte. Engine thread.

use std::fmt;

/// Bytes of text that all whole answers of an engine hold.
#[derive(Debug, Default)]
pub(crate) struct AnswerRoom {
    held: u64,
}

/// Why an answer was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// It alone has more than one answer may have.
    Alone,
    /// All together have more than the engine holds, and it is the longest.
    Together,
    /// Its body would be larger than one may be.
    Body,
}

impl AnswerRoom {
    /// Counts text that an answer has got.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.held += bytes;
    }

    /// Forgets the text of an answer that is gone.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    /// Whether all together hold too much.
    pub(crate) fn is_full(&self) -> bool {
        self.held > MAX_HELD_BYTES
    }
}

impl TooLong {
    /// OpenAI's `error.code`, and the HTTP status.
    pub(crate) fn code(self) -> (&'static str, u16) {
        match self {
            Self::Alone | Self::Body => ("answer_too_long", 500),
            Self::Together => ("overloaded", 503),
        }
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Self::Alone => write!(
                f,
                "the answer has more than {} MiB of text, the most that one body may have; ask for a \
                 stream, or for fewer choices or tokens",
                mib(MAX_ANSWER_BYTES)
            ),
            Self::Together => write!(
                f,
                "all answers that are not streams have more than {} MiB of text together, and this is \
                 the longest",
                mib(MAX_HELD_BYTES)
            ),
            Self::Body => write!(
                f,
                "the answer with its log-probs has more than {} MiB; ask for fewer alternatives, \
                 choices or tokens",
                MAX_BODY_BYTES >> 20
            ),
        }
    }
}

/// Tests have small models and small limits.
const TEXT_SCALE: u64 = if cfg!(test) { 1 << 14 } else { 1 };
/// Text of one answer, its choices and echoed prompts together: 128 choices of 100,000 tokens of five characters.
pub(crate) const MAX_ANSWER_BYTES: u64 = (64 << 20) / TEXT_SCALE;
/// Of all whole answers of an engine.
const MAX_HELD_BYTES: u64 = (256 << 20) / TEXT_SCALE;
/// Of one body: as much text where all of it is escaped, and as many log-probs as one answer may have at 160 bytes, for
/// which the front end reserves memory.
pub(crate) const MAX_BODY_BYTES: usize = if cfg!(test) { 2 << 20 } else { 1 << 30 };
