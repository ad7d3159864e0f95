//! Tests of the crate from outside, in one binary: against the reference cases, against the
//! tokenizers library, against Jinja2's renderings, and of what things cost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chat;
mod common;
mod golden;
mod hostile;
mod load;
mod oracle;
#[allow(dead_code, reason = "the tests name a part of them")]
#[path = "../../src/words/patterns.rs"]
mod patterns;
mod published;
mod scaling;
mod steps;
#[path = "../../src/words/testing.rs"]
mod testing;
mod vocabularies;
