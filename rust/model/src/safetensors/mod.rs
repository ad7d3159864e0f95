//! The safetensors format: the header of a file, the files of a folder, and Hugging Face's tensor
//! names.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod files;
mod header;
mod kv_scales;
mod plan;

pub(crate) use files::{has_weights, names_with, open_folder};
pub(crate) use kv_scales::kv_scales;
pub(crate) use plan::{
    Found, Head, Widths, find, is_harmless, is_of_layers, is_of_shared_keys, is_of_towers,
    take_tensors,
};
