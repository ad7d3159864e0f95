//! Hostile inputs for the parsers of untrusted bytes, made from seeds: malformed model files, and fuzz
//! targets with a driver that needs no special compiler. For tests only; nothing that is shipped depends
//! on this crate.
//!
//! Everything here panics on a finding. The same seed makes the same inputs on every machine.

#![allow(clippy::unwrap_used, reason = "a finding is a panic")]

pub mod bombs;
pub mod cost;
pub mod coverage;
pub mod driver;
mod json_edits;
#[cfg(feature = "libfuzzer")]
pub mod libfuzzer;
pub mod model_files;
pub mod mutation;
pub mod rng;
pub mod targets;
