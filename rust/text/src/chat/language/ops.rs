//! [2] Python's operators.

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::args::Args;
use super::fault::Fault;
use super::format;
use super::numbers;
use super::print;
use super::program::{BinaryOp, CompareOp};
use super::value::{List, ListKind, Map, Value};
use super::work::Work;

pub(crate) fn negate(value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Float(value) => Ok(Value::Float(-value)),
        other => match other.as_int().and_then(i128::checked_neg) {
            Some(value) => Ok(Value::Int(value)),
            None => Err(Fault::failed(format!("a {} has no negative", other.type_name()))),
        },
    }
}

pub(crate) fn binary(
    op: BinaryOp,
    left: &Value,
    right: &Value,
    work: &Work,
) -> Result<Value, Fault> {
    match (op, left, right) {
        (BinaryOp::Concat, _, _) => {
            let mut text = String::new();
            print::str_into(left, &mut text, work)?;
            print::str_into(right, &mut text, work)?;
            Value::text(text, work)
        }
        (_, Value::Undefined(name), _) | (_, _, Value::Undefined(name)) => {
            Err(Value::undefined_fault(name.as_ref()))
        }
        (BinaryOp::Add, Value::Str(left), Value::Str(right)) => joined(left, right, work),
        (BinaryOp::Add, Value::List(left), Value::List(right)) => added(left, right, work),
        (BinaryOp::Mul, Value::Str(text), count) | (BinaryOp::Mul, count, Value::Str(text)) => {
            let count = repeats(count)?;
            work.spend(text.len().saturating_mul(count))?;
            Ok(Value::Str(text.repeat(count).into()))
        }
        (BinaryOp::Mul, Value::List(list), count) | (BinaryOp::Mul, count, Value::List(list)) => {
            let count = repeats(count)?;
            let total = list.items.len().saturating_mul(count);
            work.items(total)?;
            let mut items = Vec::with_capacity(total);
            (0..count).for_each(|_| items.extend_from_slice(&list.items));
            Value::list(list.kind, items, work)
        }
        (BinaryOp::Rem, Value::Str(text), values) => {
            let args = match values {
                Value::List(list) if list.kind == ListKind::Tuple => list.items.clone(),
                other => vec![other.clone()],
            };
            format::percent(text, Args::positional(args), work)
        }
        _ => numbers::binary(op, left, right).unwrap_or_else(|| {
            let (left, right) = (left.type_name(), right.type_name());
            Err(Fault::failed(format!("{left} {} {right} is not possible", symbol(op))))
        }),
    }
}

fn joined(left: &Arc<str>, right: &Arc<str>, work: &Work) -> Result<Value, Fault> {
    if right.is_empty() {
        return Ok(Value::Str(Arc::clone(left)));
    }
    let mut text = String::with_capacity(left.len() + right.len());
    work.spend(left.len() + right.len())?;
    text.push_str(left);
    text.push_str(right);
    Ok(Value::Str(text.into()))
}

fn added(left: &Rc<List>, right: &Rc<List>, work: &Work) -> Result<Value, Fault> {
    let kinds = (left.kind, right.kind);
    let ((ListKind::List, ListKind::List) | (ListKind::Tuple, ListKind::Tuple)) = kinds else {
        return Err(Fault::failed("only lists, or tuples, can be added"));
    };
    work.items(left.items.len().saturating_add(right.items.len()))?;
    Value::list(left.kind, [left.items.as_slice(), &right.items].concat(), work)
}

/// How often something is repeated; below zero is never.
fn repeats(count: &Value) -> Result<usize, Fault> {
    let wrong = || Fault::failed(format!("repeated {} times", count.type_name()));
    let count = count.as_int().ok_or_else(wrong)?;
    Ok(usize::try_from(count.max(0)).unwrap_or(usize::MAX))
}

fn symbol(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Rem => "%",
        BinaryOp::Pow => "**",
        BinaryOp::Concat => "~",
    }
}

pub(crate) fn compare(
    op: CompareOp,
    left: &Value,
    right: &Value,
    work: &Work,
) -> Result<bool, Fault> {
    match op {
        CompareOp::Eq => equal(left, right, work),
        CompareOp::Ne => Ok(!equal(left, right, work)?),
        CompareOp::In => contains(right, left, work),
        CompareOp::NotIn => Ok(!contains(right, left, work)?),
        CompareOp::Lt => Ok(order(left, right, work)?.is_some_and(Ordering::is_lt)),
        CompareOp::Le => Ok(order(left, right, work)?.is_some_and(Ordering::is_le)),
        CompareOp::Gt => Ok(order(left, right, work)?.is_some_and(Ordering::is_gt)),
        CompareOp::Ge => Ok(order(left, right, work)?.is_some_and(Ordering::is_ge)),
    }
}

/// Whether two values are equal; pays for the walk through the smaller one.
pub(crate) fn equal(left: &Value, right: &Value, work: &Work) -> Result<bool, Fault> {
    work.spend(left.shape().weight.min(right.shape().weight))?;
    same(left, right, work)
}

