//! [7] Arguments that models write without JSON's quotes: what the function's schema says they are.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::json_text::quoted;
use super::python;

/// The JSON types that a value may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const STRING: Self = Self(1);
    pub(crate) const ANY: Self = Self(63);
    const NONE: Self = Self(0);

    /// The types of the argument `key` of a function with these parameters.
    pub(crate) fn of_argument(parameters: Option<&Value>, key: &str) -> Self {
        let Some(root) = parameters else { return Self::ANY };
        match property(root, root, key, MAX_REFERENCES) {
            Some(schema) => Self::of(schema, root, MAX_REFERENCES),
            None => match root.get("additionalProperties") {
                Some(schema @ Value::Object(_)) => Self::of(schema, root, MAX_REFERENCES),
                _ => Self::ANY,
            },
        }
    }

    /// The types that a schema allows. `root` is what its references lead into.
    pub(crate) fn of(schema: &Value, root: &Value, references_left: u8) -> Self {
        let all = |list: &[Value]| list.iter().map(Self::of_value).fold(Self::NONE, Self::or);
        let mut types = Self::ANY;
        if let Some(named) = schema.get("type") {
            types = match named {
                Value::Array(names) => names.iter().map(Self::named).fold(Self::NONE, Self::or),
                name => Self::named(name),
            };
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            types = types.and(all(values));
        }
        if let Some(value) = schema.get("const") {
            types = types.and(Self::of_value(value));
        }
        let Some(left) = references_left.checked_sub(1) else { return types };
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(options)) = schema.get(key) {
                let options = options.iter().map(|option| Self::of(option, root, left));
                types = types.and(options.fold(Self::NONE, Self::or));
            }
        }
        if let Some(Value::Array(parts)) = schema.get("allOf") {
            types = parts.iter().map(|part| Self::of(part, root, left)).fold(types, Self::and);
        }
        if let Some(target) = target(schema, root) {
            types = types.and(Self::of(target, root, left));
        }
        types
    }

    fn named(name: &Value) -> Self {
        match name.as_str() {
            Some("string") => Self::STRING,
            Some("number" | "integer") => Self(2),
            Some("boolean") => Self(4),
            Some("null") => Self(8),
            Some("array") => Self(16),
            Some("object") => Self(32),
            _ => Self::NONE,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Number(_) => Self(2),
            Value::Bool(_) => Self(4),
            Value::Null => Self(8),
            Value::Array(_) => Self(16),
            Value::Object(_) => Self(32),
        }
    }

    /// The type of a JSON text, by its first character.
    fn of_json(text: &str) -> Self {
        match text.as_bytes().first() {
            Some(b'"') => Self::STRING,
            Some(b't' | b'f') => Self(4),
            Some(b'n') => Self(8),
            Some(b'[') => Self(16),
            Some(b'{') => Self(32),
            _ => Self(2),
        }
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether a value can be a string.
    pub(crate) fn has_string(self) -> bool {
        self.0 & Self::STRING.0 != 0
    }

    /// The JSON text of a value that stands as it is: a string where it can be nothing else.
    pub(crate) fn json_of(self, text: &str) -> String {
        let bare = text.trim();
        let json = match serde_json::from_str::<IgnoredAny>(bare) {
            Ok(_) => Some(bare.to_owned()),
            // Templates print True, None and lists of quoted words in earlier calls.
            Err(_) => python::to_json(bare),
        };
        match json {
            Some(json) => {
                let found = Self::of_json(&json);
                let is_meant = self.and(found) != Self::NONE && found != Self::STRING;
                if is_meant || !self.has_string() { json } else { quoted(text) }
            }
            None => quoted(text),
        }
    }
}

/// The schema of a property, wherever the schema of an object has it.
pub(crate) fn property<'a>(
    schema: &'a Value,
    root: &'a Value,
    key: &str,
    references_left: u8,
) -> Option<&'a Value> {
    if let Some(found) = schema.get("properties").and_then(|properties| properties.get(key)) {
        return Some(found);
    }
    let left = references_left.checked_sub(1)?;
    let combined = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name));
    let parts = combined.filter_map(Value::as_array).flatten();
    let mut parts = parts.chain(target(schema, root));
    parts.find_map(|part| property(part, root, key, left))
}

/// Where a schema's reference leads.
pub(crate) fn target<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    schema.get("$ref")?.as_str()?.strip_prefix('#').and_then(|pointer| root.pointer(pointer))
}

/// References and combinations that are followed one inside the other.
pub(crate) const MAX_REFERENCES: u8 = 8;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_a_value_is_what_its_schema_says() {
        let root = json!({
            "properties": {
                "text": { "type": "string" },
                "unit": { "enum": ["C", "F"] },
                "count": { "type": "integer" },
                "maybe": { "type": ["string", "null"] },
                "either": { "anyOf": [{ "type": "string" }, { "type": "number" }] },
                "list": { "$ref": "#/$defs/list" },
                "free": {}
            },
            "$defs": { "list": { "type": "array" } }
        });
        for (key, text, json) in [
            ("text", "42", r#""42""#),
            ("text", " a\n\"b\" ", r#"" a\n\"b\" ""#),
            ("unit", "C", r#""C""#),
            ("count", "42", "42"),
            ("count", " -1 ", "-1"),
            ("count", "True", "true"),
            ("count", "many", r#""many""#),
            ("maybe", "null", "null"),
            ("maybe", "None", "null"),
            ("maybe", "42", r#""42""#),
            ("either", "4.5", "4.5"),
            ("either", "[1]", r#""[1]""#),
            ("list", "[1, \"a\"]", "[1, \"a\"]"),
            ("list", "['it''s', {'a': None}]", r#""['it''s', {'a': None}]""#),
            ("list", "['it\\'s', {'a': None}]", r#"["it's", {"a": null}]"#),
            ("free", "{\"a\": 1}", "{\"a\": 1}"),
            ("free", "\"quoted\"", r#""\"quoted\"""#),
            ("free", "word", r#""word""#),
            ("unknown", "7", "7"),
        ] {
            let types = Types::of_argument(Some(&root), key);
            assert_eq!(types.json_of(text), json, "{key}: {text}");
        }
        assert_eq!(Types::of_argument(Some(&root), "unit"), Types::STRING);
        assert_eq!(Types::of_argument(None, "text"), Types::ANY);
        let around = json!({ "allOf": [{ "$ref": "#/$defs/a" }],
                             "$defs": { "a": { "properties": { "n": { "type": "number" } } } } });
        assert_eq!(Types::of_argument(Some(&around), "n"), Types(2));
        let looped = json!({ "$ref": "#" });
        assert_eq!(Types::of_argument(Some(&looped), "n"), Types::ANY);
    }
}
