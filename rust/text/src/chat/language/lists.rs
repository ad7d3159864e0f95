//! [2] Jinja2's filters of sequences.

use std::cmp::Ordering;

use super::args::Args;
use super::checks::{self, Check};
use super::fault::Fault;
use super::filters::{self, Filter};
use super::ops;
use super::print;
use super::program::BinaryOp;
use super::run::Host;
use super::slices;
use super::value::{ListKind, Value, shortened};
use super::work::Work;

/// What `attribute=` names of each item.
struct Attribute(Option<Value>);

impl Attribute {
    /// The value of an attribute such as `name`, `name.0.other` or `0`.
    fn of(&self, item: &Value, host: &Host) -> Result<Value, Fault> {
        match &self.0 {
            None => Ok(item.clone()),
            Some(Value::Str(path)) => {
                host.work.spend(path.len())?;
                path.split('.').try_fold(item.clone(), |value, part| {
                    host.work.step()?;
                    let key = match part.parse() {
                        Ok(index) => Value::Int(index),
                        Err(_) => Value::Str(part.into()),
                    };
                    slices::item(&value, &key, host.work)
                })
            }
            Some(key) => slices::item(item, key, host.work),
        }
    }
}

/// Without regard to case, unless it is asked for.
fn folded(value: Value, case_sensitive: bool, work: &Work) -> Result<Value, Fault> {
    match &value {
        Value::Str(text) if !case_sensitive => {
            work.spend(text.len().saturating_mul(3))?;
            Ok(Value::Str(text.to_lowercase().into()))
        }
        _ => Ok(value),
    }
}

