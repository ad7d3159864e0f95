//! The position of a keyword in a schema, for errors: `properties.tags.items`.

use std::fmt;

use serde_json::Value;

/// A place, as the way to it from the root.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    key: Key<'a>,
}

#[derive(Clone, Copy)]
enum Key<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The schema itself, or the target of a reference, by its JSON pointer.
    pub(super) fn root(pointer: &'a str) -> Self {
        Self { parent: None, key: Key::Name(pointer) }
    }

    pub(super) fn key(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), key: Key::Name(name) }
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), key: Key::Index(index) }
    }

    /// Whether the last step is this key.
    pub(super) fn is_key(&self, name: &str) -> bool {
        matches!(self.key, Key::Name(key) if key == name)
    }

    /// The same as a JSON pointer.
    pub(super) fn pointer(&self) -> String {
        let mut pointer = self.parent.map(Path::pointer).unwrap_or_default();
        match self.key {
            Key::Name(root) if self.parent.is_none() => pointer.push_str(root),
            Key::Name(name) => {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
            }
            Key::Index(index) => pointer.push_str(&format!("/{index}")),
        }
        pointer
    }

    /// `PATH: what`, or `what` at the root.
    pub(super) fn refuse(&self, what: impl fmt::Display) -> String {
        let place = self.to_string();
        if place.is_empty() { what.to_string() } else { format!("{place}: {what}") }
    }

    /// What a value must be and is not.
    pub(super) fn must_be(&self, what: &str, given: &Value) -> String {
        self.refuse(format_args!("must be {what}, not {}", shown(given)))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.key {
            Key::Index(index) => write!(f, "[{index}]"),
            Key::Name(name) => {
                let is_first = self.parent.is_none_or(|parent| {
                    parent.parent.is_none() && matches!(parent.key, Key::Name(""))
                });
                let dot = if is_first { "" } else { "." };
                // Names come from the client, and can be long.
                let short: String = name.chars().take(MAX_NAME_CHARS).collect();
                if self.parent.is_none() {
                    return f.write_str(&short.trim_start_matches('/').replace('/', "."));
                }
                write!(f, "{dot}{short}")
            }
        }
    }
}

/// A value for an error: whole if it is short, else its kind.
pub(super) fn shown(value: &Value) -> String {
    let is_short = !value.is_array() && !value.is_object()
        || value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(serde_json::Map::is_empty);
    let text = if is_short { value.to_string() } else { kind_of(value).to_owned() };
    text.chars().take(MAX_NAME_CHARS).collect()
}

/// What kind of JSON value it is, with its article.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

const MAX_NAME_CHARS: usize = 64;
