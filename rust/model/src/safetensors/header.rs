//! The header of one safetensors file: an 8-byte length, JSON, then the data, which the header's
//! ranges must tile exactly. The input is hostile: limits come first, and all arithmetic is
//! checked.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use crate::WeightType;
use crate::catalogue::{Entry, Stored};
use crate::error::ModelError;
use crate::source::ReadAt;

/// Longest header read, as in the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most tensors of one file; the largest published mixtures of experts have 46,000 in all.
const MAX_TENSORS: usize = 65_536;
/// Longest tensor name.
const MAX_NAME_BYTES: usize = 1024;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

/// Reads and checks the header of the file `name`, `file_len` bytes long, number `file` of the
/// checkpoint.
pub(super) fn read_header(
    source: &dyn ReadAt,
    name: &str,
    file_len: u64,
    file: usize,
) -> Result<Vec<(String, Entry)>, ModelError> {
    let json = header_bytes(source, name, file_len)?;
    let text = std::str::from_utf8(&json)
        .map_err(|cause| ModelError::malformed(name, format!("header: {cause}")))?;
    let header: Header = serde_json::from_str(text)
        .map_err(|cause| ModelError::malformed(name, format!("header: {cause}")))?;
    let data_start = u64::try_from(json.len())
        .ok()
        .and_then(|len| len.checked_add(8))
        .ok_or_else(|| ModelError::malformed(name, "header length overflows"))?;
    let data_len = file_len.saturating_sub(data_start);
    let mut entries = Vec::with_capacity(header.tensors.len());
    for (tensor, info) in header.tensors {
        let entry = entry_of(&info, file, data_start)
            .map_err(|reason| ModelError::tensor(name, &tensor, reason))?;
        entries.push((tensor, entry));
    }
    check_tiling(name, &mut entries, data_start, data_len)?;
    Ok(entries)
}

fn header_bytes(source: &dyn ReadAt, name: &str, file_len: u64) -> Result<Vec<u8>, ModelError> {
    let read = |offset, buffer: &mut [u8]| {
        source.read_exact_at(offset, buffer).map_err(|cause| ModelError::io(name, "read", cause))
    };
    if file_len < 8 {
        let reason = format!("truncated: {file_len} bytes are too few for a safetensors header");
        return Err(ModelError::malformed(name, reason));
    }
    let mut first = [0; 8];
    read(0, &mut first)?;
    if &first == b"version " {
        return Err(ModelError::LfsPointer { file: name.to_owned() });
    }
    let len = u64::from_le_bytes(first);
    if len > MAX_HEADER_BYTES {
        return Err(ModelError::limit(name, "safetensors header length", len, MAX_HEADER_BYTES));
    }
    let needed = len.saturating_add(8);
    if needed > file_len {
        let reason = format!("truncated: header needs {needed} bytes, the file has {file_len}");
        return Err(ModelError::malformed(name, reason));
    }
    let mut json = vec![0; usize::try_from(len).unwrap_or(0)];
    read(8, &mut json)?;
    Ok(json)
}

/// Turns one header entry into a range of the file; the error is the reason alone.
fn entry_of(info: &Info, file: usize, data_start: u64) -> Result<Entry, String> {
    let [begin, end] = info.data_offsets;
    let byte_len =
        end.checked_sub(begin).ok_or_else(|| format!("data_offsets {begin}..{end} run back"))?;
    let offset =
        data_start.checked_add(begin).ok_or_else(|| format!("offset {begin} overflows"))?;
    if info.shape.len() > MAX_DIMENSIONS {
        return Err(format!("{} dimensions, the limit is {MAX_DIMENSIONS}", info.shape.len()));
    }
    if let Some(element_bytes) = element_bytes(&info.dtype) {
        let needed = info
            .shape
            .iter()
            .try_fold(element_bytes, |product, dimension| product.checked_mul(*dimension))
            .ok_or_else(|| format!("shape {:?} overflows", info.shape))?;
        if needed != byte_len {
            return Err(format!(
                "{} {:?} needs {needed} bytes, data_offsets hold {byte_len}",
                info.dtype, info.shape
            ));
        }
    }
    let stored = match info.dtype.as_str() {
        "F32" => Stored::Known(WeightType::F32),
        "F16" => Stored::Known(WeightType::F16),
        "BF16" => Stored::Known(WeightType::Bf16),
        "F8_E4M3" => Stored::Known(WeightType::F8E4M3),
        other => Stored::Other(other.to_owned()),
    };
    Ok(Entry { file, offset, byte_len, stored, shape: info.shape.clone() })
}

/// Sorted by place, the ranges must begin at the data, meet without gap or overlap, and end with the
/// file.
fn check_tiling(
    name: &str,
    entries: &mut [(String, Entry)],
    data_start: u64,
    data_len: u64,
) -> Result<(), ModelError> {
    entries.sort_by_key(|(_, entry)| (entry.offset, entry.byte_len));
    let data_end = data_start.saturating_add(data_len);
    let mut expected = data_start;
    for (tensor, entry) in entries.iter() {
        let end = entry.offset.saturating_add(entry.byte_len);
        if end > data_end {
            let reason = format!("truncated file: ends at byte {end}, the file at {data_end}");
            return Err(ModelError::tensor(name, tensor, reason));
        }
        if entry.offset != expected {
            let kind = if entry.offset < expected { "overlap" } else { "gap" };
            let reason = format!("{kind}: begins at byte {}, not {expected}", entry.offset);
            return Err(ModelError::tensor(name, tensor, reason));
        }
        expected = end;
    }
    if expected != data_end {
        let reason = format!("tensors end at byte {expected}, the file at {data_end}");
        return Err(ModelError::malformed(name, reason));
    }
    Ok(())
}

/// Bytes of one element; `None` for types whose size is not a whole byte or not known here.
fn element_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        "U16" | "I16" | "F16" | "BF16" => Some(2),
        "U32" | "I32" | "F32" => Some(4),
        "U64" | "I64" | "F64" | "C64" => Some(8),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The JSON object in file order. Doubled names are refused, which a map type would hide.
struct Header {
    tensors: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors = Vec::new();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name.len() > MAX_NAME_BYTES {
                let len = name.len();
                return Err(A::Error::custom(format!(
                    "a tensor name has {len} bytes, the limit is {MAX_NAME_BYTES}"
                )));
            }
            if !seen.insert(name.clone()) {
                let name = crate::error::shown(&name);
                return Err(A::Error::custom(format!("duplicate name {name}")));
            }
            if name == "__metadata__" {
                map.next_value::<HashMap<String, String>>()?;
                continue;
            }
            if tensors.len() >= MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            let info = map.next_value()?;
            tensors.push((name, info));
        }
        Ok(Header { tensors })
    }
}

#[cfg(test)]
mod tests;
