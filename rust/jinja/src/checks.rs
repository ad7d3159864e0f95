//! Jinja2's tests, which follow `is`.

use std::rc::Rc;

use crate::args::Args;
use crate::arithmetic::binary;
use crate::ast::{BinaryOp, CompareOp};
use crate::builtins::{Check, Filter};
use crate::error::Res;
use crate::interp::Interp;
use crate::ops;
use crate::print;
use crate::str_cases;
use crate::value::{ListKind, Value};

impl Interp<'_> {
    /// Whether a value passes a test.
    #[inline(never)]
    pub(crate) fn check(&mut self, check: Check, value: &Value, mut args: Args) -> Res<bool> {
        self.budget.step()?;
        let compared = match check.name() {
            "==" | "eq" | "equalto" => Some(CompareOp::Eq),
            "!=" | "ne" => Some(CompareOp::Ne),
            ">" | "gt" | "greaterthan" => Some(CompareOp::Gt),
            ">=" | "ge" => Some(CompareOp::Ge),
            "<" | "lt" | "lessthan" => Some(CompareOp::Lt),
            "<=" | "le" => Some(CompareOp::Le),
            "in" => Some(CompareOp::In),
            _ => None,
        };
        if let Some(op) = compared {
            let other = args.required("other")?;
            args.end()?;
            return ops::compare(op, value, &other, &self.budget);
        }
        let holds = match check.name() {
            "divisibleby" => {
                let divisor = args.required("num")?;
                let rest = binary(BinaryOp::Rem, value, &divisor, self)?;
                ops::equal(&rest, &Value::Int(0), &self.budget)?
            }
            "odd" | "even" => {
                let rest = binary(BinaryOp::Rem, value, &Value::Int(2), self)?;
                let wanted = i128::from(check.name() == "odd");
                ops::equal(&rest, &Value::Int(wanted), &self.budget)?
            }
            "sameas" => {
                let other = args.required("other")?;
                if let (Value::Str(text), Value::Str(_)) = (value, &other) {
                    self.budget.pay(text.len())?;
                }
                is_same(value, &other)
            }
            "filter" => args_text(value).is_some_and(|name| Filter::named(name).is_some()),
            "test" => args_text(value).is_some_and(|name| Check::named(name).is_some()),
            "lower" | "upper" => {
                let text = print::text_of(value, self)?;
                self.budget.pay(text.len())?;
                str_cases::has_case(text.as_str(), check.name() == "upper")
            }
            kind => is_kind(kind, value),
        };
        args.end()?;
        Ok(holds)
    }
}

fn args_text(value: &Value) -> Option<&str> {
    value.as_str()
}

fn is_kind(kind: &str, value: &Value) -> bool {
    match kind {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => match value {
            Value::Str(_) | Value::Map(_) | Value::Range(_) | Value::Undefined(_) => true,
            Value::List(list) => {
                matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group)
            }
            _ => false,
        },
        "iterable" => matches!(
            value,
            Value::Str(_)
                | Value::Map(_)
                | Value::Range(_)
                | Value::Undefined(_)
                | Value::List(_)
                | Value::Iter(_)
                | Value::Loop(_)
        ),
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Function(_)
                | Value::Macro(_)
                | Value::Method(_)
                | Value::Loop(_)
                | Value::Joiner(_)
        ),
        "escaped" => matches!(value, Value::Str(text) if text.markup),
        _ => false,
    }
}

/// Python's `is`, for values that have an identity here.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Float(left), Value::Float(right)) => left.to_bits() == right.to_bits(),
        (Value::Str(left), Value::Str(right)) => left.as_str() == right.as_str(),
        (Value::List(left), Value::List(right)) => Rc::ptr_eq(left, right),
        (Value::Map(left), Value::Map(right)) => Rc::ptr_eq(left, right),
        (Value::Range(left), Value::Range(right)) => Rc::ptr_eq(left, right),
        (Value::Iter(left), Value::Iter(right)) => Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => left == right,
        (Value::Macro(left), Value::Macro(right)) => left == right,
        (Value::Function(left), Value::Function(right)) => left == right,
        _ => false,
    }
}
