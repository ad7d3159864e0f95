//! [2] Items and slices, with Python's indices that count from the end.

use std::sync::Arc;

use super::fault::Fault;
use super::ops;
use super::value::{List, ListKind, Value};
use super::work::Work;

impl List {
    /// Whether it has no items that could be named by an index.
    pub(crate) fn is_index_only(&self) -> bool {
        matches!(self.kind, ListKind::View | ListKind::Iter)
    }

    pub(crate) fn is_tuple(&self) -> bool {
        matches!(self.kind, ListKind::Tuple | ListKind::Group)
    }
}

/// `of[key]`; undefined if there is none.
pub(crate) fn item(of: &Value, key: &Value, work: &Work) -> Result<Value, Fault> {
    let found = match (of, key) {
        (Value::Undefined(name), _) => return Err(Value::undefined_fault(name.as_ref())),
        (Value::Map(map), Value::Str(name)) => map.get_str(name, work)?.cloned(),
        (Value::Map(map), key) => {
            let at = ops::find(&map.entries, key, work)?;
            at.and_then(|at| map.entries.get(at)).map(|(_, value)| value.clone())
        }
        (Value::List(list), key) if !list.is_index_only() => key
            .as_int()
            .and_then(|index| place(index, list.items.len()))
            .and_then(|at| list.items.get(at).cloned()),
        (Value::Str(text), key) => match key.as_int() {
            Some(index) => character(text, index, work)?,
            None => None,
        },
        (Value::Special(_), Value::Str(_)) => {
            return Err(Fault::failed(format!("a {} has no items", of.type_name())));
        }
        _ => None,
    };
    Ok(found.unwrap_or_else(|| Value::Undefined(key.as_str().map(Arc::from))))
}

/// `of.name` for values without attributes of their own: `pair.0`, and the names of a group.
pub(crate) fn named_item(of: &Value, name: &Arc<str>, work: &Work) -> Result<Value, Fault> {
    let index = match (of, &**name) {
        (Value::List(list), "grouper") if list.kind == ListKind::Group => Some(0),
        (Value::List(list), "list") if list.kind == ListKind::Group => Some(1),
        (Value::List(_) | Value::Str(_), digits) => digits.parse().ok(),
        _ => None,
    };
    match index {
        Some(index) => item(of, &Value::Int(index), work),
        None => Ok(Value::Undefined(Some(Arc::clone(name)))),
    }
}

fn place(index: i128, len: usize) -> Option<usize> {
    let from_end = i128::try_from(len).ok()?;
    usize::try_from(if index < 0 { index.checked_add(from_end)? } else { index }).ok()
}

fn character(text: &str, index: i128, work: &Work) -> Result<Option<Value>, Fault> {
    work.spend(text.len())?;
    let at = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
    let c = match index {
        0.. => text.chars().nth(at),
        _ => text.chars().rev().nth(at - 1),
    };
    Ok(c.map(|c| Value::Str((&*c.encode_utf8(&mut [0; 4])).into())))
}

/// `of[start:stop:step]`.
pub(crate) fn slice(of: &Value, bounds: [&Value; 3], work: &Work) -> Result<Value, Fault> {
    let bound = |value: &Value| match value {
        Value::None => Ok(None),
        other => other.as_int().map(Some).ok_or_else(|| {
            Fault::failed(format!("a slice needs integers, not {}", other.type_name()))
        }),
    };
    let [start, stop, step] = bounds;
    let bounds = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if bounds.2 == 0 {
        return Err(Fault::failed("the step of a slice cannot be zero"));
    }
    match of {
        Value::Undefined(name) => Err(Value::undefined_fault(name.as_ref())),
        Value::List(list) if !list.is_index_only() => {
            work.items(list.items.len())?;
            let kind = if list.is_tuple() { ListKind::Tuple } else { ListKind::List };
            let items = places(bounds, list.items.len());
            let items = items.filter_map(|at| list.items.get(at).cloned()).collect();
            Value::list(kind, items, work)
        }
        Value::Str(text) => slice_of_text(text, bounds, work),
        other => Err(Fault::failed(format!("a {} cannot be sliced", other.type_name()))),
    }
}

type Bounds = (Option<i128>, Option<i128>, i128);

fn slice_of_text(text: &Arc<str>, bounds: Bounds, work: &Work) -> Result<Value, Fault> {
    // Four bytes for each character while they are looked up by place.
    work.spend(text.len().saturating_mul(4))?;
    if text.is_ascii() && bounds.2 == 1 {
        let mut at = places(bounds, text.len());
        let part = match (at.next(), at.last()) {
            (Some(first), last) => text.get(first..=last.unwrap_or(first)).unwrap_or_default(),
            _ => "",
        };
        return Value::text(part, work);
    }
    let chars: Vec<char> = text.chars().collect();
    let part: String =
        places(bounds, chars.len()).filter_map(|at| chars.get(at).copied()).collect();
    Value::text(part, work)
}

/// The indices of a slice of `len` items.
fn places((start, stop, step): Bounds, len: usize) -> impl Iterator<Item = usize> {
    let len = i128::try_from(len).unwrap_or(i128::MAX);
    // Going down, the end lies before the first item.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len.saturating_sub(1)) };
    let bound = |value: Option<i128>, default: i128| match value {
        None => default,
        Some(value) if value < 0 => value.saturating_add(len).clamp(low, high),
        Some(value) => value.clamp(low, high),
    };
    let (first, end) = match step > 0 {
        true => (bound(start, low), bound(stop, high)),
        false => (bound(start, high), bound(stop, low)),
    };
    let inside = move |at: &i128| if step > 0 { *at < end } else { *at > end };
    std::iter::successors(Some(first).filter(inside), move |at| at.checked_add(step).filter(inside))
        .filter_map(|at| usize::try_from(at).ok())
}
