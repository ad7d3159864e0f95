//! [2] Jinja2's tests: `x is defined` and the like.

use super::args::Args;
use super::fault::Fault;
use super::filters;
use super::ops;
use super::print;
use super::program::CompareOp;
use super::run::Host;
use super::value::{ListKind, Special, Value};

/// A test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check(pub(crate) fn(&Host, &Value, Args) -> Result<bool, Fault>);

/// The test of this name.
pub(crate) fn find(name: &str) -> Option<Check> {
    let check: fn(&Host, &Value, Args) -> Result<bool, Fault> = match name {
        "boolean" => |_, value, args| plain(args, matches!(value, Value::Bool(_))),
        "callable" => |_, value, args| plain(args, is_callable(value)),
        "defined" => |_, value, args| plain(args, !value.is_undefined()),
        "divisibleby" => |host, value, mut args| {
            let by = args.required("num")?;
            let rest = ops::binary(super::program::BinaryOp::Rem, value, &by, host.work)?;
            plain(args, !rest.is_true())
        },
        "escaped" => |_, _, args| plain(args, false),
        "even" => |_, value, args| plain(args, number(value)? % 2 == 0),
        "odd" => |_, value, args| plain(args, number(value)? % 2 != 0),
        "false" => |_, value, args| plain(args, matches!(value, Value::Bool(false))),
        "true" => |_, value, args| plain(args, matches!(value, Value::Bool(true))),
        "filter" => |_, value, args| {
            plain(args, value.as_str().is_some_and(|name| filters::find(name).is_some()))
        },
        "test" => {
            |_, value, args| plain(args, value.as_str().is_some_and(|name| find(name).is_some()))
        }
        "float" => |_, value, args| plain(args, matches!(value, Value::Float(_))),
        "integer" => |_, value, args| plain(args, matches!(value, Value::Int(_))),
        "number" => |_, value, args| plain(args, value.as_float().is_some()),
        "string" => |_, value, args| plain(args, value.as_str().is_some()),
        "mapping" => |_, value, args| plain(args, matches!(value, Value::Map(_))),
        "sequence" => |_, value, args| plain(args, is_sequence(value)),
        "iterable" => {
            |_, value, args| plain(args, is_sequence(value) || matches!(value, Value::List(_)))
        }
        "none" => |_, value, args| plain(args, matches!(value, Value::None)),
        "undefined" => |_, value, args| plain(args, value.is_undefined()),
        "lower" => |host, value, args| {
            let text = print::text_of(value, host.work)?;
            plain(
                args,
                text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
            )
        },
        "upper" => |host, value, args| {
            let text = print::text_of(value, host.work)?;
            plain(
                args,
                text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
            )
        },
        "sameas" => |host, value, mut args| {
            let other = args.required("other")?;
            args.end()?;
            Ok(value.type_name() == other.type_name() && ops::equal(value, &other, host.work)?)
        },
        "eq" | "equalto" | "==" => |host, value, args| compare(host, value, args, CompareOp::Eq),
        "ne" | "!=" => |host, value, args| compare(host, value, args, CompareOp::Ne),
        "lt" | "lessthan" | "<" => |host, value, args| compare(host, value, args, CompareOp::Lt),
        "le" | "<=" => |host, value, args| compare(host, value, args, CompareOp::Le),
        "gt" | "greaterthan" | ">" => |host, value, args| compare(host, value, args, CompareOp::Gt),
        "ge" | ">=" => |host, value, args| compare(host, value, args, CompareOp::Ge),
        "in" => |host, value, args| compare(host, value, args, CompareOp::In),
        _ => return None,
    };
    Some(Check(check))
}

fn plain(args: Args, answer: bool) -> Result<bool, Fault> {
    args.end()?;
    Ok(answer)
}

fn compare(host: &Host, value: &Value, mut args: Args, op: CompareOp) -> Result<bool, Fault> {
    let other = args.required("other")?;
    args.end()?;
    ops::compare(op, value, &other, host.work)
}

fn number(value: &Value) -> Result<i128, Fault> {
    let wrong = || Fault::failed(format!("a {} is neither even nor odd", value.type_name()));
    value.as_int().ok_or_else(wrong)
}

fn is_callable(value: &Value) -> bool {
    match value {
        Value::Function(_) => true,
        Value::Special(special) => !matches!(**special, Special::Namespace(_)),
        _ => false,
    }
}

/// Whether Python finds a length and items by index or key.
fn is_sequence(value: &Value) -> bool {
    match value {
        Value::Undefined(_) | Value::Str(_) | Value::Map(_) => true,
        Value::List(list) => !matches!(list.kind, ListKind::View | ListKind::Iter),
        _ => false,
    }
}
