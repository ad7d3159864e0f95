//! Python's operators.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::args::{Args, count};
use crate::ast::{BinaryOp, CompareOp};
use crate::budget::Budget;
use crate::error::{Fault, Res, fail};
use crate::formatting;
use crate::interp::Interp;
use crate::text::{Text, TextBuf};
use crate::value::{ListKind, Map, Value};

pub(crate) fn negated(value: &Value) -> Res<Value> {
    value.defined()?;
    match value {
        Value::Float(value) => Ok(Value::Float(-value)),
        other => match other.as_int().map(i128::checked_neg) {
            Some(negative) => negative.map(Value::Int).ok_or_else(too_large),
            None => fail!("bad operand type for unary -: '{}'", other.type_name()),
        },
    }
}

pub(crate) fn positive(value: &Value) -> Res<Value> {
    value.defined()?;
    match value {
        Value::Float(value) => Ok(Value::Float(*value)),
        other => match other.as_int() {
            Some(value) => Ok(Value::Int(value)),
            None => fail!("bad operand type for unary +: '{}'", other.type_name()),
        },
    }
}

pub(crate) fn too_large() -> Fault {
    Fault::failed("an integer has more than 127 bits, which is not supported")
}

pub(crate) fn binary(op: BinaryOp, left: &Value, right: &Value, interp: &mut Interp) -> Res<Value> {
    let budget = &interp.budget;
    left.defined()?;
    match (op, left, right) {
        (BinaryOp::Rem, Value::Str(text), values) => {
            let args = match values {
                Value::List(list) if matches!(list.kind, ListKind::Tuple | ListKind::Group) => {
                    budget.items(list.items.len())?;
                    list.items.clone()
                }
                other => vec![other.clone()],
            };
            return formatting::percent(text, Args::new(args, Vec::new()), interp);
        }
        (_, _, Value::Undefined(undefined)) => return Err(undefined.fault()),
        (BinaryOp::Add, Value::Str(left), Value::Str(right)) => return joined(left, right, budget),
        (BinaryOp::Add, Value::List(left), Value::List(right)) => {
            let kind = match (left.kind, right.kind) {
                (ListKind::List, ListKind::List) => Some(ListKind::List),
                (ListKind::Tuple | ListKind::Group, ListKind::Tuple | ListKind::Group) => {
                    Some(ListKind::Tuple)
                }
                _ => None,
            };
            if let Some(kind) = kind {
                budget.items(left.items.len() + right.items.len())?;
                let items = [left.items.as_slice(), &right.items].concat();
                return Value::sequence(kind, items, budget);
            }
        }
        (BinaryOp::Mul, Value::Str(_) | Value::List(_), times)
        | (BinaryOp::Mul, times, Value::Str(_) | Value::List(_)) => {
            let sequence =
                if matches!(left, Value::Str(_) | Value::List(_)) { left } else { right };
            let Some(times) = times.as_int() else {
                fail!("can't multiply sequence by non-int of type '{}'", times.type_name());
            };
            return repeated(sequence, count(times), budget);
        }
        _ => {
            if let Some(result) = numbers(op, left, right) {
                return result;
            }
        }
    }
    let (symbol, left, right) = (symbol(op), left.type_name(), right.type_name());
    if (op, left) == (BinaryOp::Add, "str") {
        fail!("can only concatenate str (not \"{right}\") to str");
    }
    fail!("unsupported operand type(s) for {symbol}: '{left}' and '{right}'")
}

fn joined(left: &Text, right: &Text, budget: &Budget) -> Res<Value> {
    budget.pay(left.cost().saturating_add(right.cost()).saturating_mul(2))?;
    let mut out = TextBuf::default();
    let escaped = |text: &Text, other: &Text| -> Res<Text> {
        if other.markup && !text.markup {
            crate::filters::escaped(text, budget)
        } else {
            Ok(text.clone())
        }
    };
    out.push_text(&escaped(left, right)?);
    out.push_text(&escaped(right, left)?);
    let mut text = out.finish();
    text.markup = left.markup || right.markup;
    Ok(Value::Str(text))
}

