//! Hostile inputs for the parsers of untrusted bytes, made from seeds: model files, and mutated inputs for
//! fuzz targets. For tests only; nothing that is shipped depends on this crate.
//!
//! Everything here panics on a finding. The same seed makes the same input on every machine.

#![allow(clippy::unwrap_used, reason = "a finding is a panic")]

pub mod cost;
pub mod model_files;
pub mod rng;
