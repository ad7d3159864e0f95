//! [2] Arithmetic as Python's. Integers have 128 bits; what does not fit is an error.

use std::cmp::Ordering;

use super::fault::Fault;
use super::program::BinaryOp;
use super::value::Value;

/// An operator on two numbers; `None` if one of them is none.
pub(crate) fn binary(op: BinaryOp, left: &Value, right: &Value) -> Option<Result<Value, Fault>> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return Some(integers(op, left, right));
    }
    let (left, right) = (left.as_float()?, right.as_float()?);
    Some(floats(op, left, right))
}

#[allow(clippy::cast_precision_loss, reason = "Python rounds as well")]
fn integers(op: BinaryOp, left: i128, right: i128) -> Result<Value, Fault> {
    let value = match op {
        BinaryOp::Add => left.checked_add(right),
        BinaryOp::Sub => left.checked_sub(right),
        BinaryOp::Mul => left.checked_mul(right),
        BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Rem if right == 0 => {
            return Err(Fault::failed("division by zero"));
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
            Err(_) => None,
        },
        BinaryOp::Concat => None,
    };
    value.map(Value::Int).ok_or_else(|| Fault::failed("an integer is too large"))
}

fn floor_div(left: i128, right: i128) -> Option<i128> {
    let quotient = left.checked_div(right)?;
    let exact = left.checked_rem(right)? == 0;
    if exact || (left < 0) == (right < 0) { Some(quotient) } else { quotient.checked_sub(1) }
}

fn floats(op: BinaryOp, left: f64, right: f64) -> Result<Value, Fault> {
    let divides = matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Rem);
    if (divides && right == 0.0) || (op == BinaryOp::Pow && left == 0.0 && right < 0.0) {
        return Err(Fault::failed("division by zero"));
    }
    let remainder = || {
        let rest = left % right;
        if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }
    };
    Ok(Value::Float(match op {
        BinaryOp::Add => left + right,
        BinaryOp::Sub => left - right,
        BinaryOp::Mul => left * right,
        BinaryOp::Div => left / right,
        BinaryOp::FloorDiv => ((left - remainder()) / right).round(),
        BinaryOp::Rem => remainder(),
        BinaryOp::Pow => left.powf(right),
        BinaryOp::Concat => return Err(Fault::failed("numbers cannot be joined")),
    }))
}

/// The order of two numbers, if both are; inside, `None` for a NaN.
pub(crate) fn order(left: &Value, right: &Value) -> Option<Option<Ordering>> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return Some(Some(left.cmp(&right)));
    }
    let (left, right) = (left.as_float()?, right.as_float()?);
    Some(left.partial_cmp(&right))
}
