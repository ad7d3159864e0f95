//! [2] The fast encoder of byte-level BPE: its own splitters, merger and word cache. Any thread.
//! Ids are those of the tokenizers library. Tokenizers that it does not recognise exactly use
//! `pipeline`.

mod cache;
mod encoder;
pub(crate) mod patterns;
pub(crate) mod splitter;
#[cfg(test)]
pub(crate) mod testing;
mod unicode;
mod unicode_tables;

pub(crate) use cache::{CachePool, WordCache};
pub(crate) use encoder::{Recipe, WordEncoder, WordParts};
pub(crate) use unicode::is_punctuation;
