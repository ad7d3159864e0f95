//! The header of a GGUF file: counts, metadata, tensor list, and the position of each tensor's
//! bytes. The input is hostile: limits come first, and all arithmetic is checked.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::cursor::Cursor;
use super::metadata::{GgufMetadata, MAX_KEYS};
use super::types::stored_type;
use crate::catalogue::{Catalogue, Entry, Stored};
use crate::error::{ModelError, shown};
use crate::source::ReadAt;

const MAX_TENSORS: u64 = 65_536;
const MAX_NAME_BYTES: u64 = 256;
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u32 = 32;

#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: GgufMetadata,
    pub(super) catalogue: Catalogue,
}

/// Reads and checks the header of the file `name`, `file_len` bytes long.
pub(super) fn read_header(
    source: &dyn ReadAt,
    name: &str,
    file_len: u64,
) -> Result<Header, ModelError> {
    let mut cursor = Cursor::new(source, name, file_len);
    check_magic(&mut cursor)?;
    let tensor_count = count(&mut cursor, "number of tensors", MAX_TENSORS)?;
    let key_count = count(&mut cursor, "number of metadata keys", MAX_KEYS)?;
    let metadata = GgufMetadata::read(&mut cursor, key_count)?;
    if metadata.u32("split.count")?.is_some_and(|count| count > 1) {
        return Err(ModelError::unsupported(name, "split.count", "a split file", "one file"));
    }
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(tensor_info(&mut cursor)?);
    }
    let data_start = round_up(cursor.position(), alignment).ok_or_else(|| overflow(name))?;
    let mut catalogue = Catalogue::new(name.to_owned(), vec![name.to_owned()]);
    let mut ranges = Vec::new();
    for (tensor, mut entry) in tensors {
        if entry.offset.checked_rem(alignment) != Some(0) {
            let reason = format!("offset {} is not a multiple of {alignment}", entry.offset);
            return Err(ModelError::tensor(name, &tensor, reason));
        }
        entry.offset = data_start.checked_add(entry.offset).ok_or_else(|| overflow(name))?;
        let end = entry.offset.checked_add(entry.byte_len).ok_or_else(|| overflow(name))?;
        if end > file_len {
            let reason = format!("truncated file: ends at byte {end}, the file at {file_len}");
            return Err(ModelError::tensor(name, &tensor, reason));
        }
        ranges.push((entry.offset, end, tensor.clone()));
        if catalogue.contains(&tensor) {
            return Err(ModelError::tensor(name, &tensor, "duplicate name"));
        }
        catalogue.add(tensor, entry)?;
    }
    check_tiling(name, ranges, data_start, alignment, file_len)?;
    Ok(Header { metadata, catalogue })
}

fn check_magic(cursor: &mut Cursor<'_>) -> Result<(), ModelError> {
    let name = cursor.name();
    let magic: [u8; 4] = cursor.array("the magic number")?;
    if &magic == b"vers" {
        return Err(ModelError::LfsPointer { file: name.to_owned() });
    }
    if &magic != b"GGUF" {
        return Err(ModelError::malformed(name, "not a GGUF file (no magic number)"));
    }
    match cursor.u32("the version")? {
        2 | 3 => Ok(()),
        version if matches!(version.swap_bytes(), 1..=3) => {
            Err(ModelError::unsupported(name, "byte order", "big-endian", "little-endian"))
        }
        version => {
            Err(ModelError::unsupported(name, "GGUF version", version.to_string(), "2 and 3"))
        }
    }
}

fn count(cursor: &mut Cursor<'_>, what: &str, limit: u64) -> Result<u64, ModelError> {
    let count = cursor.u64(what)?;
    if count > limit {
        return Err(ModelError::limit(cursor.name(), what, count, limit));
    }
    Ok(count)
}

fn alignment(metadata: &GgufMetadata) -> Result<u64, ModelError> {
    let alignment = metadata.u32("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || !(8..=65_536).contains(&alignment) {
        let reason = format!("{alignment} is not a power of two from 8 to 65536");
        return Err(ModelError::field(metadata.file(), "general.alignment", reason));
    }
    Ok(u64::from(alignment))
}

/// One tensor, its offset still relative to the data.
fn tensor_info(cursor: &mut Cursor<'_>) -> Result<(String, Entry), ModelError> {
    let file = cursor.name();
    let name = cursor.string(MAX_NAME_BYTES, "a tensor name")?;
    let what = shown(&name);
    let dimensions = cursor.u32(&what)?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        let reason = format!("{dimensions} dimensions, the limit is {MAX_DIMENSIONS}");
        return Err(ModelError::tensor(file, &name, reason));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.u64(&what)?);
    }
    // GGUF writes the innermost dimension first.
    shape.reverse();
    let number = cursor.u32(&what)?;
    let offset = cursor.u64(&what)?;
    let weight_type = match stored_type(number) {
        Some(Stored::Known(weight_type)) => weight_type,
        Some(Stored::Other(kind)) => {
            let field = format!("type of tensor {what}");
            return Err(ModelError::unsupported(file, &field, kind, SUPPORTED_TYPES));
        }
        None => {
            let reason = format!("unknown type number {number}");
            return Err(ModelError::tensor(file, &name, reason));
        }
    };
    let byte_len = byte_len(&shape, weight_type.block_elements(), weight_type.block_bytes())
        .ok_or_else(|| {
            let reason = format!("shape {shape:?} does not make whole {weight_type:?} blocks");
            ModelError::tensor(file, &name, reason)
        })?;
    Ok((name, Entry { file: 0, offset, byte_len, stored: Stored::Known(weight_type), shape }))
}

/// Bytes of whole blocks; `None` for empty dimensions, broken rows and overflow.
fn byte_len(shape: &[u64], block_elements: usize, block_bytes: usize) -> Option<u64> {
    let block_elements = u64::try_from(block_elements).ok()?;
    let block_bytes = u64::try_from(block_bytes).ok()?;
    let (cols, outer) = shape.split_last()?;
    if shape.contains(&0) || cols.checked_rem(block_elements)? != 0 {
        return None;
    }
    let row_bytes = cols.checked_div(block_elements)?.checked_mul(block_bytes)?;
    outer.iter().try_fold(row_bytes, |bytes, rows| bytes.checked_mul(*rows))
}

fn round_up(value: u64, alignment: u64) -> Option<u64> {
    let rest = value.checked_rem(alignment)?;
    if rest == 0 { Some(value) } else { value.checked_add(alignment.checked_sub(rest)?) }
}

/// Tensors lie one behind the other, each padded to the alignment, and nothing lies behind the last: a
/// file whose types, shapes or alignment are not the ones it was written with does not pass.
fn check_tiling(
    name: &str,
    mut ranges: Vec<(u64, u64, String)>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<(), ModelError> {
    ranges.sort();
    let mut expected = data_start;
    for (start, end, tensor) in ranges {
        if start != expected {
            let what = if start < expected { "overlap" } else { "gap" };
            let reason = format!(
                "{what}: begins at byte {start}; the data before it, padded to {alignment} bytes, ends \
                 at {expected}"
            );
            return Err(ModelError::tensor(name, &tensor, reason));
        }
        expected = round_up(end, alignment).ok_or_else(|| overflow(name))?;
    }
    if file_len > expected {
        let reason = format!(
            "the tensors end at byte {expected}, padded to {alignment} bytes, and the file at {file_len}"
        );
        return Err(ModelError::malformed(name, reason));
    }
    Ok(())
}

fn overflow(name: &str) -> ModelError {
    ModelError::malformed(name, "offsets overflow")
}

const SUPPORTED_TYPES: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";
