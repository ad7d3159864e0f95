//! [2] Jinja2's filters by name, and those of one value.

use super::args::Args;
use super::fault::Fault;
use super::format;
use super::json;
use super::lists;
use super::print;
use super::run::Host;
use super::slices;
use super::texts;
use super::value::{ListKind, Value};

/// A filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter(pub(crate) fn(&Host, Value, Args) -> Result<Value, Fault>);

/// The filter of this name.
pub(crate) fn find(name: &str) -> Option<Filter> {
    let filter: fn(&Host, Value, Args) -> Result<Value, Fault> = match name {
        "abs" => abs,
        "attr" => attr,
        "batch" => lists::batch,
        "capitalize" => texts::capitalize,
        "center" => texts::center,
        "count" | "length" => length,
        "d" | "default" => default,
        "dictsort" => lists::dictsort,
        "e" | "escape" | "forceescape" => texts::escape,
        "first" => first,
        "float" => float,
        "format" => |host, value, args| {
            format::percent(&print::text_of(&value, host.work)?, args, host.work)
        },
        "groupby" => lists::groupby,
        "indent" => texts::indent,
        "int" => int,
        "items" => items,
        "join" => lists::join,
        "last" => last,
        "list" => list,
        "lower" => texts::lower,
        "map" => lists::map,
        "max" => |host, value, args| lists::extreme(host, &value, args, true),
        "min" => |host, value, args| lists::extreme(host, &value, args, false),
        "pprint" => pprint,
        "reject" => |host, value, args| lists::select(host, &value, args, false),
        "rejectattr" => |host, value, args| lists::select_attribute(host, &value, args, false),
        "replace" => texts::replace,
        "reverse" => reverse,
        "round" => round,
        "safe" => safe,
        "select" => |host, value, args| lists::select(host, &value, args, true),
        "selectattr" => |host, value, args| lists::select_attribute(host, &value, args, true),
        "slice" => lists::slice,
        "sort" => lists::sort,
        "string" => string,
        "sum" => lists::sum,
        "title" => texts::title,
        "tojson" => json::to_json,
        "trim" => texts::trim,
        "truncate" => texts::truncate,
        "unique" => lists::unique,
        "upper" => texts::upper,
        "urlencode" => texts::urlencode,
        "wordcount" => texts::wordcount,
        _ => return None,
    };
    Some(Filter(filter))
}

fn abs(_: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    match &value {
        Value::Float(value) => Ok(Value::Float(value.abs())),
        Value::Int(_) | Value::Bool(_) => match value.as_int().and_then(i128::checked_abs) {
            Some(value) => Ok(Value::Int(value)),
            None => Err(Fault::failed("an integer is too large")),
        },
        other => Err(Fault::failed(format!("abs: a {} is no number", other.type_name()))),
    }
}

fn attr(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let name = args.text("name")?;
    args.end()?;
    // Only attributes, which the values here hardly have; never items.
    match value {
        Value::Undefined(name) => Err(Value::undefined_fault(name.as_ref())),
        Value::List(_) => slices::named_item(&value, &name, host.work),
        _ => Ok(Value::Undefined(Some(name))),
    }
}

fn length(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    Ok(value.len(host.work)?.into())
}

fn default(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let default = match args.next("default_value") {
        Some(default) => default,
        None => Value::text("", host.work)?,
    };
    let boolean = args.flag("boolean");
    args.end()?;
    let missing = value.is_undefined() || (boolean && !value.is_true());
    Ok(if missing { default } else { value })
}

fn first(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    let item = match &value {
        Value::List(list) => list.items.first().cloned(),
        Value::Str(_) => Some(slices::item(&value, &Value::Int(0), host.work)?),
        other => other.items(host.work)?.into_iter().next(),
    };
    Ok(item.unwrap_or(Value::Undefined(None)))
}

