//! [2] [7] Words that an answer must not contain: finds the tokens that would complete one. A list
//! is compiled on the caller's thread, in about a millisecond once the vocabulary is sorted. Worker
//! threads compute the masks. Nothing can fail after a list is compiled.
//!
//! A word is text. What the client reads after the reasoning must not contain it, however tokens
//! divide it, also inside longer words, tool calls and their markers. Case is significant. A word
//! that begins in the prompt is not detected.

mod factory;
mod harmony;
mod mask;
mod place;
mod vocabulary;
mod words;

pub use factory::{AnswerText, BadWordsFactory, MAX_BAD_WORD_CHARS, MAX_BAD_WORDS};
pub use mask::{BadWords, BadWordsState};

#[cfg(test)]
mod tests;
