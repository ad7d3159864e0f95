//! The structure of tokenizer.model: SentencePiece's ModelProto, a protocol buffer. At model load
//! only. The input is hostile: every length is checked, and unneeded fields are skipped.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::TextError;

/// The file, in errors.
pub(super) const FILE: &str = "tokenizer.model";

/// A SentencePiece model.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) pieces: Vec<Piece>,
    pub(super) trainer: Trainer,
    pub(super) normalizer: NormalizerSpec,
    /// Whether decoded text is rewritten.
    pub(super) has_denormalizer: bool,
}

/// One entry of the vocabulary; its place is its id.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: u64,
}

/// The trainer's settings; ids below 0 are absent.
#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) model_type: u64,
    pub(super) byte_fallback: bool,
    pub(super) space_after_words: bool,
    pub(super) unk_id: i32,
    pub(super) bos_id: i32,
    pub(super) eos_id: i32,
    pub(super) pad_id: i32,
}

/// How text is normalised.
#[derive(Debug)]
pub(super) struct NormalizerSpec {
    pub(super) charsmap: Vec<u8>,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) escape_whitespaces: bool,
}

impl Default for Trainer {
    fn default() -> Self {
        Self {
            model_type: 1,
            byte_fallback: false,
            space_after_words: false,
            unk_id: 0,
            bos_id: 1,
            eos_id: 2,
            pad_id: -1,
        }
    }
}

impl Default for NormalizerSpec {
    fn default() -> Self {
        Self {
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

impl Model {
    /// # Errors
    /// `TextError::Load` if the bytes are not such a model.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        if is_tiktoken(bytes) {
            let message =
                "a tiktoken vocabulary, not a SentencePiece model; a tokenizer.json is needed";
            return Err(TextError::load(FILE, message));
        }
        let mut model = Self::default();
        each_field(bytes, |number, value| {
            match (number, value) {
                (1, Value::Bytes(bytes)) => model.pieces.push(Piece::parse(bytes)?),
                (2, Value::Bytes(bytes)) => model.trainer.merge(bytes)?,
                (3, Value::Bytes(bytes)) => model.normalizer.merge(bytes)?,
                (5, Value::Bytes(bytes)) => each_field(bytes, |number, value| {
                    model.has_denormalizer |=
                        number == 2 && matches!(value, Value::Bytes(map) if !map.is_empty());
                    Some(())
                })?,
                _ => {}
            }
            Some(())
        })
        .ok_or_else(|| {
            TextError::load(FILE, "not a SentencePiece model: broken protocol buffer")
        })?;
        Ok(model)
    }
}

/// Whether the first line is a token in base64 and its rank: Llama 3 and Kimi publish such vocabularies under
/// this name.
fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut parts = line.split(|byte| *byte == b' ');
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(token), Some(rank), None) => {
            is_number(rank)
                && token.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(byte))
        }
        _ => false,
    }
}

impl Piece {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: 1 };
        each_field(bytes, |number, value| {
            match (number, value) {
                (1, Value::Bytes(bytes)) => piece.text = String::from_utf8(bytes.to_vec()).ok()?,
                (2, Value::Fixed(bits)) => piece.score = f32::from_bits(bits),
                (3, Value::Number(kind)) => piece.kind = kind,
                _ => {}
            }
            Some(())
        })?;
        Some(piece)
    }
}

impl Trainer {
    fn merge(&mut self, bytes: &[u8]) -> Option<()> {
        each_field(bytes, |number, value| {
            let Value::Number(value) = value else { return Some(()) };
            // A negative number has its 32 bits in the lower half.
            let id = i32::from_le_bytes(*value.to_le_bytes().first_chunk::<4>()?);
            match number {
                3 => self.model_type = value,
                24 => self.space_after_words = value != 0,
                35 => self.byte_fallback = value != 0,
                40 => self.unk_id = id,
                41 => self.bos_id = id,
                42 => self.eos_id = id,
                43 => self.pad_id = id,
                _ => {}
            }
            Some(())
        })
    }
}

impl NormalizerSpec {
    fn merge(&mut self, bytes: &[u8]) -> Option<()> {
        each_field(bytes, |number, value| {
            match (number, value) {
                (2, Value::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Value::Number(value)) => self.add_dummy_prefix = value != 0,
                (4, Value::Number(value)) => self.remove_extra_whitespaces = value != 0,
                (5, Value::Number(value)) => self.escape_whitespaces = value != 0,
                _ => {}
            }
            Some(())
        })
    }
}

/// A field's value by wire type.
enum Value<'v> {
    Number(u64),
    Fixed(u32),
    Bytes(&'v [u8]),
    /// Eight bytes; no field that is read has this type.
    Other,
}

/// Calls `each` with number and value of every field; `None` if the bytes are not a message or
/// `each` returns `None`.
fn each_field<'v>(
    mut bytes: &'v [u8],
    mut each: impl FnMut(u64, Value<'v>) -> Option<()>,
) -> Option<()> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)?),
            1 => {
                bytes = bytes.get(8..)?;
                Value::Other
            }
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(len)?;
                bytes = rest;
                Value::Bytes(value)
            }
            5 => {
                let (value, rest) = bytes.split_first_chunk::<4>()?;
                bytes = rest;
                Value::Fixed(u32::from_le_bytes(*value))
            }
            _ => return None,
        };
        // Field 0 is invalid.
        each(Some(key >> 3).filter(|number| *number != 0)?, value)?;
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