fn repeated(sequence: &Value, times: usize, budget: &Budget) -> Res<Value> {
    match sequence {
        Value::Str(text) => {
            budget.pay(text.cost().saturating_mul(times).saturating_mul(2))?;
            budget.pay(times)?;
            let mut out = TextBuf::default();
            (0..times).for_each(|_| out.push_text(text));
            let mut out = out.finish();
            out.markup = text.markup;
            Ok(Value::Str(out))
        }
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
            let total = list.items.len().saturating_mul(times);
            budget.items(total)?;
            budget.pay(times)?;
            let mut items = Vec::with_capacity(total);
            (0..times).for_each(|_| items.extend_from_slice(&list.items));
            Value::sequence(list.kind, items, budget)
        }
        other => fail!("unsupported operand type(s) for *: '{}' and 'int'", other.type_name()),
    }
}

fn symbol(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Rem => "%",
        BinaryOp::Pow => "** or pow()",
    }
}

/// An operator on two numbers; none if one of them is none.
fn numbers(op: BinaryOp, left: &Value, right: &Value) -> Option<Res<Value>> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return Some(integers(op, left, right));
    }
    Some(floats(op, left.as_float()?, right.as_float()?))
}

#[allow(clippy::cast_precision_loss, reason = "Python rounds as well")]
fn integers(op: BinaryOp, left: i128, right: i128) -> Res<Value> {
    let value = match op {
        BinaryOp::Add => left.checked_add(right),
        BinaryOp::Sub => left.checked_sub(right),
        BinaryOp::Mul => left.checked_mul(right),
        BinaryOp::Div if right == 0 => fail!("division by zero"),
        BinaryOp::FloorDiv | BinaryOp::Rem if right == 0 => {
            fail!("integer division or modulo by zero")
        }
        BinaryOp::Div => return Ok(Value::Float(left as f64 / right as f64)),
        BinaryOp::FloorDiv => floor_div(left, right),
        BinaryOp::Rem => floor_div(left, right)
            .and_then(|quotient| quotient.checked_mul(right))
            .and_then(|whole| left.checked_sub(whole)),
        BinaryOp::Pow if right < 0 => return floats(op, left as f64, right as f64),
        BinaryOp::Pow => match u32::try_from(right) {
            Ok(exponent) => left.checked_pow(exponent),
            Err(_) if left == 0 || left == 1 => Some(left),
            Err(_) if left == -1 => Some(if right % 2 == 0 { 1 } else { -1 }),
            Err(_) => None,
        },
    };
    value.map(Value::Int).ok_or_else(too_large)
}

fn floor_div(left: i128, right: i128) -> Option<i128> {
    let quotient = left.checked_div(right)?;
    let exact = left.checked_rem(right)? == 0;
    if exact || (left < 0) == (right < 0) { Some(quotient) } else { quotient.checked_sub(1) }
}

fn floats(op: BinaryOp, left: f64, right: f64) -> Res<Value> {
    match op {
        BinaryOp::Div if right == 0.0 => fail!("float division by zero"),
        BinaryOp::FloorDiv if right == 0.0 => fail!("float floor division by zero"),
        BinaryOp::Rem if right == 0.0 => fail!("float modulo"),
        _ => {}
    }
    Ok(Value::Float(match op {
        BinaryOp::Add => left + right,
        BinaryOp::Sub => left - right,
        BinaryOp::Mul => left * right,
        BinaryOp::Div => left / right,
        BinaryOp::FloorDiv => float_divmod(left, right).0,
        BinaryOp::Rem => float_divmod(left, right).1,
        BinaryOp::Pow => {
            if left == 0.0 && right < 0.0 {
                fail!("0.0 cannot be raised to a negative power");
            }
            if left < 0.0 && left.is_finite() && right.is_finite() && right.fract() != 0.0 {
                fail!("complex numbers are not supported");
            }
            let power = left.powf(right);
            if power.is_infinite() && left.is_finite() && right.is_finite() {
                fail!("(34, 'Numerical result out of range')");
            }
            power
        }
    }))
}

/// Quotient and remainder of floats, the remainder with the divisor's sign.
fn float_divmod(left: f64, right: f64) -> (f64, f64) {
    let mut remainder = left % right;
    let mut quotient = (left - remainder) / right;
    if remainder == 0.0 {
        remainder = 0.0f64.copysign(right);
    } else if (right < 0.0) != (remainder < 0.0) {
        remainder += right;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0f64.copysign(left / right), remainder);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, remainder)
}

