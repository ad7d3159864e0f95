//! Structured output and tool calls from outside, in one binary: random walks under masks, hostile
//! grammars, answers cut anywhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod any_text;
mod block_grammars;
mod blocks;
mod calls_or_json;
mod conditions;
mod cost;
mod grammars;
mod harmony;
mod hostile;
mod keywords;
mod leaks;
mod pythonic;
mod refusals;
mod tool_grammars;
mod walk;
