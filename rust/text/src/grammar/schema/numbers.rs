//! Keywords about numbers.

use serde_json::{Number, Value};

use super::path::Path;
use super::rewriter::Node;
use crate::grammar::bounds::{MAX_BOUND, MAX_DIVISOR};

/// Takes a keyword; false if it is not one about numbers.
pub(super) fn keyword(
    node: &mut Node<'_, '_>,
    key: &str,
    value: &Value,
    path: &Path<'_>,
) -> Result<bool, String> {
    let rewritten = match key {
        "minimum" | "maximum" => Some(bound(value, path)?),
        "exclusiveMinimum" | "exclusiveMaximum" => exclusive(node, key, value, path)?,
        "multipleOf" => Some(divisor(value, path)?),
        _ => return Ok(false),
    };
    if let Some(rewritten) = rewritten {
        node.out.insert(key.into(), rewritten);
    }
    Ok(true)
}

fn bound(value: &Value, path: &Path<'_>) -> Result<Value, String> {
    let number = value.as_f64().ok_or_else(|| path.must_be("a number", value))?;
    if number.abs() > MAX_BOUND {
        return Err(path.refuse(format_args!("is {value}, at most 2^53 either way")));
    }
    Ok(value.clone())
}

/// Draft 4 has a flag here that belongs to `minimum` or `maximum`.
fn exclusive(
    node: &Node<'_, '_>,
    key: &str,
    value: &Value,
    path: &Path<'_>,
) -> Result<Option<Value>, String> {
    let partner = if key == "exclusiveMinimum" { "minimum" } else { "maximum" };
    match value {
        Value::Bool(false) => Ok(None),
        Value::Bool(true) => node.get(partner).map(|limit| bound(limit, path)).transpose(),
        other => bound(other, path).map(Some),
    }
}

fn divisor(value: &Value, path: &Path<'_>) -> Result<Value, String> {
    let number = value.as_number().filter(|_| value.as_f64().is_some_and(|size| size > 0.0));
    let number = number.ok_or_else(|| path.must_be("a number above 0", value))?;
    if digits(number) > MAX_DIVISOR {
        let reason = format_args!("is {number}, at most {MAX_DIVISOR}, decimal point left out");
        return Err(path.refuse(reason));
    }
    Ok(value.clone())
}

/// The digits of a number as an integer, without its decimal point and outer zeros.
fn digits(number: &Number) -> u64 {
    let text = number.to_string();
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = if mantissa.contains('.') { digits.trim_end_matches('0') } else { &digits };
    digits.trim_start_matches('0').parse().unwrap_or(if digits.is_empty() { 0 } else { u64::MAX })
}
