//! [2] The functions that templates find without being given them.

use std::cell::RefCell;

use super::args::Args;
use super::fault::Fault;
use super::ops;
use super::run::Host;
use super::value::{ListKind, Special, Value};
use crate::chat::clock;

/// A function of Jinja2 or transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Namespace,
    Range,
    Dict,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(crate) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "namespace" => Self::Namespace,
            "range" => Self::Range,
            "dict" => Self::Dict,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }

    pub(crate) fn call(self, host: &Host, mut args: Args) -> Result<Value, Fault> {
        match self {
            Self::Namespace => namespace(host, args),
            Self::Range => range(host, args),
            Self::Dict => Value::map(entries(host, &mut args)?, host.work),
            Self::RaiseException => {
                let message = args.text("message")?;
                Err(Fault::raised(message.chars().take(MAX_MESSAGE_CHARS).collect()))
            }
            Self::StrftimeNow => {
                let format = args.text("format")?;
                args.end()?;
                // The longest of a directive of two bytes has 19.
                host.work.spend(format.len().saturating_mul(10))?;
                let text = clock::strftime(host.given.now, &format).map_err(Fault::failed)?;
                Value::text(text, host.work)
            }
        }
    }
}

/// What `dict` and `namespace` are given: a dict or pairs, and named arguments.
fn entries(host: &Host, args: &mut Args) -> Result<Vec<(Value, Value)>, Fault> {
    let mut made = Vec::new();
    match args.next("") {
        None => {}
        Some(Value::Map(map)) => {
            host.work.items(map.entries.len().saturating_mul(2))?;
            made.clone_from(&map.entries);
        }
        Some(pairs) => {
            for pair in pairs.items(host.work)? {
                let pair = pair.items(host.work)?;
                let [key, value] = pair.as_slice() else {
                    return Err(Fault::failed("a dict is made from pairs"));
                };
                ops::insert(&mut made, key.clone(), value.clone(), host.work)?;
            }
        }
    }
    for (name, value) in std::mem::take(&mut args.named) {
        ops::insert(&mut made, Value::Str(name), value, host.work)?;
    }
    args.end()?;
    Ok(made)
}

fn namespace(host: &Host, mut args: Args) -> Result<Value, Fault> {
    let mut variables = Vec::new();
    for (key, value) in entries(host, &mut args)? {
        let Value::Str(name) = key else {
            return Err(Fault::failed("names in a namespace must be texts"));
        };
        if value.shape().special {
            let kind = value.type_name();
            return Err(Fault::failed(format!("a namespace cannot hold a {kind}")));
        }
        variables.push((name, value));
    }
    host.work.items(variables.len() + 1)?;
    Ok(Value::special(Special::Namespace(RefCell::new(variables))))
}

fn range(host: &Host, mut args: Args) -> Result<Value, Fault> {
    let first = args.optional_int("start")?;
    let second = args.optional_int("stop")?;
    let step = args.optional_int("step")?.unwrap_or(1);
    args.end()?;
    let (start, stop) = match (first, second) {
        (Some(stop), None) => (0, stop),
        (Some(start), Some(stop)) => (start, stop),
        (None, _) => return Err(Fault::failed("range needs a number")),
    };
    if step == 0 {
        return Err(Fault::failed("the step of a range cannot be zero"));
    }
    let mut items = Vec::new();
    let mut at = start;
    while if step > 0 { at < stop } else { at > stop } {
        if items.len() >= MAX_RANGE {
            return Err(Fault::failed(format!("a range of more than {MAX_RANGE} numbers")));
        }
        host.work.items(1)?;
        items.push(Value::Int(at));
        let Some(next) = at.checked_add(step) else { break };
        at = next;
    }
    Value::list(ListKind::List, items, host.work)
}

/// As in Jinja2's sandbox.
const MAX_RANGE: usize = 100_000;
/// Of the message that goes to the client.
const MAX_MESSAGE_CHARS: usize = 1000;
