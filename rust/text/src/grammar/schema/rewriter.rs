//! The state while a schema is rewritten, shared by the files of its keywords.

use serde_json::{Map, Value};

use super::cases::Condition;
use super::path::{Path, shown};
use super::references::References;

/// Rewrites a schema with everything below it; `plain.rs` has its methods.
pub(super) struct Rewriter<'a> {
    pub(super) references: References<'a>,
    /// What applies to the same value as the schema that comes next; empty for a part of it.
    pub(super) around: Vec<&'a Map<String, Value>>,
    /// Whether the schema that comes next is one of an `allOf`.
    pub(super) is_of_all: bool,
    /// Conditions of the schemas of an `allOf`, which are written out together.
    pub(super) conditions: Vec<Condition>,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(references: References<'a>) -> Self {
        Self { references, around: Vec::new(), is_of_all: false, conditions: Vec::new() }
    }
}

/// One object of a schema while it is rewritten.
pub(super) struct Node<'a, 'p> {
    /// As given.
    pub(super) given: &'a Map<String, Value>,
    pub(super) path: &'p Path<'p>,
    /// Schemas that apply to the same value, and in which this one stands.
    pub(super) around: Vec<&'a Map<String, Value>>,
    /// Whether it is one of an `allOf`, which takes its conditions.
    pub(super) is_of_all: bool,
    /// The result so far.
    pub(super) out: Map<String, Value>,
    /// Schemas that must match too.
    pub(super) also: Vec<Value>,
    /// Nothing can match it.
    pub(super) is_never: bool,
}

impl<'a> Node<'a, '_> {
    /// The keyword, unless it is absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.given.get(key)
    }

    /// This schema and those around it.
    pub(super) fn and_around(&self) -> Vec<&'a Map<String, Value>> {
        self.around.iter().copied().chain([self.given]).collect()
    }

    /// Whether `type` allows values of the JSON type `name`.
    pub(super) fn may_be(&self, name: &str) -> bool {
        match self.given.get("type") {
            Some(Value::String(only)) => only == name,
            Some(Value::Array(names)) => names.iter().any(|each| each == name),
            _ => true,
        }
    }

    /// Whether another keyword of this object may look at the same value: then what is *unevaluated* depends on it.
    pub(super) fn has_applicator(&self) -> bool {
        IN_PLACE.iter().any(|key| self.given.contains_key(*key))
    }

    pub(super) fn refuse(&self, key: &str, what: &str) -> String {
        let given = self.get(key).map(shown).unwrap_or_default();
        self.path.key(key).refuse(format_args!("{given} cannot be enforced; {what}"))
    }
}

/// Whether every value matches, as far as can be seen at once.
pub(super) fn is_any(schema: &Value) -> bool {
    match schema {
        Value::Bool(all) => *all,
        Value::Object(fields) => fields.iter().all(|(key, value)| match key.as_str() {
            "not" => is_never(value),
            key => ANNOTATIONS.contains(&key),
        }),
        _ => false,
    }
}

/// Whether no value matches, as far as can be seen at once.
pub(super) fn is_never(schema: &Value) -> bool {
    match schema {
        Value::Bool(all) => !*all,
        Value::Object(fields) => fields.get("not").is_some_and(is_any),
        _ => false,
    }
}

/// Keywords that do not restrict values.
pub(super) const ANNOTATIONS: [&str; 21] = [
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$id",
    "$recursiveAnchor",
    "$schema",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
    "discriminator",
];
/// Keywords that apply further schemas to the same value.
const IN_PLACE: [&str; 9] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentSchemas",
];
/// What `type` may be.
pub(super) const TYPES: [&str; 7] =
    ["array", "boolean", "integer", "null", "number", "object", "string"];
/// llguidance's keyword for the layout of what comes out.
pub(super) const LAYOUT_KEY: &str = "x-guidance";
