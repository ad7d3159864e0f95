//! [2] The fast encoder of byte-level BPE: own splitters, own merger and a cache of words. Any
//! thread. Ids are those of the tokenizers crate; whatever is not recognised exactly goes there.

mod cache;
mod encoder;
pub(crate) mod splitter;
#[cfg(test)]
mod testing;
mod unicode;
mod unicode_tables;

pub(crate) use cache::{CachePool, WordCache};
pub(crate) use encoder::{Recipe, WordEncoder};