pub(crate) fn all_equal(left: &[Value], right: &[Value], work: &Work) -> Result<bool, Fault> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.iter().zip(right) {
        if !equal(left, right, work)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Equality; the walk is paid for by the caller.
fn same(left: &Value, right: &Value, work: &Work) -> Result<bool, Fault> {
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(left), Value::Str(right)) => left == right,
        (Value::List(left), Value::List(right)) => {
            if left.is_index_only() || right.is_index_only() {
                return Ok(Rc::ptr_eq(left, right));
            }
            let alike = left.is_tuple() == right.is_tuple();
            if !alike || left.items.len() != right.items.len() {
                return Ok(false);
            }
            for (left, right) in left.items.iter().zip(&right.items) {
                if !same(left, right, work)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(left), Value::Map(right)) => same_maps(left, right, work)?,
        (Value::Function(left), Value::Function(right)) => left == right,
        (Value::Special(left), Value::Special(right)) => Rc::ptr_eq(left, right),
        _ => numbers::order(left, right).is_some_and(|order| order == Some(Ordering::Equal)),
    })
}

/// Keys in the same order are the usual case, and the only one that costs no more than a walk.
fn same_maps(left: &Map, right: &Map, work: &Work) -> Result<bool, Fault> {
    if left.entries.len() != right.entries.len() {
        return Ok(false);
    }
    for ((key, value), beside) in left.entries.iter().zip(&right.entries) {
        let other = if same(key, &beside.0, work)? {
            &beside.1
        } else {
            match find(&right.entries, key, work)?.and_then(|at| right.entries.get(at)) {
                Some((_, other)) => other,
                None => return Ok(false),
            }
        };
        // Paid for again: the caller paid for pairs that lie side by side.
        if !equal(value, other, work)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Python's order; `None` where a NaN is involved.
///
/// # Errors
/// For values of kinds that have no order.
pub(crate) fn order(left: &Value, right: &Value, work: &Work) -> Result<Option<Ordering>, Fault> {
    match (left, right) {
        (Value::Undefined(name), _) | (_, Value::Undefined(name)) => {
            Err(Value::undefined_fault(name.as_ref()))
        }
        (Value::Str(left), Value::Str(right)) => {
            work.spend(left.len().min(right.len()))?;
            Ok(Some(left.cmp(right)))
        }
        (Value::List(left), Value::List(right))
            if !left.is_index_only() && left.is_tuple() == right.is_tuple() =>
        {
            for (left, right) in left.items.iter().zip(&right.items) {
                if !equal(left, right, work)? {
                    return order(left, right, work);
                }
            }
            Ok(Some(left.items.len().cmp(&right.items.len())))
        }
        _ => numbers::order(left, right).ok_or_else(|| {
            let (left, right) = (left.type_name(), right.type_name());
            Fault::failed(format!("a {left} and a {right} cannot be ordered"))
        }),
    }
}

/// Python's `in`.
pub(crate) fn contains(container: &Value, value: &Value, work: &Work) -> Result<bool, Fault> {
    match container {
        Value::Undefined(_) => Ok(false),
        Value::Str(text) => match value {
            Value::Str(part) => {
                work.spend(text.len())?;
                Ok(text.contains(&**part))
            }
            Value::Undefined(name) => Err(Value::undefined_fault(name.as_ref())),
            other => {
                let kind = other.type_name();
                Err(Fault::failed(format!("'in' a text needs a text on the left, not {kind}")))
            }
        },
        Value::List(list) => {
            for item in &list.items {
                if equal(item, value, work)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Map(map) => Ok(find(&map.entries, value, work)?.is_some()),
        other => Err(Fault::failed(format!("'in' a {} is not possible", other.type_name()))),
    }
}

/// The place of a key.
pub(crate) fn find(
    entries: &[(Value, Value)],
    key: &Value,
    work: &Work,
) -> Result<Option<usize>, Fault> {
    let weight = key.shape().weight;
    work.spend(entries.len().saturating_mul(weight.min(KEY_WEIGHT)))?;
    if weight > KEY_WEIGHT {
        // Each comparison with a long key may be long.
        let weights = entries.iter().map(|(known, _)| known.shape().weight);
        work.spend(weights.fold(0, usize::saturating_add))?;
    }
    for (at, (known, _)) in entries.iter().enumerate() {
        if same(known, key, work)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Sets a key of a dict that is being made.
pub(crate) fn insert(
    entries: &mut Vec<(Value, Value)>,
    key: Value,
    value: Value,
    work: &Work,
) -> Result<(), Fault> {
    check_key(&key)?;
    let known = find(entries, &key, work)?;
    match known.and_then(|at| entries.get_mut(at)) {
        Some((_, slot)) => *slot = value,
        None => entries.push((key, value)),
    }
    Ok(())
}

/// Refuses what Python cannot hash, and what has no equal but itself.
fn check_key(key: &Value) -> Result<(), Fault> {
    match key {
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => Ok(()),
        Value::List(list) if list.kind == ListKind::Tuple => {
            list.items.iter().try_for_each(check_key)
        }
        other => Err(Fault::failed(format!("a {} cannot be a key", other.type_name()))),
    }
}

/// Weight of a key of some 30 characters, up to which a lookup costs the same.
const KEY_WEIGHT: usize = 64;
