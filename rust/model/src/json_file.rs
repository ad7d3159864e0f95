//! Reads the small files of a model folder.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::path::Path;

use serde_json::Value;

use crate::config::Fields;
use crate::error::ModelError;
use crate::links;
use crate::source::OpenFile;
use crate::strict_json;

/// A parsed file with its name.
pub(crate) struct Json {
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl Json {
    pub(crate) fn required(folder: &Path, file: &str, limit: u64) -> Result<Self, ModelError> {
        Self::optional(folder, file, limit)?.ok_or_else(|| missing(folder, file))
    }

    pub(crate) fn optional(
        folder: &Path,
        file: &str,
        limit: u64,
    ) -> Result<Option<Self>, ModelError> {
        match read(folder, file, limit)? {
            Some((name, bytes)) => Self::parse(name, &bytes).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn parse(name: String, bytes: &[u8]) -> Result<Self, ModelError> {
        let value = strict_json::from_slice(bytes).map_err(|cause| {
            let reason =
                if cause.is_data() { cause.to_string() } else { format!("not JSON: {cause}") };
            ModelError::malformed(&name, reason)
        })?;
        Ok(Self { name, value })
    }

    pub(crate) fn fields(&self) -> Result<Fields<'_>, ModelError> {
        Fields::of_file(&self.name, &self.value)
    }
}

/// A small file's name and bytes; `None` if there is no such file.
pub(crate) fn read(
    folder: &Path,
    file: &str,
    limit: u64,
) -> Result<Option<(String, Vec<u8>)>, ModelError> {
    let path = folder.join(file);
    if std::fs::symlink_metadata(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    links::check(folder, &path)?;
    let file = OpenFile::open(&path)?;
    let bytes = file.read_all(limit)?;
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(ModelError::LfsPointer { file: file.name });
    }
    Ok(Some((file.name, bytes)))
}

/// The error of a file that is not there.
pub(crate) fn missing(folder: &Path, file: &str) -> ModelError {
    let path = folder.display().to_string();
    ModelError::Layout { path, reason: format!("{file} is missing") }
}
