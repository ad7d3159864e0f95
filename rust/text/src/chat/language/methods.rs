//! [2] The methods of Python's texts, lists and dicts. Those that change their object are refused, as
//! in the sandbox of transformers.

use std::sync::Arc;

use super::args::Args;
use super::fault::Fault;
use super::format;
use super::ops;
use super::run::Host;
use super::strings::{self, Ends};
use super::value::{List, ListKind, Map, Value, shortened};
use super::work::Work;

/// What `{}.name` is if there is no call.
pub(crate) const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// Calls a method of a value that is neither undefined nor special.
pub(crate) fn call(host: &Host, of: &Value, name: &Arc<str>, args: Args) -> Result<Value, Fault> {
    let found = match of {
        Value::Str(text) => text_method(host, text, name, args)?,
        Value::Map(map) => dict_method(host, of, map, name, args)?,
        Value::List(list) if !list.is_index_only() => list_method(host, list, name, args)?,
        _ => None,
    };
    found.ok_or_else(|| {
        let (kind, name) = (of.type_name(), shortened(name));
        Fault::failed(format!("a {kind} has no method {name:?} that may be called"))
    })
}

fn dict_method(
    host: &Host,
    of: &Value,
    map: &Map,
    name: &str,
    mut args: Args,
) -> Result<Option<Value>, Fault> {
    let work = host.work;
    let value = match name {
        "get" => {
            let key = args.required("key")?;
            let found = match key.as_str() {
                Some(key) => map.get_str(key, work)?.cloned(),
                None => {
                    let at = ops::find(&map.entries, &key, work)?;
                    at.and_then(|at| map.entries.get(at)).map(|(_, value)| value.clone())
                }
            };
            let default = args.next("default").unwrap_or(Value::None);
            found.unwrap_or(default)
        }
        "keys" => Value::list(ListKind::View, of.items(work)?, work)?,
        "values" => {
            work.items(map.entries.len())?;
            let values = map.entries.iter().map(|(_, value)| value.clone()).collect();
            Value::list(ListKind::View, values, work)?
        }
        "items" => {
            let pair = |(key, value): &(Value, Value)| {
                Value::list(ListKind::Tuple, vec![key.clone(), value.clone()], work)
            };
            let pairs = map.entries.iter().map(pair).collect::<Result<_, _>>()?;
            Value::list(ListKind::View, pairs, work)?
        }
        "copy" => of.clone(),
        _ => return Ok(None),
    };
    args.end()?;
    Ok(Some(value))
}

fn list_method(
    host: &Host,
    list: &List,
    name: &str,
    mut args: Args,
) -> Result<Option<Value>, Fault> {
    let value = match name {
        "count" => {
            let wanted = args.required("value")?;
            let mut count = 0_usize;
            for item in &list.items {
                count += usize::from(ops::equal(item, &wanted, host.work)?);
            }
            count.into()
        }
        "index" => {
            let wanted = args.required("value")?;
            let mut found = None;
            for (at, item) in list.items.iter().enumerate() {
                if ops::equal(item, &wanted, host.work)? {
                    found = Some(at);
                    break;
                }
            }
            found.ok_or_else(|| Fault::failed("index: there is no such item"))?.into()
        }
        _ => return Ok(None),
    };
    args.end()?;
    Ok(Some(value))
}

fn text_method(
    host: &Host,
    text: &Arc<str>,
    name: &str,
    mut args: Args,
) -> Result<Option<Value>, Fault> {
    let work = host.work;
    // Most methods read the text once; changes of case make up to three bytes of one.
    work.spend(text.len())?;
    let value = match name {
        "strip" => stripped(text, &mut args, Ends::Both, work)?,
        "lstrip" => stripped(text, &mut args, Ends::Left, work)?,
        "rstrip" => stripped(text, &mut args, Ends::Right, work)?,
        "split" | "rsplit" => {
            let separator = args.optional_text("sep")?;
            let most = count(&mut args, "maxsplit")?;
            strings::split(text, separator.as_deref(), most, name == "rsplit", work)?
        }
        "splitlines" => strings::list(strings::lines(text, args.flag("keepends")), work)?,
        "startswith" => affix(&mut args, |affix| text.starts_with(affix), work)?,
        "endswith" => affix(&mut args, |affix| text.ends_with(affix), work)?,
        "removeprefix" => {
            let prefix = args.text("prefix")?;
            Value::text(text.strip_prefix(&*prefix).unwrap_or(text), work)?
        }
        "removesuffix" => {
            let suffix = args.text("suffix")?;
            Value::text(text.strip_suffix(&*suffix).unwrap_or(text), work)?
        }
        "replace" => {
            let (old, new) = (args.text("old")?, args.text("new")?);
            let most = count(&mut args, "count")?;
            strings::replace(text, &old, &new, most, work)?
        }
        "upper" => Value::text(text.to_uppercase(), work)?,
        "lower" | "casefold" => Value::text(text.to_lowercase(), work)?,
        "capitalize" => Value::text(strings::capitalized(text), work)?,
        "title" => Value::text(strings::titled(text), work)?,
        "join" => join(text, &args.required("iterable")?, work)?,
        "format" => return format::braces(text, args, work).map(Some),
        "count" => {
            let wanted = args.text("sub")?;
            text.match_indices(&*wanted).count().into()
        }
        "find" | "rfind" | "index" | "rindex" => position(text, name, &mut args)?,
        "partition" | "rpartition" => partition(text, name, &args.text("sep")?, work)?,
        "center" | "ljust" | "rjust" | "zfill" => padded(text, name, &mut args, work)?,
        _ => match predicate(text, name) {
            Some(answer) => answer.into(),
            None => return Ok(None),
        },
    };
    args.end()?;
    Ok(Some(value))
}

