//! Typed access to GGUF key-value pairs. A value of another type than requested is an error.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::cursor::{Cursor, MAX_STRING_BYTES};
use crate::error::{ModelError, shown};

/// Most keys; files have about 40.
pub(super) const MAX_KEYS: u64 = 65_536;
const MAX_KEY_BYTES: u64 = 1024;
/// Most elements of one array.
const MAX_ARRAY: u64 = 2 << 20;
/// Most elements of all arrays together: three arrays of a 262,144-word vocabulary and its merges fit
/// three times over.
const MAX_ELEMENTS: u64 = 4 << 20;

/// The metadata of a GGUF file. Getters give `None` for an absent key.
#[derive(Clone, Debug)]
pub struct GgufMetadata {
    file: String,
    values: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    String(String),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Integers(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::Bools(_) => "an array of bools",
            Self::Strings(_) => "an array of strings",
        }
    }
}

macro_rules! getter {
    ($(#[$doc:meta])* $name:ident, $out:ty, $wanted:literal, $pattern:pat => $value:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// `ModelError::Field` if the key holds another type.
        pub fn $name(&self, key: &str) -> Result<Option<$out>, ModelError> {
            match self.values.get(key) {
                None => Ok(None),
                Some($pattern) => Ok(Some($value)),
                Some(other) => Err(self.wrong(key, other, $wanted)),
            }
        }
    };
}

impl GgufMetadata {
    getter!(/// A string.
        string, &str, "a string", Value::String(text) => text.as_str());
    getter!(/// A bool.
        bool, bool, "a bool", Value::Bool(value) => *value);
    getter!(/// A float.
        f64, f64, "a float", Value::Float(value) => *value);
    getter!(/// An array of strings.
        strings, &[String], "an array of strings", Value::Strings(values) => values.as_slice());
    getter!(/// An array of integers of any width.
        integers, &[i64], "an array of integers", Value::Integers(values) => values.as_slice());
    getter!(/// An array of floats.
        f32s, &[f32], "an array of floats", Value::Floats(values) => values.as_slice());

    /// An integer of any width whose value fits.
    ///
    /// # Errors
    /// `ModelError::Field` if the key holds another type or a value outside 0 to 2^32 - 1.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Integer(value)) => match u32::try_from(*value) {
                Ok(value) => Ok(Some(value)),
                Err(_) => {
                    let reason = format!("{value} is outside 0 to {}", u32::MAX);
                    Err(ModelError::field(&self.file, key, reason))
                }
            },
            Some(other) => Err(self.wrong(key, other, "an integer")),
        }
    }

    /// An array of integers, each of which fits.
    ///
    /// # Errors
    /// `ModelError::Field` if the key holds another type or a value outside i32.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, ModelError> {
        let Some(values) = self.integers(key)? else { return Ok(None) };
        let values: Result<Vec<i32>, _> = values.iter().map(|v| i32::try_from(*v)).collect();
        match values {
            Ok(values) => Ok(Some(values)),
            Err(_) => Err(ModelError::field(&self.file, key, "a value does not fit 32 bits")),
        }
    }

    /// An integer, a float, or 1 for true.
    pub(super) fn number_or_bool(&self, key: &str) -> Option<f64> {
        match self.values.get(key)? {
            Value::Float(value) => Some(*value),
            Value::Bool(value) => Some(f64::from(u8::from(*value))),
            // Sizes and flags: what a double cannot hold is not compared with anything.
            Value::Integer(value) => i32::try_from(*value).ok().map(f64::from),
            _ => None,
        }
    }

    /// The value for a message; for arrays only their type.
    pub(super) fn shown_value(&self, key: &str) -> String {
        match self.values.get(key) {
            Some(Value::Integer(value)) => value.to_string(),
            Some(Value::Float(value)) => value.to_string(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::String(text)) => text.clone(),
            Some(array) => array.kind().to_owned(),
            None => "nothing".to_owned(),
        }
    }

    /// Whether the key is there.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The file's name, for messages.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Keys in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    fn wrong(&self, key: &str, found: &Value, wanted: &str) -> ModelError {
        ModelError::field(&self.file, key, format!("is {}, not {wanted}", found.kind()))
    }

    /// Reads `count` pairs.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, ModelError> {
        let mut values = BTreeMap::new();
        let mut elements_left = MAX_ELEMENTS;
        for _ in 0..count {
            let key = cursor.string(MAX_KEY_BYTES, "a metadata key")?;
            let what = shown(&key);
            let kind = cursor.u32(&what)?;
            let value = read_value(cursor, kind, &what, &mut elements_left)?;
            if values.insert(key, value).is_some() {
                return Err(ModelError::field(cursor.name(), &what, "duplicate key"));
            }
        }
        Ok(Self { file: cursor.name().to_owned(), values })
    }
}

