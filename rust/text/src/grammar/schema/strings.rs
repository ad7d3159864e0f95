//! Keywords about strings, and counts for all types.

use serde_json::{Value, json};

use super::path::{Path, shown};
use super::patterns::{self, check_pattern};
use super::rewriter::Node;
use crate::grammar::bounds::{MAX_REGEX_BYTES, MAX_REPEAT};

/// Takes a keyword; false if it is not one about strings.
pub(super) fn keyword(
    node: &mut Node<'_, '_>,
    key: &str,
    value: &Value,
    path: &Path<'_>,
) -> Result<bool, String> {
    match key {
        "minLength" | "maxLength" => {
            node.out.insert(key.into(), count(value, path)?.into());
        }
        "pattern" => {
            let text = value.as_str().ok_or_else(|| path.must_be("a string", value))?;
            let mut all = patterns::without_look_ahead(text).into_iter();
            for pattern in all.by_ref() {
                check(&pattern, path)?;
                if node.out.contains_key("pattern") {
                    node.also.push(json!({ "pattern": pattern }));
                } else {
                    node.out.insert("pattern".into(), pattern.into());
                }
            }
        }
        "format" => format(node, value, path)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A number of characters, items or properties. JSON has no integers: 2.0 is one.
pub(super) fn count(value: &Value, path: &Path<'_>) -> Result<u64, String> {
    let number = value.as_f64().filter(|number| *number >= 0.0 && number.fract() == 0.0);
    let number = number.ok_or_else(|| path.must_be("an integer from 0", value))?;
    if number > MAX_REPEAT as f64 {
        return Err(path.refuse(format_args!("is {value}, at most {MAX_REPEAT}")));
    }
    // Bounded above.
    Ok(number as u64)
}

/// Whether a pattern is one that a grammar can have.
pub(super) fn check(pattern: &str, path: &Path<'_>) -> Result<(), String> {
    if pattern.len() > MAX_REGEX_BYTES {
        let len = pattern.len();
        return Err(
            path.refuse(format_args!("a pattern of {len} bytes, at most {MAX_REGEX_BYTES}"))
        );
    }
    check_pattern(pattern, false).map_err(|error| path.refuse(error))
}

/// Formats of JSON Schema are enforced or refused. Any other name is a note for programs: JSON Schema gives it
/// no meaning.
fn format(node: &mut Node<'_, '_>, value: &Value, path: &Path<'_>) -> Result<(), String> {
    let name = value.as_str().ok_or_else(|| path.must_be("a string", value))?;
    if !node.may_be("string") {
        return Ok(());
    }
    if ENFORCED.contains(&name) {
        node.out.insert("format".into(), name.into());
    } else if let Some((_, pattern)) = AS_PATTERNS.iter().find(|(format, _)| *format == name) {
        node.also.push(json!({ "pattern": pattern }));
    } else if UNENFORCEABLE.contains(&name) {
        let known: Vec<&str> = ENFORCED.into_iter().chain(AS_PATTERNS.map(|(f, _)| f)).collect();
        return Err(path.refuse(format_args!(
            "{} cannot be enforced; of JSON Schema's formats these are: {}",
            shown(value),
            known.join(", ")
        )));
    }
    Ok(())
}

/// Those that llguidance has.
pub(super) const ENFORCED: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Those that a pattern says: RFC 6901 and its relative form.
const AS_PATTERNS: [(&str, &str); 2] = [
    ("json-pointer", "^(/([^/~]|~[01])*)*$"),
    ("relative-json-pointer", "^(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)$"),
];
/// Those that JSON Schema defines and no grammar of ours says.
pub(super) const UNENFORCEABLE: [&str; 7] =
    ["idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-reference", "uri-template"];
