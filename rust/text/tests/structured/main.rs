//! Structured output and tool calls from outside, in one binary: random walks under masks, hostile
//! grammars, answers cut anywhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cost;
mod grammars;
mod hostile;
mod walk;
