//! Finds the checkpoint files of a folder: those that the index names, or the only candidate.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::header::read_header;
use crate::catalogue::Catalogue;
use crate::error::{ModelError, shown};
use crate::links;
use crate::source::OpenFile;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// An index of 100,000 tensors has about 10 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Most shards of a checkpoint.
const MAX_SHARDS: usize = 1024;

/// Opens the weight files of `folder` and lists their tensors.
pub(crate) fn open_folder(folder: &Path) -> Result<(Vec<OpenFile>, Catalogue), ModelError> {
    let place = folder.display().to_string();
    let index = folder.join(INDEX);
    if index.exists() {
        return open_sharded(folder, &index);
    }
    let mut names = names_with(folder, ".safetensors")?;
    // The folder may also hold the same weights in another form (consolidated.safetensors).
    if names.iter().any(|name| name == SINGLE) {
        names = vec![SINGLE.to_owned()];
    }
    let name = match (names.pop(), names.pop()) {
        (Some(name), None) => name,
        (Some(b), Some(a)) => {
            let count = names.len().saturating_add(2);
            let reason = format!(
                "{count} .safetensors files ({}, {}, ...) and no {INDEX} that says which belong \
                 together",
                shown(&a),
                shown(&b)
            );
            return Err(ModelError::Layout { path: place, reason });
        }
        (None, _) => {
            let reason = "no .safetensors file (other weight formats are not read)".to_owned();
            return Err(ModelError::Layout { path: place, reason });
        }
    };
    let file = open_in(folder, &name)?;
    let mut catalogue = Catalogue::new(file.name.clone(), vec![file.name.clone()]);
    for (tensor, entry) in read_header(&file, &file.name, file.len, 0)? {
        catalogue.add(tensor, entry)?;
    }
    Ok((vec![file], catalogue))
}

/// Whether the folder holds safetensors, or an index of them.
pub(crate) fn has_weights(folder: &Path) -> Result<bool, ModelError> {
    Ok(folder.join(INDEX).exists() || !names_with(folder, ".safetensors")?.is_empty())
}

/// Names of the folder's files that end so, sorted.
pub(crate) fn names_with(folder: &Path, end: &str) -> Result<Vec<String>, ModelError> {
    let place = folder.display().to_string();
    let io = |cause| ModelError::io(&place, "list", cause);
    let mut names = Vec::new();
    for item in std::fs::read_dir(folder).map_err(io)? {
        let name = item.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(end) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn open_in(folder: &Path, name: &str) -> Result<OpenFile, ModelError> {
    let path = folder.join(name);
    links::check(folder, &path)?;
    OpenFile::open(&path)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn open_sharded(folder: &Path, index: &Path) -> Result<(Vec<OpenFile>, Catalogue), ModelError> {
    links::check(folder, index)?;
    let index_file = OpenFile::open(index)?;
    let index_name = index_file.name.clone();
    let stale = |reason| ModelError::Index { file: index_name.clone(), reason };
    let bytes = index_file.read_all(MAX_INDEX_BYTES)?;
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(ModelError::LfsPointer { file: index_name });
    }
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|cause| ModelError::malformed(&index_name, cause.to_string()))?;
    let shards: BTreeSet<&String> = index.weight_map.values().collect();
    if shards.is_empty() {
        return Err(ModelError::malformed(&index_name, "weight_map is empty"));
    }
    if shards.len() > MAX_SHARDS {
        let limit = u64::try_from(MAX_SHARDS).unwrap_or(u64::MAX);
        let count = u64::try_from(shards.len()).unwrap_or(u64::MAX);
        return Err(ModelError::limit(&index_name, "number of shards", count, limit));
    }
    for shard in &shards {
        // A shard is a plain name in this folder: an index must not reach outside it.
        if shard.contains(['/', '\\', '\0']) || !shard.ends_with(".safetensors") {
            let reason = format!("{} is not the name of a .safetensors file", shown(shard));
            return Err(ModelError::malformed(&index_name, reason));
        }
        if !folder.join(shard).exists() {
            return Err(stale(format!("it names {}, which is missing", shown(shard))));
        }
    }
    let mut files = Vec::with_capacity(shards.len());
    for shard in &shards {
        files.push(open_in(folder, shard)?);
    }
    let names = files.iter().map(|file| file.name.clone()).collect();
    let mut catalogue = Catalogue::new(folder.display().to_string(), names);
    let mut found: usize = 0;
    for (number, (file, shard)) in files.iter().zip(&shards).enumerate() {
        for (tensor, entry) in read_header(file, &file.name, file.len, number)? {
            match index.weight_map.get(&tensor) {
                Some(place) if place == *shard => found = found.saturating_add(1),
                Some(place) => {
                    return Err(stale(format!(
                        "tensor {} is in {}, the index says {}",
                        shown(&tensor),
                        shown(shard),
                        shown(place)
                    )));
                }
                None => {
                    return Err(stale(format!(
                        "tensor {} of {} is not in it",
                        shown(&tensor),
                        shown(shard)
                    )));
                }
            }
            catalogue.add(tensor, entry)?;
        }
    }
    if found != index.weight_map.len() {
        let lost = index.weight_map.iter().find(|(tensor, _)| !catalogue.contains(tensor));
        let (tensor, shard) = lost.map_or(("", ""), |(t, s)| (t.as_str(), s.as_str()));
        let count = index.weight_map.len();
        return Err(stale(format!(
            "it names {count} tensors, the files hold {found}; {} is not in {}",
            shown(tensor),
            shown(shard)
        )));
    }
    Ok((files, catalogue))
}
