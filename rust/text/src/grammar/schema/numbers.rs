//! Keywords about numbers.

use std::collections::BTreeSet;

use serde_json::{Number, Value};

use super::path::Path;
use super::rewriter::Node;
use crate::grammar::bounds::{MAX_BOUND, MAX_DECIMALS, MAX_DIVISOR};

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
    let small = decimal(number)
        .filter(|&(digits, places)| digits <= MAX_DIVISOR && places <= MAX_DECIMALS)
        .ok_or_else(|| {
            path.refuse(format_args!(
                "is {number}, at most {MAX_DIVISOR} with the decimal point left out, and at most \
                 {MAX_DECIMALS} decimals"
            ))
        })?;
    read_as(value.as_f64().unwrap_or_default(), small).map(Value::from).ok_or_else(|| {
        path.refuse(format_args!("{number} cannot be enforced; binary fractions miss its digits"))
    })
}

/// Whether the `multipleOf` of several schemas that may apply to one number stay within what the library
/// counts in: it computes their common multiple in 32 bits.
///
/// # Errors
/// One line.
pub(super) fn check_divisors(rewritten: &Value) -> Result<(), String> {
    let (mut found, mut may_meet) = (BTreeSet::new(), false);
    collect(rewritten, &mut found, &mut may_meet);
    let places = found.iter().map(|(_, places)| *places).max().unwrap_or(0);
    let mut common = Some(1_u64);
    for (digits, own) in found.iter().filter(|_| may_meet && found.len() > 1) {
        let scaled = 10_u64.checked_pow(places - own).and_then(|scale| digits.checked_mul(scale));
        common = common.zip(scaled).and_then(|(common, scaled)| {
            let product = common.checked_mul(scaled).filter(|&all| u32::try_from(all).is_ok())?;
            Some(product / gcd(common, scaled))
        });
    }
    match common {
        Some(_) => Ok(()),
        None => {
            Err("multipleOf: the values that may apply to one number have a common multiple of \
                     too many digits"
                .to_owned())
        }
    }
}

fn collect(schema: &Value, found: &mut BTreeSet<(u64, u32)>, may_meet: &mut bool) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| collect(item, found, may_meet)),
        Value::Object(fields) => {
            *may_meet |= ["allOf", "anyOf", "$ref"].iter().any(|key| fields.contains_key(*key));
            found.extend(fields.get("multipleOf").and_then(Value::as_number).and_then(decimal));
            fields.values().for_each(|field| collect(field, found, may_meet));
        }
        _ => {}
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A number as digits and decimal places: 0.25 is (25, 2); `None` if the digits are too many.
fn decimal(number: &Number) -> Option<(u64, u32)> {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut places = i32::try_from(fraction.len()).ok()? - exponent.parse::<i32>().ok()?;
    let mut digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    while places > 0 && digits.is_multiple_of(10) && digits > 0 {
        digits /= 10;
        places -= 1;
    }
    while places < 0 {
        digits = digits.checked_mul(10)?;
        places += 1;
    }
    Some((digits, places.unsigned_abs()))
}

/// The number, or a neighbour of it, that llguidance reads as these digits and decimals. It multiplies by ten
/// until no fraction is left; 0.07 then ends as many digits more, and the number just below it as 7.
fn read_as(number: f64, (digits, places): (u64, u32)) -> Option<f64> {
    let is_read = |candidate: &f64| {
        // As it reads the text that it gets: the JSON reader may round to a neighbour.
        let text = Value::from(*candidate).to_string();
        let Ok(mut value) = serde_json::from_str::<f64>(&text) else { return false };
        let mut found = 0;
        while value.fract() != 0.0 && found <= places {
            value *= 10.0;
            found += 1;
        }
        found == places && value == digits as f64
    };
    let up = std::iter::successors(Some(number), |value| Some(value.next_up()));
    let down = std::iter::successors(Some(number), |value| Some(value.next_down()));
    up.zip(down).take(8).flat_map(|(above, below)| [above, below]).find(is_read)
}
