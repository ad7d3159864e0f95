//! The GGUF format, versions 2 and 3, little-endian: header, metadata, and the model it describes.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod cursor;
mod header;
mod metadata;
mod plan;
mod spec;
mod types;

use std::path::Path;
use std::sync::Arc;

pub use metadata::GgufMetadata;

use crate::checkpoint::{Checkpoint, TokenizerFiles};
use crate::error::ModelError;
use crate::generation;
use crate::source::{FileSource, OpenFile};

/// Opens a `.gguf` file.
pub(crate) fn open_gguf(path: &Path) -> Result<Checkpoint, ModelError> {
    let file = OpenFile::open(path)?;
    let header::Header { metadata, mut catalogue } =
        header::read_header(&file, &file.name, file.len)?;
    let mut spec = spec::model_spec(&metadata, &mut catalogue, &file)?;
    plan::take_tensors(&spec, &mut catalogue)?;
    spec.weight_type = catalogue.main_type();
    let plan = catalogue.finish(plan::is_harmless)?;
    let generation = generation::from_gguf(&metadata)?;
    let chat_template = metadata.string("tokenizer.chat_template")?.map(str::to_owned);
    Ok(Checkpoint {
        spec,
        plan,
        source: Arc::new(FileSource::new(vec![file])),
        tokenizer: TokenizerFiles::Gguf { metadata, chat_template },
        generation,
        path: path.to_owned(),
    })
}
