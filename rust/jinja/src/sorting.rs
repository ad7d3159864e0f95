//! Filters that order or group: `sort`, `unique`, `min`, `max`, `groupby`, `dictsort`.

use std::collections::HashSet;

use crate::args::Args;
use crate::error::{Res, fail};
use crate::interp::Interp;
use crate::ops;
use crate::value::{ListKind, Value};

impl Interp<'_> {
    pub(crate) fn sort_filter(&mut self, name: &str, input: &Value, args: Args) -> Res<Value> {
        match name {
            "sort" => self.sort(input, args),
            "unique" => self.unique(input, args),
            "groupby" => self.group_by(input, args),
            "dictsort" => self.dict_sort(input, args),
            _ => self.extreme(input, args, name == "max"),
        }
    }

    /// The key of an item: an attribute of it or itself, without its case unless asked for.
    fn key(
        &mut self,
        item: &Value,
        attribute: Option<&Value>,
        default: Option<&Value>,
        case_sensitive: bool,
    ) -> Res<Value> {
        let key = match attribute {
            Some(attribute) => self.member(item.clone(), attribute, default)?,
            None => item.clone(),
        };
        if let (Value::Str(text), false) = (&key, case_sensitive) {
            self.budget.pay(text.cost().saturating_mul(2))?;
            return Ok(Value::Str(text.map(str::to_lowercase)));
        }
        Ok(key)
    }

    fn sort(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let reverse = args.flag("reverse", false);
        let case_sensitive = args.flag("case_sensitive", false);
        let attribute = args.next("attribute").filter(|value| !matches!(value, Value::None));
        args.end()?;
        let paths = match &attribute {
            None => vec![None],
            Some(Value::Str(text)) => {
                let paths = text.as_str().split(',');
                paths.map(|path| Some(Value::text(path))).collect()
            }
            Some(other) => vec![Some(other.clone())],
        };
        let mut pairs = Vec::new();
        for item in input.items(&self.budget)? {
            let mut keys = Vec::with_capacity(paths.len());
            for path in &paths {
                keys.push(self.key(&item, path.as_ref(), None, case_sensitive)?);
            }
            pairs.push((Value::list(keys, &self.budget)?, item));
        }
        let items = self.sorted(pairs, reverse)?;
        Value::list(items, &self.budget)
    }

    fn dict_sort(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let case_sensitive = args.flag("case_sensitive", false);
        let by = args.next("by");
        let reverse = args.flag("reverse", false);
        args.end()?;
        input.defined()?;
        let by_value = match by.as_ref().map_or(Some("key"), Value::as_str) {
            Some("key") => false,
            Some("value") => true,
            _ => fail!("You can only sort by either \"key\" or \"value\""),
        };
        let Value::Map(map) = input else {
            fail!("'{}' object has no attribute 'items'", input.type_name());
        };
        let mut pairs = Vec::new();
        for (key, value) in &map.entries {
            let by = self.key(if by_value { value } else { key }, None, None, case_sensitive)?;
            pairs.push((by, Value::tuple(vec![key.clone(), value.clone()], &self.budget)?));
        }
        let items = self.sorted(pairs, reverse)?;
        Value::list(items, &self.budget)
    }

    /// The values of pairs in the order of their keys; equal ones stay in theirs.
    ///
    /// Merges by hand: the sort of the standard library may panic if an order is not total, and
    /// that of Python's floats is not.
    fn sorted(&mut self, mut pairs: Vec<(Value, Value)>, reverse: bool) -> Res<Vec<Value>> {
        self.budget.items(pairs.len().saturating_mul(3))?;
        if reverse {
            pairs.reverse();
        }
        let mut runs: Vec<Vec<(Value, Value)>> = pairs.into_iter().map(|pair| vec![pair]).collect();
        while runs.len() > 1 {
            let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
            let mut rest = runs.into_iter();
            while let Some(left) = rest.next() {
                merged.push(match rest.next() {
                    Some(right) => self.merged(left, right)?,
                    None => left,
                });
            }
            runs = merged;
        }
        let mut items: Vec<Value> = runs.into_iter().flatten().map(|(_, value)| value).collect();
        if reverse {
            items.reverse();
        }
        Ok(items)
    }

    fn merged(
        &mut self,
        left: Vec<(Value, Value)>,
        right: Vec<(Value, Value)>,
    ) -> Res<Vec<(Value, Value)>> {
        let mut out = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
            let order = ops::order(&second.0, &first.0, "<", &self.budget)?;
            let next =
                if order.is_some_and(std::cmp::Ordering::is_lt) { &mut right } else { &mut left };
            out.extend(next.next());
        }
        out.extend(left);
        out.extend(right);
        Ok(out)
    }

    fn unique(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let case_sensitive = args.flag("case_sensitive", false);
        let attribute = args.next("attribute").filter(|value| !matches!(value, Value::None));
        args.end()?;
        let mut texts: HashSet<std::sync::Arc<str>> = HashSet::new();
        let mut others: Vec<Value> = Vec::new();
        let mut kept = Vec::new();
        for item in input.items(&self.budget)? {
            let key = self.key(&item, attribute.as_ref(), None, case_sensitive)?;
            if !ops::is_hashable(&key, &self.budget)? {
                fail!("unhashable type: '{}'", key.type_name());
            }
            let is_new = match &key {
                Value::Str(text) => {
                    self.budget.pay(text.len())?;
                    texts.insert(text.shared())
                }
                other => {
                    let known = ops::is_among(&others, other, &self.budget)?;
                    if !known {
                        others.push(other.clone());
                    }
                    !known
                }
            };
            if is_new {
                kept.push(item);
            }
        }
        Value::iter("sync_do_unique", kept, &self.budget)
    }

    fn group_by(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let attribute = args.required("attribute")?;
        let default = args.next("default").filter(|value| !matches!(value, Value::None));
        let case_sensitive = args.flag("case_sensitive", false);
        args.end()?;
        let mut pairs = Vec::new();
        for item in input.items(&self.budget)? {
            let key = self.key(&item, Some(&attribute), default.as_ref(), case_sensitive)?;
            let pair = Value::tuple(vec![key.clone(), item], &self.budget)?;
            pairs.push((key, pair));
        }
        let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
        for pair in self.sorted(pairs, false)? {
            let pair = pair.items(&self.budget)?;
            let [key, item] = pair.as_slice() else { continue };
            match groups.last_mut() {
                Some((known, items)) if ops::equal(known, key, &self.budget)? => {
                    items.push(item.clone());
                }
                _ => groups.push((key.clone(), vec![item.clone()])),
            }
        }
        let mut out = Vec::with_capacity(groups.len());
        for (key, items) in groups {
            let key = match (case_sensitive, items.first()) {
                (false, Some(first)) => self.member(first.clone(), &attribute, default.as_ref())?,
                _ => key,
            };
            let items = Value::list(items, &self.budget)?;
            out.push(Value::sequence(ListKind::Group, vec![key, items], &self.budget)?);
        }
        Value::list(out, &self.budget)
    }

    fn extreme(&mut self, input: &Value, mut args: Args, largest: bool) -> Res<Value> {
        let case_sensitive = args.flag("case_sensitive", false);
        let attribute = args.next("attribute").filter(|value| !matches!(value, Value::None));
        args.end()?;
        let mut best: Option<(Value, Value)> = None;
        for item in input.items(&self.budget)? {
            let key = self.key(&item, attribute.as_ref(), None, case_sensitive)?;
            let better = match &best {
                None => true,
                Some((known, _)) if largest => {
                    let order = ops::order(&key, known, ">", &self.budget)?;
                    order.is_some_and(std::cmp::Ordering::is_gt)
                }
                Some((known, _)) => {
                    let order = ops::order(&key, known, "<", &self.budget)?;
                    order.is_some_and(std::cmp::Ordering::is_lt)
                }
            };
            if better {
                best = Some((key, item));
            }
        }
        Ok(best.map_or_else(
            || Value::missing("No aggregated item, sequence was empty."),
            |(_, item)| item,
        ))
    }
}
