//! Typed access to a JSON object. Null counts as absent. A value of the wrong type or out of range
//! is an error that names the field. known.rs lists the accepted fields.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::error::{ModelError, shown};

/// A JSON object of a file, with the path to it for messages.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    /// The objects around the map, outermost first; empty for none.
    path: [&'a str; 2],
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of_file(file: &'a str, value: &'a Value) -> Result<Self, ModelError> {
        match value {
            Value::Object(map) => Ok(Self { file, path: [""; 2], map }),
            other => {
                let reason = format!("not a JSON object but {}", kind(other));
                Err(ModelError::malformed(file, reason))
            }
        }
    }

    /// The object under `key`, at most two deep.
    pub(crate) fn object(&self, key: &'a str) -> Result<Option<Self>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let [outer, _] = self.path;
                let path = if outer.is_empty() { [key, ""] } else { [outer, key] };
                Ok(Some(Self { file: self.file, path, map }))
            }
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// The fields with those of `defaults`, names and JSON, that are not written.
    pub(crate) fn over(&self, defaults: &[(&str, &str)]) -> Map<String, Value> {
        let mut map = self.map.clone();
        for (key, json) in defaults {
            let value = || serde_json::from_str(json).unwrap_or_default();
            map.entry(*key).or_insert_with(value);
        }
        map
    }

    /// Other fields in the same place.
    pub(crate) fn with_map<'b>(&self, map: &'b Map<String, Value>) -> Fields<'b>
    where
        'a: 'b,
    {
        Fields { file: self.file, path: self.path, map }
    }

    /// Whether these are the fields of the file itself, not of an object in it.
    pub(crate) fn is_whole_file(&self) -> bool {
        self.path == [""; 2]
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    /// Names and values, except nulls.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        let entries = self.map.iter().filter(|(_, value)| !value.is_null());
        entries.map(|(key, value)| (key.as_str(), value))
    }

    /// The value, unless absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key was written at all, null included.
    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A number; integers are numbers too, strings are not.
    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Number(number)) => match number.as_f64() {
                Some(number) if number.is_finite() => Ok(Some(number)),
                _ => Err(self.wrong(key, value, "a finite number")),
            },
            Some(other) => Err(self.wrong(key, other, "a number")),
        }
    }

    /// A number that is a finite f32 above zero.
    pub(crate) fn positive_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.f64(key)? {
            None => Ok(None),
            Some(number) => match to_f32(number) {
                Some(value) if value > 0.0 => Ok(Some(value)),
                _ => Err(self.error(key, format!("{number} is not a positive number"))),
            },
        }
    }

    /// The same, but it must be there.
    pub(crate) fn required_positive(&self, key: &str) -> Result<f32, ModelError> {
        self.positive_f32(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of numbers above zero.
    pub(crate) fn positive_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let values = match self.get(key) {
            None => return Ok(None),
            Some(Value::Array(values)) => values,
            Some(other) => return Err(self.wrong(key, other, "a list of numbers")),
        };
        let numbers: Option<Vec<f32>> = values
            .iter()
            .map(|value| value.as_f64().and_then(to_f32).filter(|number| *number > 0.0))
            .collect();
        match numbers {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(self.error(key, "an element is not a positive number")),
        }
    }

    /// An integer from 0 to `limit`.
    pub(crate) fn u32(&self, key: &str, limit: u32) -> Result<Option<u32>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(number) if number <= limit => Ok(Some(number)),
                _ => Err(self.wrong(key, value, &format!("an integer from 0 to {limit}"))),
            },
        }
    }

    /// An integer from 1 to `limit`.
    pub(crate) fn positive(&self, key: &str, limit: u32) -> Result<Option<u32>, ModelError> {
        match self.u32(key, limit)? {
            Some(0) => Err(self.error(key, format!("0 is not an integer from 1 to {limit}"))),
            other => Ok(other),
        }
    }

    /// `positive`, but it must be there.
    pub(crate) fn required(&self, key: &str, limit: u32) -> Result<u32, ModelError> {
        self.positive(key, limit)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn missing(&self, key: &str) -> ModelError {
        ModelError::missing_field(self.file, &self.path(key))
    }

    pub(crate) fn error(&self, key: &str, reason: impl Into<String>) -> ModelError {
        ModelError::field(self.file, &self.path(key), reason)
    }

    pub(crate) fn unsupported(
        &self,
        key: &str,
        value: impl AsRef<str>,
        supported: impl Into<Cow<'static, str>>,
    ) -> ModelError {
        ModelError::unsupported(self.file, &self.path(key), value, supported)
    }

    pub(crate) fn wrong(&self, key: &str, found: &Value, wanted: &str) -> ModelError {
        self.error(key, format!("{} is not {wanted}", kind(found)))
    }

    fn path(&self, key: &str) -> String {
        let around = self.path.iter().filter(|object| !object.is_empty());
        around.copied().chain([key]).collect::<Vec<_>>().join(".")
    }
}

/// A value for messages: short ones as written.
fn kind(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("\"{}\"", shown(text)),
        other => other.to_string(),
    }
}

/// The nearest f32, if finite.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
pub(crate) fn to_f32(number: f64) -> Option<f32> {
    Some(number as f32).filter(|value| value.is_finite())
}
