//! The GGUF format, versions 2 and 3, little-endian: header, metadata, and the model it describes.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod cursor;
mod header;
mod known;
mod metadata;
mod plan;
mod spec;
mod types;

use std::path::Path;
use std::sync::Arc;

pub use metadata::GgufMetadata;

use crate::chat_templates::ChatTemplates;
use crate::checkpoint::{Checkpoint, TokenizerFiles};
use crate::error::ModelError;
use crate::source::{FileSource, OpenFile, ReadAt};
use crate::{CopyPlan, EmbeddingDefaults, ModelSpec, generation};

/// Opens a `.gguf` file.
pub(crate) fn open_gguf(path: &Path) -> Result<Checkpoint, ModelError> {
    let file = OpenFile::open(path)?;
    let Described { spec, plan, metadata } = describe(&file, &file.name, file.len)?;
    let generation = generation::from_gguf(&metadata)?;
    let (_, pooling) = known::embeddings(&metadata, &spec.architecture)?;
    let plain = EmbeddingDefaults::default();
    let embedding = EmbeddingDefaults { pooling: pooling.unwrap_or(plain.pooling), ..plain };
    let chat_templates = ChatTemplates::of_gguf(&metadata)?;
    Ok(Checkpoint {
        spec,
        plan,
        source: Arc::new(FileSource::new(vec![file])),
        tokenizer: TokenizerFiles::Gguf { metadata, chat_templates },
        generation,
        embedding,
        has_weights: true,
        notes: Vec::new(),
        path: path.to_owned(),
        kv_scales: Vec::new(),
    })
}

/// The contents of a GGUF file's header.
#[derive(Debug)]
struct Described {
    spec: ModelSpec,
    plan: CopyPlan,
    metadata: GgufMetadata,
}

fn describe(source: &dyn ReadAt, name: &str, file_len: u64) -> Result<Described, ModelError> {
    let header::Header { metadata, mut catalogue } = header::read_header(source, name, file_len)?;
    let mut spec = spec::model_spec(&metadata, &mut catalogue, source)?;
    plan::take_tensors(&spec, &mut catalogue)?;
    spec.weight_type = catalogue.main_type();
    let plan = catalogue.finish(plan::is_harmless)?;
    Ok(Described { spec, plan, metadata })
}

#[cfg(test)]
mod tests;
