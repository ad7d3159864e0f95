//! Checks and rewrites JSON schemas before they are compiled: bounds, keywords, and the layout of
//! the resulting JSON.

mod arrays;
mod cases;
mod conditions;
mod numbers;
mod objects;
mod one_of;
mod parts;
mod path;
mod patterns;
mod plain;
mod references;
mod rewriter;
mod strings;

use serde_json::{Value, json};

pub(crate) use self::parts::parts;
use self::path::kind_of;
use self::patterns::check_pattern;
use self::plain::{plain, plain_part};
use self::rewriter::{LAYOUT_KEY, TYPES};
use super::bounds::{MAX_SCHEMA_DEPTH, MAX_SCHEMA_VALUES};

/// A Lark rule body that matches JSON of the schema. White space between tokens is at most one space
/// or one line break with an indent: a model that cannot make up its mind runs out of white space
/// instead of filling the context with it.
///
/// # Errors
/// One line that says what is out of bounds or cannot be enforced, and where.
pub(crate) fn json_rule(schema: &Value) -> Result<String, String> {
    rule_of(enforceable(schema)?)
}

/// The same of the part at `pointer` of a schema that `json_rule` has accepted.
///
/// # Errors
/// As `json_rule`.
pub(crate) fn json_rule_of_part(root: &Value, pointer: &str) -> Result<String, String> {
    rule_of(plain_part(root, pointer)?)
}

/// A JSON pointer as errors show it: `properties.a.anyOf[1]`.
pub(crate) fn place(pointer: &str) -> String {
    let mut place = String::new();
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        if step.parse::<usize>().is_ok() {
            place.push_str(&format!("[{step}]"));
        } else {
            place.push_str(if place.is_empty() { "" } else { "." });
            place.push_str(&step);
        }
    }
    place.chars().take(MAX_PLACE_CHARS).collect()
}

fn rule_of(schema: Value) -> Result<String, String> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err("the schema allows nothing".into()),
        schema => schema,
    };
    let names_may_hide = has_named_and_other_properties(&schema);
    if let Some(schema) = schema.as_object_mut() {
        let mut layout = json!({
            "whitespace_pattern": WHITE_SPACE,
            // Models trained on other writers' JSON use \u for any letter.
            "json_allow_general_unicode_escapes": true,
        });
        if names_may_hide {
            layout["json_allowed_escapes"] = ESCAPES_WITHOUT_U.into();
        }
        schema.insert(LAYOUT_KEY.into(), layout);
    }
    Ok(format!("%json {schema}"))
}

/// Whether an object somewhere has properties with schemas of their own and may have others too.
///
/// The grammar compares names as they are written. Spelled `"\u0061"`, the property `a` would be one of
/// the others and escape its schema, so such a grammar has no escapes for letters.
///
/// A map of properties is also treated as a schema. The answer may then be yes too often, which
/// only costs escapes.
fn has_named_and_other_properties(schema: &Value) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(has_named_and_other_properties),
        Value::Object(fields) => {
            let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
            let has_names = ["properties", "patternProperties", "required"]
                .iter()
                .any(|key| fields.contains_key(*key));
            (has_names && !is_closed) || fields.values().any(has_named_and_other_properties)
        }
        _ => false,
    }
}

/// An equal schema of keywords that a grammar enforces, whose references are all `#/$defs/N`.
///
/// # Errors
/// One line that says what is out of bounds or cannot be enforced, and where.
pub(crate) fn enforceable(schema: &Value) -> Result<Value, String> {
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return Err(format!("a schema is an object, not {}", kind_of(schema)));
    }
    check_size(schema, 0, &mut 0)?;
    plain(schema)
}

/// Checks a schema that is not compiled. It may use keywords that grammars cannot enforce, but it
/// must be one.
///
/// # Errors
/// One line that says what is out of bounds or no schema.
pub(crate) fn well_formed(schema: &Value) -> Result<(), String> {
    if !matches!(schema, Value::Object(_) | Value::Bool(true)) {
        return Err(format!("a schema of parameters is an object, not {}", kind_of(schema)));
    }
    check_size(schema, 0, &mut 0)?;
    check_form(schema)
}

/// Checks every place that can contain a schema. The depth has been checked.
fn check_form(schema: &Value) -> Result<(), String> {
    let Value::Object(fields) = schema else { return Ok(()) };
    if let Some(given) = fields.get("type") {
        let is_type = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
        let listed = given.as_array().is_some_and(|names| names.iter().all(is_type));
        if !is_type(given) && !listed {
            return Err(format!("type is {given}, not a JSON type or a list of them"));
        }
    }
    match fields.get("pattern") {
        None => {}
        Some(Value::String(pattern)) => check_pattern(pattern, true)?,
        Some(other) => return Err(format!("pattern is {}, not a string", kind_of(other))),
    }
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        match fields.get(key) {
            None => {}
            Some(Value::Object(inner)) => inner.values().try_for_each(check_form)?,
            Some(other) => return Err(format!("{key} is {}, not an object", kind_of(other))),
        }
    }
    for key in ["anyOf", "allOf", "oneOf", "prefixItems"] {
        match fields.get(key) {
            None => {}
            Some(Value::Array(inner)) => inner.iter().try_for_each(check_form)?,
            Some(other) => return Err(format!("{key} is {}, not a list", kind_of(other))),
        }
    }
    ["items", "additionalProperties", "not"]
        .iter()
        .filter_map(|key| fields.get(*key))
        .try_for_each(check_form)
}

/// Bounds the size and depth, since the other functions recurse.
fn check_size(value: &Value, depth: usize, num_values: &mut usize) -> Result<(), String> {
    *num_values += 1;
    if depth > MAX_SCHEMA_DEPTH {
        return Err(format!("the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"));
    }
    if *num_values > MAX_SCHEMA_VALUES {
        return Err(format!("the schema has more than {MAX_SCHEMA_VALUES} values"));
    }
    match value {
        Value::Array(items) => {
            items.iter().try_for_each(|item| check_size(item, depth + 1, num_values))
        }
        Value::Object(fields) => {
            fields.values().try_for_each(|field| check_size(field, depth + 1, num_values))
        }
        _ => Ok(()),
    }
}

/// The escapes that are allowed if `\u` is not.
const ESCAPES_WITHOUT_U: &str = "nrbtf\\\"";

/// Names in a place come from the client, and can be long.
const MAX_PLACE_CHARS: usize = 300;

/// One space, or a line feed with an indent of up to 20 spaces (ten levels of two, five of four) or ten tabs.
const WHITE_SPACE: &str = r" |\n(?: {0,20}|\t{1,10})";
