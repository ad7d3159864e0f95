//! Python's comparisons: equality, order, membership, keys of dicts.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::CompareOp;
use crate::budget::Budget;
use crate::error::{Res, fail};
use crate::value::{ListKind, Map, Value};

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

/// The order of two values; `None` if there is none (a NaN).
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