fn last(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    let item = match &value {
        Value::List(list) if list.kind == ListKind::Iter => {
            return Err(Fault::failed("last: a generator has no last item"));
        }
        Value::List(list) => list.items.last().cloned(),
        Value::Str(_) => Some(slices::item(&value, &Value::Int(-1), host.work)?),
        other => other.items(host.work)?.pop(),
    };
    Ok(item.unwrap_or(Value::Undefined(None)))
}

fn items(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    match &value {
        Value::Undefined(_) => Value::list(ListKind::Iter, Vec::new(), host.work),
        Value::Map(map) => {
            let pair = |(key, value): &(Value, Value)| {
                Value::list(ListKind::Tuple, vec![key.clone(), value.clone()], host.work)
            };
            let pairs = map.entries.iter().map(pair).collect::<Result<_, _>>()?;
            Value::list(ListKind::Iter, pairs, host.work)
        }
        other => Err(Fault::failed(format!("items: a {} is no mapping", other.type_name()))),
    }
}

fn list(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    Value::list(ListKind::List, value.items(host.work)?, host.work)
}

fn reverse(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    if let Value::Str(text) = &value {
        host.work.spend(text.len())?;
        return Value::text(text.chars().rev().collect::<String>(), host.work);
    }
    let mut items = value.items(host.work)?;
    items.reverse();
    Value::list(ListKind::Iter, items, host.work)
}

fn safe(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    string(host, value, args)
}

fn string(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    Ok(Value::Str(print::text_of(&value, host.work)?))
}

fn pprint(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    let mut text = String::new();
    print::repr_into(&value, &mut text, host.work)?;
    Value::text(text, host.work)
}

fn int(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let default = args.next("default").unwrap_or(Value::Int(0));
    let base = args.optional_int("base")?.unwrap_or(10);
    args.end()?;
    #[allow(clippy::cast_possible_truncation, reason = "as casts saturate")]
    let whole = |value: f64| value.is_finite().then_some(value.trunc() as i128);
    let number = match &value {
        Value::Float(value) => whole(*value),
        Value::Str(text) => {
            host.work.spend(text.len())?;
            let digits = text.trim();
            let (sign, bare) = match digits.strip_prefix('-') {
                Some(bare) => ("-", bare),
                None => ("", digits),
            };
            let bare = match base {
                16 => bare.trim_start_matches("0x"),
                8 => bare.trim_start_matches("0o"),
                2 => bare.trim_start_matches("0b"),
                _ => bare,
            };
            let radix = u32::try_from(base).ok().filter(|radix| (2..=36).contains(radix));
            let exact =
                radix.and_then(|radix| i128::from_str_radix(&(sign.to_owned() + bare), radix).ok());
            exact.or_else(|| digits.parse().ok().and_then(whole))
        }
        other => other.as_int(),
    };
    Ok(number.map_or(default, Value::Int))
}

fn float(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let default = args.next("default").unwrap_or(Value::Float(0.0));
    args.end()?;
    let number = match &value {
        Value::Str(text) => {
            host.work.spend(text.len())?;
            text.trim().parse().ok()
        }
        other => other.as_float(),
    };
    Ok(number.map_or(default, Value::Float))
}

fn round(_: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let precision = args.optional_int("precision")?.unwrap_or(0).clamp(-300, 300);
    let method = args.optional_text("method")?;
    args.end()?;
    let wrong = || Fault::failed(format!("round: a {} is no number", value.type_name()));
    let number = value.as_float().ok_or_else(wrong)?;
    let power = 10_f64.powi(i32::try_from(precision).unwrap_or(0));
    Ok(Value::Float(match method.as_deref().unwrap_or("common") {
        "ceil" => (number * power).ceil() / power,
        "floor" => (number * power).floor() / power,
        "common" => match (usize::try_from(precision), value.as_int()) {
            (Ok(_), Some(whole)) => return Ok(Value::Int(whole)),
            // The nearest decimal, as Python; formatting rounds exactly.
            (Ok(decimals), None) => format!("{number:.decimals$}").parse().unwrap_or(number),
            (Err(_), _) => (number * power).round_ties_even() / power,
        },
        _ => return Err(Fault::failed("round: the method must be common, ceil or floor")),
    }))
}
