//! Indexing and slicing as in Python.

use std::rc::Rc;

use crate::budget::Budget;
use crate::error::{Res, fail};
use crate::value::{ListKind, Range, Value};

/// The item at an index, which counts from the end if negative; `None` if there is none.
pub(crate) fn at(of: &Value, index: i128, budget: &Budget) -> Res<Option<Value>> {
    let place = |length: usize| {
        let length = i128::try_from(length).unwrap_or(i128::MAX);
        let index = if index < 0 { index.checked_add(length)? } else { index };
        usize::try_from(index).ok()
    };
    if let Value::Str(text) = of {
        // Whether it is ASCII takes a look at all of it.
        budget.pay(text.len() / 8)?;
    }
    Ok(match of {
        Value::List(list) if is_indexed(list.kind) => {
            place(list.items.len()).and_then(|at| list.items.get(at)).cloned()
        }
        Value::Range(range) => {
            place(range.len()).filter(|at| *at < range.len()).map(|at| range.get(at))
        }
        Value::Str(text) if text.is_ascii() => {
            let at = place(text.len()).filter(|at| *at < text.len());
            at.map(|at| Value::Str(text.slice(at..at + 1)))
        }
        Value::Str(text) => {
            budget.pay(2 * text.len())?;
            let at = place(text.as_str().chars().count());
            let found = at.and_then(|at| text.as_str().char_indices().nth(at));
            found.map(|(at, c)| Value::Str(text.slice(at..at + c.len_utf8())))
        }
        _ => None,
    })
}

fn is_indexed(kind: ListKind) -> bool {
    matches!(kind, ListKind::List | ListKind::Tuple | ListKind::Group)
}

/// `of[start:stop:step]`.
pub(crate) fn slice(of: &Value, parts: &[Value; 3], budget: &Budget) -> Res<Value> {
    of.defined()?;
    let length = match of {
        Value::Str(_) | Value::Range(_) => of.len(budget)?,
        Value::List(list) if is_indexed(list.kind) => list.items.len(),
        Value::Map(_) => fail!("unhashable type: 'slice'"),
        other => fail!("'{}' object is not subscriptable", other.type_name()),
    };
    let indices = Indices::new(parts, length)?;
    match of {
        Value::Str(text) => {
            budget.pay(text.cost())?;
            if indices.step == 1 {
                let byte = |at: usize| match text.is_ascii() {
                    true => at,
                    false => {
                        let mut chars = text.as_str().char_indices();
                        chars.nth(at).map_or(text.len(), |(at, _)| at)
                    }
                };
                let start = byte(indices.start);
                return Ok(Value::Str(text.slice(start..byte(indices.start + indices.count))));
            }
            budget.pay(text.len().saturating_mul(16))?;
            let places: Vec<_> = text.as_str().char_indices().collect();
            let mut out = crate::text::TextBuf::default();
            for at in indices.places() {
                if let Some((at, c)) = places.get(at) {
                    out.push_char(*c, text.source_at(*at));
                }
            }
            Ok(Value::Str(out.finish()))
        }
        Value::Range(range) => {
            let at = |index: i128| range.start.saturating_add(range.step.saturating_mul(index));
            let (start, stop) = (at(indices.first), at(indices.last));
            let step = range.step.saturating_mul(indices.step);
            Ok(Value::Range(Rc::new(Range { start, stop, step })))
        }
        Value::List(list) => {
            budget.items(indices.count)?;
            let items = indices.places().filter_map(|at| list.items.get(at).cloned()).collect();
            let kind = if list.kind == ListKind::List { ListKind::List } else { ListKind::Tuple };
            Value::sequence(kind, items, budget)
        }
        _ => Ok(Value::None),
    }
}

/// The places that a slice selects.
struct Indices {
    start: usize,
    count: usize,
    step: i128,
    /// Start and stop as Python sees them: the stop may be -1.
    first: i128,
    last: i128,
}

impl Indices {
    fn new([start, stop, step]: &[Value; 3], length: usize) -> Res<Self> {
        let index = |value: &Value| match value {
            Value::None => Ok(None),
            value => match value.as_int() {
                Some(index) => Ok(Some(index)),
                None => fail!("slice indices must be integers or None or have an __index__ method"),
            },
        };
        let step = index(step)?.unwrap_or(1);
        if step == 0 {
            fail!("slice step cannot be zero");
        }
        let length = i128::try_from(length).unwrap_or(i128::MAX);
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamped = |value: Option<i128>, default: i128| match value {
            None => default,
            Some(index) if index < 0 => index.saturating_add(length).max(low),
            Some(index) => index.min(high),
        };
        let (first, last) = if step > 0 { (low, high) } else { (high, low) };
        let start = clamped(index(start)?, first);
        let stop = clamped(index(stop)?, last);
        let span = if step > 0 { stop - start } else { start - stop };
        let count = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
        Ok(Self {
            start: usize::try_from(start).unwrap_or(0),
            count: usize::try_from(count).unwrap_or(0),
            step,
            first: start,
            last: stop,
        })
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        let start = i128::try_from(self.start).unwrap_or(i128::MAX);
        let step = self.step;
        (0..self.count).filter_map(move |at| {
            let offset = i128::try_from(at).ok()?.checked_mul(step)?;
            usize::try_from(start.checked_add(offset)?).ok()
        })
    }
}
