//! Python's arithmetic operators, also on strings and lists.

use crate::args::{Args, count};
use crate::ast::BinaryOp;
use crate::budget::Budget;
use crate::error::{Res, fail, too_large};
use crate::formatting::percent;
use crate::interp::Interp;
use crate::text::{Text, TextBuf};
use crate::value::{ListKind, Value};

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
            return percent(text, Args::new(args, Vec::new()), interp);
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
            crate::escape::escaped(text, budget)
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

/// An operator on two numbers; `None` if an operand is not a number.
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
