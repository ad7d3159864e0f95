//! The methods that each Python type has, and all methods except those of strings.

use crate::args::Args;
use crate::budget::Budget;
use crate::builtins::Method;
use crate::error::{Res, fail};
use crate::interp::Interp;
use crate::ops;
use crate::value::{ListKind, Map, Value};

/// The method of this name that a value has.
pub(crate) fn method_of(value: &Value, name: &str) -> Option<Method> {
    let names: &[&'static str] = match value {
        Value::Str(_) => &STR,
        Value::Map(_) => &DICT,
        Value::List(list) => match list.kind {
            ListKind::List => &["copy", "count", "index"],
            ListKind::Tuple | ListKind::Group => &["count", "index"],
            _ => &["isdisjoint"],
        },
        Value::Range(_) => &["count", "index"],
        Value::Int(_) | Value::Bool(_) => &["bit_count", "bit_length", "conjugate"],
        Value::Float(_) => &["conjugate", "is_integer"],
        Value::Loop(_) => &["changed", "cycle"],
        Value::Cycler(_) => &["next", "reset"],
        _ => &[],
    };
    Method::among(names, name)
}

/// The method of this name that a dict has.
pub(crate) fn method_of_dict(name: &str) -> Option<Method> {
    Method::among(&DICT, name)
}

/// Whether the sandbox forbids an attribute because it would change the value.
pub(crate) fn is_unsafe(value: &Value, name: &str) -> bool {
    let names: &[&str] = match value {
        Value::Map(_) => &["clear", "pop", "popitem", "setdefault", "update"],
        Value::List(list) if list.kind == ListKind::List => {
            &["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"]
        }
        Value::Iter(_) => &["gi_frame", "gi_code"],
        _ => &[],
    };
    names.contains(&name)
}

impl Interp<'_> {
    /// Calls a method.
    #[inline(never)]
    pub(crate) fn call_method(&mut self, of: &Value, method: Method, args: Args) -> Res<Value> {
        self.budget.step()?;
        let name = method.name();
        match of {
            Value::Str(text) => self.str_method(text, name, args),
            Value::Map(map) => self.dict_method(of, map, name, args),
            Value::List(_) | Value::Range(_) => self.list_method(of, name, args),
            Value::Loop(state) => match name {
                "cycle" => state.cycle(args),
                _ => state.has_changed(args, self),
            },
            Value::Cycler(cycler) => {
                args.end()?;
                if name == "reset" {
                    cycler.at.set(0);
                    return Ok(Value::None);
                }
                let at = cycler.at.get();
                cycler.at.set((at + 1) % cycler.items.len().max(1));
                Ok(cycler.items.get(at).cloned().unwrap_or(Value::None))
            }
            Value::Float(value) => {
                args.end()?;
                Ok(match name {
                    "is_integer" => Value::Bool(value.is_finite() && value.fract() == 0.0),
                    _ => Value::Float(*value),
                })
            }
            other => {
                args.end()?;
                let value = other.as_int().unwrap_or(0);
                let size = value.unsigned_abs();
                Ok(Value::Int(match name {
                    "bit_length" => i128::from(u128::BITS - size.leading_zeros()),
                    "bit_count" => i128::from(size.count_ones()),
                    _ => value,
                }))
            }
        }
    }

    fn dict_method(&mut self, of: &Value, map: &Map, name: &str, mut args: Args) -> Res<Value> {
        let budget = &self.budget;
        match name {
            "get" => {
                let key = args.required("key")?;
                let default = args.next("default");
                args.end()?;
                if !ops::is_hashable(&key, budget)? {
                    fail!("unhashable type: '{}'", key.type_name());
                }
                let found = ops::lookup(map, &key, budget)?.cloned();
                return Ok(found.or(default).unwrap_or(Value::None));
            }
            "fromkeys" => {
                let keys = args.required("iterable")?.items(budget)?;
                let value = args.next("value").unwrap_or(Value::None);
                let pairs = keys.into_iter().map(|key| (key, value.clone()));
                return ops::dict_of(pairs.collect(), budget);
            }
            _ => args.end()?,
        }
        budget.items(map.entries.len())?;
        let (kind, items) = match name {
            "copy" => return Ok(of.clone()),
            "items" => (ListKind::Items, pairs(map, budget)?),
            "keys" => (ListKind::Keys, map.entries.iter().map(|(key, _)| key.clone()).collect()),
            _ => (ListKind::Values, map.entries.iter().map(|(_, value)| value.clone()).collect()),
        };
        Value::sequence(kind, items, budget)
    }

    fn list_method(&mut self, of: &Value, name: &str, mut args: Args) -> Res<Value> {
        if name == "copy" {
            args.end()?;
            return Ok(of.clone());
        }
        let wanted = args.required("value")?;
        let items = of.items(&self.budget)?;
        if name == "isdisjoint" {
            args.end()?;
            for item in wanted.items(&self.budget)? {
                if ops::is_among(&items, &item, &self.budget)? {
                    return Ok(Value::Bool(false));
                }
            }
            return Ok(Value::Bool(true));
        }
        if name == "count" {
            args.end()?;
            let mut count = 0;
            for item in &items {
                count += usize::from(ops::equal(item, &wanted, &self.budget)?);
            }
            return Ok(Value::int(count));
        }
        let length = i128::try_from(items.len()).unwrap_or(i128::MAX);
        let bound = |value: Option<i128>, default: i128| match value {
            None => default,
            Some(value) if value < 0 => value.saturating_add(length).max(0),
            Some(value) => value,
        };
        let start = bound(args.optional_int("start")?, 0);
        let stop = bound(args.optional_int("stop")?, length);
        args.end()?;
        for (at, item) in (0i128..).zip(&items) {
            if at >= start && at < stop && ops::equal(item, &wanted, &self.budget)? {
                return Ok(Value::Int(at));
            }
        }
        fail!("the value is not in the {}", of.type_name())
    }
}

/// The entries of a dict, as tuples.
pub(crate) fn pairs(map: &Map, budget: &Budget) -> Res<Vec<Value>> {
    budget.items(map.entries.len())?;
    let mut pairs = Vec::with_capacity(map.entries.len());
    for (key, value) in &map.entries {
        pairs.push(Value::tuple(vec![key.clone(), value.clone()], budget)?);
    }
    Ok(pairs)
}

pub(crate) const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
pub(crate) const STR: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