/// One comparison.
pub(crate) fn compare(op: CompareOp, left: &Value, right: &Value, budget: &Budget) -> Res<bool> {
    let ordered = |wanted: fn(Ordering) -> bool, symbol: &str| -> Res<bool> {
        Ok(order(left, right, symbol, budget)?.is_some_and(wanted))
    };
    match op {
        CompareOp::Eq => equal(left, right, budget),
        CompareOp::Ne => Ok(!equal(left, right, budget)?),
        CompareOp::Lt => ordered(Ordering::is_lt, "<"),
        CompareOp::Le => ordered(Ordering::is_le, "<="),
        CompareOp::Gt => ordered(Ordering::is_gt, ">"),
        CompareOp::Ge => ordered(Ordering::is_ge, ">="),
        CompareOp::In => contains(right, left, budget),
        CompareOp::NotIn => Ok(!contains(right, left, budget)?),
    }
}

/// Python's `==`.
pub(crate) fn equal(left: &Value, right: &Value, budget: &Budget) -> Res<bool> {
    budget.step()?;
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(left), Value::Str(right)) => {
            budget.pay(left.len().min(right.len()))?;
            left.as_str() == right.as_str()
        }
        (Value::List(left), Value::List(right)) if is_view(left.kind) || is_view(right.kind) => {
            if Rc::ptr_eq(left, right) {
                return Ok(true);
            }
            let sets = left.kind == right.kind && left.kind != ListKind::Values;
            if !sets || left.items.len() != right.items.len() {
                return Ok(false);
            }
            for item in &left.items {
                if !is_among(&right.items, item, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::List(left), Value::List(right)) => {
            let is_list = |kind| kind == ListKind::List;
            is_list(left.kind) == is_list(right.kind)
                && equal_lists(&left.items, &right.items, budget)?
        }
        (Value::Map(left), Value::Map(right)) => equal_maps(left, right, budget)?,
        (Value::Range(left), Value::Range(right)) => {
            let length = left.len();
            let same = |at: usize| left.get(at).as_int() == right.get(at).as_int();
            length == right.len()
                && (length == 0 || same(0) && (length == 1 || left.step == right.step))
        }
        (Value::Namespace(left), Value::Namespace(right)) => left == right,
        (Value::Macro(left), Value::Macro(right)) => left == right,
        (Value::Function(left), Value::Function(right)) => left == right,
        (Value::Iter(left), Value::Iter(right)) => Rc::ptr_eq(left, right),
        (Value::Loop(left), Value::Loop(right)) => Rc::ptr_eq(left, right),
        (Value::Cycler(left), Value::Cycler(right)) => Rc::ptr_eq(left, right),
        (Value::Joiner(left), Value::Joiner(right)) => Rc::ptr_eq(left, right),
        (Value::Method(left), Value::Method(right)) => {
            left.1 == right.1 && equal(&left.0, &right.0, budget)?
        }
        _ => number_order(left, right) == Some(Some(Ordering::Equal)),
    })
}

fn is_view(kind: ListKind) -> bool {
    matches!(kind, ListKind::Keys | ListKind::Values | ListKind::Items)
}

