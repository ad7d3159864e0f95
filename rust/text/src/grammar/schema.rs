//! JSON schemas before they are compiled: bounds, and layout of the JSON that comes out.

use serde_json::{Map, Number, Value, json};

use super::bounds::{
    MAX_BOUND, MAX_COUNTED_PROPERTIES, MAX_DIVISOR, MAX_PROPERTIES, MAX_REGEX_BYTES, MAX_REPEAT,
    MAX_SCHEMA_DEPTH, MAX_SCHEMA_VALUES,
};

/// A Lark rule body that matches JSON of the schema. White space between tokens is at most one space
/// or one line break with an indent: a model that cannot make up its mind runs out of white space
/// instead of filling the context with it.
///
/// # Errors
/// One line that says what is out of bounds.
pub(crate) fn json_rule(schema: &Value) -> Result<String, String> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err("the schema false allows nothing".into()),
        Value::Object(_) => schema.clone(),
        other => return Err(format!("a schema is an object, not {}", kind_of(other))),
    };
    let mut num_values = 0;
    check(&schema, 0, &mut num_values)?;
    if let Some(schema) = schema.as_object_mut() {
        let layout = json!({
            "whitespace_pattern": WHITE_SPACE,
            // Models trained on other writers' JSON use \u for any letter.
            "json_allow_general_unicode_escapes": true,
        });
        schema.insert(LAYOUT_KEY.into(), layout);
    }
    Ok(format!("%json {schema}"))
}

/// Checks a schema that no grammar is made from: it may say more than grammars can enforce, but it
/// must be one.
///
/// # Errors
/// One line that says what is out of bounds or no schema.
pub(crate) fn well_formed(schema: &Value) -> Result<(), String> {
    if !matches!(schema, Value::Object(_) | Value::Bool(true)) {
        return Err(format!("a schema of parameters is an object, not {}", kind_of(schema)));
    }
    check(schema, 0, &mut 0)?;
    check_form(schema)
}

/// Looks at everything that a schema can stand in. Depth has been checked.
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
        Some(Value::String(pattern)) => check_pattern(pattern)?,
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

/// Other dialects have look-around and back references; what is wrong in all of them is refused.
fn check_pattern(pattern: &str) -> Result<(), String> {
    use regex_syntax::ast::ErrorKind;
    match regex_syntax::ast::parse::Parser::new().parse(pattern) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::UnsupportedLookAround | ErrorKind::UnsupportedBackreference => Ok(()),
            kind => Err(format!("invalid regex: {kind}")),
        },
    }
}

fn check(value: &Value, depth: usize, num_values: &mut usize) -> Result<(), String> {
    *num_values += 1;
    if depth > MAX_SCHEMA_DEPTH {
        return Err(format!("the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"));
    }
    if *num_values > MAX_SCHEMA_VALUES {
        return Err(format!("the schema has more than {MAX_SCHEMA_VALUES} values"));
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check(item, depth + 1, num_values)),
        Value::Object(fields) => {
            if fields.len() > MAX_PROPERTIES {
                let count = fields.len();
                return Err(format!("an object has {count} keys, at most {MAX_PROPERTIES}"));
            }
            check_count_rules(fields)?;
            for (key, field) in fields {
                check_keyword(key, field)?;
                check(field, depth + 1, num_values)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// `minProperties` and the like make a rule for each pair of properties.
fn check_count_rules(fields: &Map<String, Value>) -> Result<(), String> {
    let counted = fields.contains_key("minProperties") || fields.contains_key("maxProperties");
    let properties = fields.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    if counted && properties > MAX_COUNTED_PROPERTIES {
        return Err(format!(
            "minProperties or maxProperties with {properties} properties, at most \
             {MAX_COUNTED_PROPERTIES}"
        ));
    }
    Ok(())
}

fn check_keyword(key: &str, value: &Value) -> Result<(), String> {
    // A layout of the client's own could bring back endless white space.
    if key == LAYOUT_KEY {
        return Err(format!("the keyword {LAYOUT_KEY} is not supported"));
    }
    if let Value::String(pattern) = value
        && key == "pattern"
        && pattern.len() > MAX_REGEX_BYTES
    {
        return Err(format!("a pattern of {} bytes, at most {MAX_REGEX_BYTES}", pattern.len()));
    }
    let Value::Number(number) = value else { return Ok(()) };
    let size = number.as_f64().unwrap_or(f64::INFINITY);
    if REPEATS.contains(&key) && size > MAX_REPEAT as f64 {
        return Err(format!("{key} is {number}, at most {MAX_REPEAT}"));
    }
    if BOUNDS.contains(&key) && size.abs() > MAX_BOUND {
        return Err(format!("{key} is {number}, at most 2^53 either way"));
    }
    if key == "multipleOf" && digits(number) > MAX_DIVISOR {
        return Err(format!(
            "multipleOf is {number}, at most {MAX_DIVISOR}, decimal point left out"
        ));
    }
    Ok(())
}

/// The digits of a number as an integer, without its decimal point and outer zeros.
fn digits(number: &Number) -> u64 {
    let text = number.to_string();
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = if mantissa.contains('.') { digits.trim_end_matches('0') } else { &digits };
    digits.trim_start_matches('0').parse().unwrap_or(if digits.is_empty() { 0 } else { u64::MAX })
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// JSON's types.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
/// llguidance's keyword for the layout of what comes out.
const LAYOUT_KEY: &str = "x-guidance";
/// Keywords that bound numbers.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Keywords whose number unrolls a rule.
const REPEATS: [&str; 8] = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
];
/// Indents up to 40 spaces are ten levels of four.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,40}";
