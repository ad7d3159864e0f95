//! GGUF files made in memory, whole and broken.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "tests may panic"
)]

mod builder;
mod header;
mod models;
