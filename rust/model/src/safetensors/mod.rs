//! The safetensors format: one file's header, which files of a folder count, and how Hugging Face
//! names tensors.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod files;
mod header;
mod plan;

pub(crate) use files::open_folder;
pub(crate) use plan::{Widths, is_harmless, take_tensors};
