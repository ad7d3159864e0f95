//! `oneOf`. A grammar can only express "any of", which is equivalent if the options exclude each
//! other.

use serde_json::{Map, Value};

use super::path::Path;
use super::references::References;
use super::rewriter::{TYPES, is_never};

/// Makes sure that no value can match two options.
///
/// # Errors
/// The path and the first two options that may both match.
pub(super) fn check(
    value: &Value,
    references: &References<'_>,
    path: &Path<'_>,
) -> Result<(), String> {
    let options = value.as_array().map(Vec::as_slice).unwrap_or_default();
    for (i, first) in options.iter().enumerate() {
        for (j, second) in options.iter().enumerate().skip(i + 1) {
            if !exclude(first, second, references, 0) {
                return Err(path.refuse(format_args!(
                    "options {i} and {j} may both match; oneOf is supported only where its options \
                     exclude each other, as by type or by a required property with other values; use anyOf"
                )));
            }
        }
    }
    Ok(())
}

/// Whether no value matches both, as far as can be seen.
fn exclude(a: &Value, b: &Value, references: &References<'_>, depth: u32) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    if is_never(a) || is_never(b) {
        return true;
    }
    let (parts, others) = (conjuncts(a, references), conjuncts(b, references));
    parts
        .iter()
        .any(|part| others.iter().any(|other| parts_exclude(part, other, references, depth)))
}

/// The schemas that must all hold: this one, those of `allOf`, those referred to.
fn conjuncts<'a>(schema: &'a Value, references: &References<'a>) -> Vec<&'a Value> {
    let mut all = vec![schema];
    let mut at = 0;
    while at < all.len() && all.len() < MAX_CONJUNCTS {
        let schema = all[at];
        all.extend(references.target(schema));
        all.extend(schema.get("allOf").and_then(Value::as_array).into_iter().flatten());
        at += 1;
    }
    all
}

fn parts_exclude(a: &Value, b: &Value, references: &References<'_>, depth: u32) -> bool {
    if is_never(a) || is_never(b) {
        return true;
    }
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return false };
    for (one, other) in [(a, b), (b, a)] {
        for key in ["anyOf", "oneOf"] {
            let options = one.get(key).and_then(Value::as_array);
            if options.is_some_and(|options| {
                let other = Value::Object(other.clone());
                options.iter().all(|option| exclude(option, &other, references, depth + 1))
            }) {
                return true;
            }
        }
        if values(one).is_some_and(|values| values.iter().all(|value| is_shut_out(value, other))) {
            return true;
        }
    }
    let (types, others) = (types(a), types(b));
    if !types.iter().any(|one| others.iter().any(|other| overlap(one, other))) {
        return true;
    }
    // Values of other types do not look at properties.
    if types != ["object"] || others != ["object"] {
        return false;
    }
    let required = |fields: &Map<String, Value>| -> Vec<String> {
        let names = fields.get("required").and_then(Value::as_array).into_iter().flatten();
        names.filter_map(|name| name.as_str().map(String::from)).collect()
    };
    required(a).into_iter().chain(required(b)).any(|name| {
        let (Some(one), Some(other)) = (property(a, &name), property(b, &name)) else {
            return false;
        };
        exclude(&one, &other, references, depth + 1)
    })
}

/// The schema of a property; `None` if patterns may also apply.
fn property(fields: &Map<String, Value>, name: &str) -> Option<Value> {
    if let Some(schema) = fields.get("properties").and_then(|all| all.get(name)) {
        return Some(schema.clone());
    }
    if fields.contains_key("patternProperties") {
        return None;
    }
    Some(fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true)))
}

/// The values of `const` and `enum`, if there are only those.
fn values(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (fields.get("const"), fields.get("enum")) {
        (Some(only), _) => Some(vec![only]),
        (None, Some(Value::Array(several))) => Some(several.iter().collect()),
        _ => None,
    }
}

/// Whether a schema surely does not match a value.
fn is_shut_out(value: &Value, fields: &Map<String, Value>) -> bool {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    // 1 and 1.0 are one number.
    let equal = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ if a.is_array() || a.is_object() => true,
        _ => a == b,
    };
    !types(fields).iter().any(|each| overlap(each, name))
        || values(fields).is_some_and(|all| !all.iter().any(|other| equal(value, other)))
}

fn types(fields: &Map<String, Value>) -> Vec<&str> {
    match fields.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => TYPES.to_vec(),
    }
}

fn overlap(a: &str, b: &str) -> bool {
    let is_number = |name: &str| name == "number" || name == "integer";
    a == b || (is_number(a) && is_number(b))
}

/// Properties within properties; each level looks at all pairs.
const MAX_DEPTH: u32 = 6;
const MAX_CONJUNCTS: usize = 64;