fn read_value(
    cursor: &mut Cursor<'_>,
    kind: u32,
    what: &str,
    elements_left: &mut u64,
) -> Result<Value, ModelError> {
    Ok(match kind {
        TYPE_BOOL => Value::Bool(read_bool(cursor, what)?),
        TYPE_STRING => Value::String(cursor.string(MAX_STRING_BYTES, what)?),
        TYPE_F32 => Value::Float(f64::from(f32::from_le_bytes(cursor.array(what)?))),
        TYPE_F64 => Value::Float(f64::from_le_bytes(cursor.array(what)?)),
        TYPE_ARRAY => read_array(cursor, what, elements_left)?,
        _ => Value::Integer(read_integer(cursor, kind, what)?),
    })
}

fn read_array(
    cursor: &mut Cursor<'_>,
    what: &str,
    elements_left: &mut u64,
) -> Result<Value, ModelError> {
    let kind = cursor.u32(what)?;
    let count = cursor.u64(what)?;
    let limit = MAX_ARRAY.min(*elements_left);
    if count > limit {
        let what = format!("number of elements of {what}");
        return Err(ModelError::limit(cursor.name(), what, count, limit));
    }
    *elements_left = elements_left.saturating_sub(count);
    // Vectors grow as elements are read, so that a count larger than the file costs nothing.
    Ok(match kind {
        TYPE_STRING => Value::Strings(
            (0..count).map(|_| cursor.string(MAX_STRING_BYTES, what)).collect::<Result<_, _>>()?,
        ),
        TYPE_BOOL => {
            Value::Bools((0..count).map(|_| read_bool(cursor, what)).collect::<Result<_, _>>()?)
        }
        TYPE_F32 => Value::Floats(
            (0..count)
                .map(|_| Ok(f32::from_le_bytes(cursor.array(what)?)))
                .collect::<Result<_, ModelError>>()?,
        ),
        TYPE_ARRAY => {
            return Err(ModelError::field(cursor.name(), what, "arrays of arrays are refused"));
        }
        _ => Value::Integers(
            (0..count)
                .map(|_| {
                    let value = read_integer(cursor, kind, what)?;
                    i64::try_from(value).map_err(|_| {
                        ModelError::field(cursor.name(), what, format!("{value} is too large"))
                    })
                })
                .collect::<Result<_, _>>()?,
        ),
    })
}

fn read_bool(cursor: &mut Cursor<'_>, what: &str) -> Result<bool, ModelError> {
    match cursor.array(what)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => {
            Err(ModelError::field(cursor.name(), what, format!("{other} is neither 0 nor 1")))
        }
    }
}

fn read_integer(cursor: &mut Cursor<'_>, kind: u32, what: &str) -> Result<i128, ModelError> {
    Ok(match kind {
        0 => i128::from(u8::from_le_bytes(cursor.array(what)?)),
        1 => i128::from(i8::from_le_bytes(cursor.array(what)?)),
        2 => i128::from(u16::from_le_bytes(cursor.array(what)?)),
        3 => i128::from(i16::from_le_bytes(cursor.array(what)?)),
        4 => i128::from(u32::from_le_bytes(cursor.array(what)?)),
        5 => i128::from(i32::from_le_bytes(cursor.array(what)?)),
        10 => i128::from(u64::from_le_bytes(cursor.array(what)?)),
        11 => i128::from(i64::from_le_bytes(cursor.array(what)?)),
        other => {
            let reason = format!("unknown value type {other}");
            return Err(ModelError::field(cursor.name(), what, reason));
        }
    })
}

const TYPE_F32: u32 = 6;
const TYPE_BOOL: u32 = 7;
const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;
const TYPE_F64: u32 = 12;