pub(crate) fn equal_lists(left: &[Value], right: &[Value], budget: &Budget) -> Res<bool> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.iter().zip(right) {
        if !equal(left, right, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps(left: &Map, right: &Map, budget: &Budget) -> Res<bool> {
    if left.entries.len() != right.entries.len() {
        return Ok(false);
    }
    for (key, value) in &left.entries {
        let other = lookup(right, key, budget)?;
        if !other.map_or(Ok(false), |other| equal(value, other, budget))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The value of a key, whatever its type.
pub(crate) fn lookup<'m>(map: &'m Map, key: &Value, budget: &Budget) -> Res<Option<&'m Value>> {
    if let Value::Str(key) = key {
        return map.get_str(key.as_str(), budget);
    }
    for (known, value) in &map.entries {
        if equal(known, key, budget)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The order of two numbers, if both are; inside, none for a NaN.
#[allow(clippy::cast_precision_loss, reason = "integers of requests are far below 2^53 or exact")]
fn number_order(left: &Value, right: &Value) -> Option<Option<Ordering>> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return Some(Some(left.cmp(&right)));
    }
    Some(left.as_float()?.partial_cmp(&right.as_float()?))
}

/// The order of two values; none if neither is first (a NaN).
pub(crate) fn order(
    left: &Value,
    right: &Value,
    symbol: &str,
    budget: &Budget,
) -> Res<Option<Ordering>> {
    budget.step()?;
    left.defined()?;
    right.defined()?;
    match (left, right) {
        (Value::Str(left), Value::Str(right)) => {
            budget.pay(left.len().min(right.len()))?;
            return Ok(Some(left.as_str().cmp(right.as_str())));
        }
        (Value::List(left), Value::List(right))
            if !is_view(left.kind)
                && !is_view(right.kind)
                && (left.kind == ListKind::List) == (right.kind == ListKind::List) =>
        {
            for (left, right) in left.items.iter().zip(&right.items) {
                if !equal(left, right, budget)? {
                    return order(left, right, symbol, budget);
                }
            }
            return Ok(Some(left.items.len().cmp(&right.items.len())));
        }
        _ => {}
    }
    match number_order(left, right) {
        Some(order) => Ok(order),
        None => fail!(
            "'{symbol}' not supported between instances of '{}' and '{}'",
            left.type_name(),
            right.type_name()
        ),
    }
}

/// Python's `item in container`.
pub(crate) fn contains(container: &Value, item: &Value, budget: &Budget) -> Res<bool> {
    match container {
        Value::Undefined(_) => Ok(false),
        Value::Str(text) => {
            item.defined()?;
            let Value::Str(part) = item else {
                fail!("'in <string>' requires string as left operand, not {}", item.type_name());
            };
            budget.pay(text.len() + part.len())?;
            Ok(text.as_str().contains(part.as_str()))
        }
        Value::Map(map) => {
            if !is_hashable(item, budget)? {
                fail!("unhashable type: '{}'", item.type_name());
            }
            Ok(lookup(map, item, budget)?.is_some())
        }
        Value::List(list) => {
            if list.kind == ListKind::Keys && !is_hashable(item, budget)? {
                fail!("unhashable type: '{}'", item.type_name());
            }
            is_among(&list.items, item, budget)
        }
        Value::Range(range) => match item {
            Value::Float(value) => Ok(value.fract() == 0.0
                && crate::floats::truncated(*value).is_some_and(|value| range.contains(value))),
            other => Ok(other.as_int().is_some_and(|value| range.contains(value))),
        },
        Value::Iter(iter) => {
            while let Some(next) = iter.next()? {
                if equal(&next, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => fail!("argument of type '{}' is not iterable", other.type_name()),
    }
}

pub(crate) fn is_among(items: &[Value], item: &Value, budget: &Budget) -> Res<bool> {
    for known in items {
        if equal(known, item, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a value can be a key.
pub(crate) fn is_hashable(value: &Value, budget: &Budget) -> Res<bool> {
    budget.step()?;
    match value {
        Value::Map(_) => Ok(false),
        Value::List(list) => {
            if !matches!(list.kind, ListKind::Tuple | ListKind::Group) {
                return Ok(false);
            }
            for item in &list.items {
                if !is_hashable(item, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(true),
    }
}

/// A dict of pairs: of equal keys the first one stays, with the last one's value.
pub(crate) fn dict_of(pairs: Vec<(Value, Value)>, budget: &Budget) -> Res<Value> {
    budget.items(2 * pairs.len())?;
    let mut entries: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
    let mut texts: HashMap<Arc<str>, usize> = HashMap::new();
    let mut others: Vec<usize> = Vec::new();
    for (key, value) in pairs {
        if !is_hashable(&key, budget)? {
            fail!("unhashable type: '{}'", key.type_name());
        }
        let known = match &key {
            Value::Str(text) => {
                budget.pay(text.len())?;
                texts.get(text.as_str()).copied()
            }
            other => {
                let mut found = None;
                for at in &others {
                    let same = entries.get(*at).map(|(known, _)| equal(known, other, budget));
                    if same.transpose()? == Some(true) {
                        found = Some(*at);
                    }
                }
                found
            }
        };
        match known.and_then(|at| entries.get_mut(at)) {
            Some((_, slot)) => *slot = value,
            None => {
                match &key {
                    Value::Str(text) => {
                        texts.insert(text.shared(), entries.len());
                    }
                    _ => others.push(entries.len()),
                }
                entries.push((key, value));
            }
        }
    }
    Value::map(entries, budget)
}