fn stripped(text: &Arc<str>, args: &mut Args, ends: Ends, work: &Work) -> Result<Value, Fault> {
    let chars = args.optional_text("chars")?;
    let part = strings::strip(text, chars.as_deref(), ends, work)?;
    if part.len() == text.len() {
        return Ok(Value::Str(Arc::clone(text)));
    }
    Value::text(part, work)
}

/// An argument that says how often at most; below zero is without limit.
fn count(args: &mut Args, name: &str) -> Result<Option<usize>, Fault> {
    Ok(args.optional_int(name)?.and_then(|most| usize::try_from(most).ok()))
}

fn affix(args: &mut Args, fits: impl Fn(&str) -> bool, work: &Work) -> Result<Value, Fault> {
    let wanted = args.required("prefix")?;
    let one = |affix: &Value| match affix {
        Value::Str(affix) => {
            work.spend(affix.len() + 1)?;
            Ok(fits(affix))
        }
        other => {
            Err(Fault::failed(format!("a text cannot start or end with a {}", other.type_name())))
        }
    };
    let answer = match &wanted {
        Value::List(list) if list.is_tuple() => {
            let mut any = false;
            for affix in &list.items {
                any = any || one(affix)?;
            }
            any
        }
        affix => one(affix)?,
    };
    Ok(answer.into())
}

/// `separator.join(items)`; pays for what it makes.
pub(crate) fn join(separator: &str, items: &Value, work: &Work) -> Result<Value, Fault> {
    let items = items.items(work)?;
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        let Value::Str(item) = item else {
            return Err(Fault::failed(format!("join: a {} is no text", item.type_name())));
        };
        work.spend(item.len().saturating_add(separator.len()))?;
        out.push_str(if at == 0 { "" } else { separator });
        out.push_str(item);
    }
    Value::text(out, work)
}

fn position(text: &str, name: &str, args: &mut Args) -> Result<Value, Fault> {
    let wanted = args.text("sub")?;
    let found = if name.starts_with('r') { text.rfind(&*wanted) } else { text.find(&*wanted) };
    match found.and_then(|at| text.get(..at)) {
        Some(before) => Ok(before.chars().count().into()),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Fault::failed("index: the text is not found")),
    }
}

fn partition(text: &Arc<str>, name: &str, separator: &str, work: &Work) -> Result<Value, Fault> {
    if separator.is_empty() {
        return Err(Fault::failed("partition: the separator is empty"));
    }
    let from_right = name.starts_with('r');
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match (found, from_right) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [&**text, "", ""],
        (None, true) => ["", "", &**text],
    };
    let parts = parts.into_iter().map(|part| Value::text(part, work));
    Value::list(ListKind::Tuple, parts.collect::<Result<_, _>>()?, work)
}

fn padded(text: &str, name: &str, args: &mut Args, work: &Work) -> Result<Value, Fault> {
    let width = args.optional_int("width")?.unwrap_or(0);
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let fill = if name == "zfill" { Some("0".into()) } else { args.optional_text("fillchar")? };
    let fill = fill.as_deref().and_then(|fill: &str| fill.chars().next()).unwrap_or(' ');
    let sign = text.chars().next().filter(|c| name == "zfill" && "+-".contains(*c));
    let share = |missing: usize| match name {
        "ljust" => 0,
        // Python puts the odd one on the left if the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    match sign {
        None => Value::text(strings::pad(text, width, fill, share, work)?, work),
        Some(sign) => {
            let digits = text.get(1..).unwrap_or_default();
            let digits = strings::pad(digits, width.saturating_sub(1), fill, share, work)?;
            Value::text(format!("{sign}{digits}"), work)
        }
    }
}

/// `isdigit` and the like.
fn predicate(text: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    Some(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(strings::is_space),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        _ => return None,
    })
}
