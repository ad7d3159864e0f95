//! [2] [7] Words that must not stand in an answer: which tokens would complete one. Compiled on the
//! caller's thread, within about a millisecond once the vocabulary is sorted; masks are computed by
//! worker threads. Nothing here can fail once a list is compiled, whatever its words are.
//!
//! A word is text: it may not stand in what the client reads after the reasoning, however tokens cut
//! it, inside longer words, in tool calls and their markers too. Case counts. A word that begins in the
//! prompt is not seen.

mod factory;
mod mask;
mod place;
mod vocabulary;
mod words;

pub use factory::{AnswerText, BadWordsFactory};
pub use mask::{BadWords, BadWordsState};

#[cfg(test)]
mod tests;
