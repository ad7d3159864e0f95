//! The parts of a schema, one by one, to find the one for which no grammar can be made.

use serde_json::Value;

/// A schema within a schema.
pub(crate) struct Part {
    /// Its JSON pointer.
    pub(crate) pointer: String,
    /// Whether the schema around it can be matched only if this one can.
    pub(crate) is_needed: bool,
}

/// The schemas directly within the one at `pointer`.
pub(crate) fn parts(root: &Value, pointer: &str) -> Vec<Part> {
    let Some(Value::Object(fields)) = root.pointer(pointer) else { return Vec::new() };
    let required = |name: &str| {
        let names = fields.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|each| each == name))
    };
    let min_items = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    let mut found = Vec::new();
    let mut add = |steps: &[&str], is_needed| {
        let escaped = |step: &&str| format!("/{}", step.replace('~', "~0").replace('/', "~1"));
        let pointer = pointer.to_owned() + &steps.iter().map(escaped).collect::<String>();
        found.push(Part { pointer, is_needed });
    };
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("properties", Value::Object(named)) => {
                named.keys().for_each(|name| add(&[key, name], required(name)));
            }
            ("patternProperties" | "dependentSchemas", Value::Object(named)) => {
                named.keys().for_each(|name| add(&[key, name], false));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(several)) => {
                for i in 0..several.len() {
                    let is_needed = match key.as_str() {
                        "allOf" => true,
                        "anyOf" | "oneOf" => several.len() == 1,
                        _ => (i as u64) < min_items,
                    };
                    add(&[key, &i.to_string()], is_needed);
                }
            }
            ("items", _) => add(&[key], min_items > 0),
            ("additionalProperties" | "then" | "else", _) => add(&[key], false),
            _ => {}
        }
    }
    found
}