pub(crate) fn map(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let mut made = Vec::new();
    if let Some(attribute) = args.named("attribute") {
        let default = args.named("default");
        args.end()?;
        let attribute = Attribute(Some(attribute));
        for item in value.items(host.work)? {
            let found = attribute.of(&item, host)?;
            made.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
    } else {
        let name = args.text("filter")?;
        let Some(Filter(filter)) = filters::find(&name) else {
            return Err(Fault::failed(format!("there is no filter {:?}", shortened(&name))));
        };
        let args = args.rest();
        for item in value.items(host.work)? {
            made.push(filter(host, item, again(&args, host.work)?)?);
        }
    }
    Value::list(ListKind::Iter, made, host.work)
}

/// The same arguments for one more call; pays for it.
fn again(args: &Args, work: &Work) -> Result<Args, Fault> {
    work.items(1 + args.positional.len() + args.named.len())?;
    Ok(Args { named: args.named.clone(), ..Args::positional(args.positional.clone()) })
}

/// `select` and `reject`.
pub(crate) fn select(host: &Host, value: &Value, args: Args, wanted: bool) -> Result<Value, Fault> {
    chosen(host, value, &Attribute(None), args, wanted)
}

/// `selectattr` and `rejectattr`.
pub(crate) fn select_attribute(
    host: &Host,
    value: &Value,
    mut args: Args,
    wanted: bool,
) -> Result<Value, Fault> {
    let attribute = Attribute(Some(args.required("attribute")?));
    chosen(host, value, &attribute, args, wanted)
}

fn chosen(
    host: &Host,
    value: &Value,
    attribute: &Attribute,
    mut args: Args,
    wanted: bool,
) -> Result<Value, Fault> {
    let check = match args.optional_text("test")? {
        None => None,
        Some(name) => match checks::find(&name) {
            Some(Check(check)) => Some(check),
            None => {
                return Err(Fault::failed(format!("there is no test {:?}", shortened(&name))));
            }
        },
    };
    let args = args.rest();
    let mut kept = Vec::new();
    for item in value.items(host.work)? {
        let tested = attribute.of(&item, host)?;
        let answer = match check {
            Some(check) => check(host, &tested, again(&args, host.work)?)?,
            None => tested.is_true(),
        };
        if answer == wanted {
            kept.push(item);
        }
    }
    Value::list(ListKind::Iter, kept, host.work)
}

pub(crate) fn join(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let separator = match args.next("d") {
        None => "".into(),
        Some(separator) => print::text_of(&separator, host.work)?,
    };
    let attribute = Attribute(args.next("attribute").filter(|given| given.is_true()));
    args.end()?;
    let mut out = String::new();
    for (at, item) in value.items(host.work)?.iter().enumerate() {
        if at > 0 {
            host.work.spend(separator.len())?;
            out.push_str(&separator);
        }
        print::str_into(&attribute.of(item, host)?, &mut out, host.work)?;
    }
    Value::text(out, host.work)
}

pub(crate) fn sum(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let attribute = Attribute(args.next("attribute").filter(|given| given.is_true()));
    let start = args.next("start").unwrap_or(Value::Int(0));
    args.end()?;
    if start.as_str().is_some() {
        return Err(Fault::failed("sum: texts are joined, not added"));
    }
    value.items(host.work)?.iter().try_fold(start, |sum, item| {
        ops::binary(BinaryOp::Add, &sum, &attribute.of(item, host)?, host.work)
    })
}

/// `min` and `max`.
pub(crate) fn extreme(
    host: &Host,
    value: &Value,
    mut args: Args,
    largest: bool,
) -> Result<Value, Fault> {
    let case_sensitive = args.flag("case_sensitive");
    let attribute = Attribute(args.next("attribute").filter(|given| given.is_true()));
    args.end()?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.items(host.work)? {
        let key = folded(attribute.of(&item, host)?, case_sensitive, host.work)?;
        let better = match &best {
            None => true,
            Some((least, _)) => match ops::order(&key, least, host.work)? {
                Some(Ordering::Less) => !largest,
                Some(Ordering::Greater) => largest,
                _ => false,
            },
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::Undefined(None), |(_, item)| item))
}

pub(crate) fn sort(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let reverse = args.flag("reverse");
    let case_sensitive = args.flag("case_sensitive");
    let attribute = args.next("attribute").filter(|given| given.is_true());
    args.end()?;
    let attributes = several(attribute, host)?;
    let mut keyed = Vec::new();
    for item in value.items(host.work)? {
        let mut keys = Vec::with_capacity(attributes.len());
        for attribute in &attributes {
            keys.push(folded(attribute.of(&item, host)?, case_sensitive, host.work)?);
        }
        keyed.push((Value::list(ListKind::Tuple, keys, host.work)?, item));
    }
    let sorted = sorted(keyed, reverse, host.work)?;
    let items = sorted.into_iter().map(|(_, item)| item).collect();
    Value::list(ListKind::List, items, host.work)
}

/// Attributes that are separated by commas.
fn several(attribute: Option<Value>, host: &Host) -> Result<Vec<Attribute>, Fault> {
    let Some(Value::Str(names)) = attribute else { return Ok(vec![Attribute(attribute)]) };
    host.work.items(names.len())?;
    Ok(names.split(',').map(|name| Attribute(Some(Value::Str(name.into())))).collect())
}

type Keyed = (Value, Value);

/// A stable merge sort: the library's own may panic over values like NaN that have no order, and
/// cannot stop at an error.
fn sorted(mut keyed: Vec<Keyed>, reverse: bool, work: &Work) -> Result<Vec<Keyed>, Fault> {
    if keyed.len() < 2 {
        return Ok(keyed);
    }
    work.items(keyed.len())?;
    let right = keyed.split_off(keyed.len() / 2);
    let mut left = sorted(keyed, reverse, work)?.into_iter().peekable();
    let mut right = sorted(right, reverse, work)?.into_iter().peekable();
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some((first, _)), Some((second, _))) = (left.peek(), right.peek()) {
        let order = ops::order(second, first, work)?;
        let swapped = order == Some(if reverse { Ordering::Greater } else { Ordering::Less });
        merged.extend(if swapped { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

pub(crate) fn dictsort(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let case_sensitive = args.flag("case_sensitive");
    let by = args.optional_text("by")?.unwrap_or_else(|| "key".into());
    let reverse = args.flag("reverse");
    args.end()?;
    let Value::Map(map) = &value else {
        return Err(Fault::failed(format!("dictsort: a {} is no dict", value.type_name())));
    };
    let mut keyed = Vec::with_capacity(map.entries.len());
    for (key, value) in &map.entries {
        let sorted_by = match &*by {
            "key" => key.clone(),
            "value" => value.clone(),
            _ => return Err(Fault::failed("dictsort: sort by key or value")),
        };
        let pair = Value::list(ListKind::Tuple, vec![key.clone(), value.clone()], host.work)?;
        keyed.push((folded(sorted_by, case_sensitive, host.work)?, pair));
    }
    let sorted = sorted(keyed, reverse, host.work)?;
    Value::list(ListKind::List, sorted.into_iter().map(|(_, pair)| pair).collect(), host.work)
}

pub(crate) fn groupby(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let attribute = Attribute(Some(args.required("attribute")?));
    let default = args.next("default");
    let case_sensitive = args.flag("case_sensitive");
    args.end()?;
    let mut keyed = Vec::new();
    for item in value.items(host.work)? {
        let found = attribute.of(&item, host)?;
        let key = match &default {
            Some(default) if found.is_undefined() => default.clone(),
            _ => found,
        };
        let pair = Value::list(ListKind::Tuple, vec![key.clone(), item], host.work)?;
        keyed.push((folded(key, case_sensitive, host.work)?, pair));
    }
    let mut groups = Vec::new();
    let mut open: Option<(Value, Value, Vec<Value>)> = None;
    for (folded, pair) in sorted(keyed, false, host.work)? {
        let Value::List(pair) = &pair else { continue };
        let [key, item] = pair.items.as_slice() else { continue };
        match &mut open {
            Some((known, _, items)) if ops::equal(known, &folded, host.work)? => {
                items.push(item.clone());
            }
            _ => {
                close_group(open.take(), &mut groups, host.work)?;
                open = Some((folded, key.clone(), vec![item.clone()]));
            }
        }
    }
    close_group(open, &mut groups, host.work)?;
    Value::list(ListKind::List, groups, host.work)
}

fn close_group(
    open: Option<(Value, Value, Vec<Value>)>,
    groups: &mut Vec<Value>,
    work: &Work,
) -> Result<(), Fault> {
    if let Some((_, key, items)) = open {
        let items = Value::list(ListKind::List, items, work)?;
        groups.push(Value::list(ListKind::Group, vec![key, items], work)?);
    }
    Ok(())
}

pub(crate) fn unique(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let case_sensitive = args.flag("case_sensitive");
    let attribute = Attribute(args.next("attribute").filter(|given| given.is_true()));
    args.end()?;
    let mut seen = Vec::new();
    let mut kept = Vec::new();
    for item in value.items(host.work)? {
        let key = folded(attribute.of(&item, host)?, case_sensitive, host.work)?;
        let before = seen.len();
        ops::insert(&mut seen, key, Value::None, host.work)?;
        if seen.len() > before {
            kept.push(item);
        }
    }
    Value::list(ListKind::Iter, kept, host.work)
}

pub(crate) fn batch(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let size = parts(args.required("linecount")?)?;
    let fill = args.next("fill_with").filter(|fill| !matches!(fill, Value::None));
    args.end()?;
    let items = value.items(host.work)?;
    let mut rows = Vec::new();
    for row in items.chunks(size) {
        let mut row = row.to_vec();
        if let Some(fill) = &fill {
            let missing = size - row.len();
            host.work.items(missing)?;
            row.extend(std::iter::repeat_n(fill.clone(), missing));
        }
        rows.push(Value::list(ListKind::List, row, host.work)?);
    }
    Value::list(ListKind::Iter, rows, host.work)
}

pub(crate) fn slice(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let count = parts(args.required("slices")?)?;
    let fill = args.next("fill_with").filter(|fill| !matches!(fill, Value::None));
    args.end()?;
    let items = value.items(host.work)?;
    host.work.items(count)?;
    let (each, longer) = (items.len() / count, items.len() % count);
    let mut rest = items.into_iter();
    let mut columns = Vec::with_capacity(count);
    for at in 0..count {
        let mut column: Vec<Value> = rest.by_ref().take(each + usize::from(at < longer)).collect();
        if let Some(fill) = &fill
            && at >= longer
            && longer > 0
        {
            column.push(fill.clone());
        }
        columns.push(Value::list(ListKind::List, column, host.work)?);
    }
    Value::list(ListKind::Iter, columns, host.work)
}

/// A number of parts.
fn parts(value: Value) -> Result<usize, Fault> {
    let count = value.as_int().filter(|count| *count > 0);
    let count = count.ok_or_else(|| Fault::failed("the number of parts must be above zero"))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}
