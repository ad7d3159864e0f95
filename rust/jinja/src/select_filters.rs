//! `map`, `select` and related filters, and access to attributes by path.

use std::sync::Arc;

use crate::args::Args;
use crate::builtins::Check;
use crate::builtins::Filter;
use crate::error::{Fault, Res, fail, shortened};
use crate::interp::Interp;
use crate::value::{Undefined, Value};

/// What is done with each item.
enum Each {
    Truth,
    Check(Check),
    Filter(Filter),
    Attribute(Value, Option<Value>),
}

impl Interp<'_> {
    pub(crate) fn select_filter(&mut self, name: &str, input: &Value, args: Args) -> Res<Value> {
        let generator = match name {
            "map" => "sync_do_map",
            "select" => "sync_do_select",
            "reject" => "sync_do_reject",
            "selectattr" => "sync_do_selectattr",
            _ => "sync_do_rejectattr",
        };
        if !input.is_true() {
            return Value::iter(generator, Vec::new(), &self.budget);
        }
        // A generator reports its errors only when it is iterated.
        let mut kept = Vec::new();
        let fault = self.selected(name, input, args, &mut kept).err();
        if let Some(limit) = fault.as_ref().filter(|fault| fault.is_limit()) {
            return Err(limit.clone());
        }
        Value::broken_iter(generator, kept, fault, &self.budget)
    }

    fn selected(
        &mut self,
        name: &str,
        input: &Value,
        mut args: Args,
        kept: &mut Vec<Value>,
    ) -> Res<()> {
        let attribute = match name {
            "selectattr" | "rejectattr" => match args.next("") {
                Some(attribute) => Some(attribute),
                None => fail!("Missing parameter for attribute name"),
            },
            _ => None,
        };
        let each = if name == "map" { map_each(&mut args)? } else { select_each(&mut args)? };
        let wanted = !name.starts_with("reject");
        let rest = args.rest();
        for item in input.items(&self.budget)? {
            self.budget.step()?;
            let args = Args::new(rest.positional.clone(), rest.named.clone());
            self.budget.items(rest.positional.len() + rest.named.len())?;
            let subject = match &attribute {
                Some(attribute) => self.member(item.clone(), attribute, None)?,
                None => item.clone(),
            };
            let holds = match &each {
                Each::Filter(filter) => {
                    kept.push(self.apply(*filter, subject, args)?);
                    continue;
                }
                Each::Attribute(path, default) => {
                    kept.push(self.member(subject, path, default.as_ref())?);
                    continue;
                }
                Each::Truth => subject.is_true(),
                Each::Check(check) => self.check(*check, &subject, args)?,
            };
            if holds == wanted {
                kept.push(item);
            }
        }
        Ok(())
    }

    /// The attribute of an item by a path such as `a.b.0`; one that is missing on the way is the default.
    pub(crate) fn member(
        &mut self,
        item: Value,
        path: &Value,
        default: Option<&Value>,
    ) -> Res<Value> {
        let Value::Str(text) = path else {
            let found = self.item(&item, path)?;
            return Ok(or_default(found, default));
        };
        let mut value = item;
        for part in text.as_str().split('.') {
            self.budget.step()?;
            let is_number = !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
            let key = match part.parse().ok().filter(|_| is_number) {
                Some(number) => Value::Int(number),
                None => Value::text(part),
            };
            value = or_default(self.item(&value, &key)?, default);
        }
        Ok(value)
    }

    /// The filter `attr`: an attribute and never an item.
    pub(crate) fn attribute_only(&mut self, of: &Value, name: &Arc<str>) -> Res<Value> {
        of.defined()?;
        let missing = || Value::Undefined(Undefined::Member(of.type_name(), Arc::clone(name)));
        Ok(self.own_attribute(of, name)?.unwrap_or_else(missing))
    }
}

fn or_default(value: Value, default: Option<&Value>) -> Value {
    match default {
        Some(default) if value.is_undefined() => default.clone(),
        _ => value,
    }
}

fn map_each(args: &mut Args) -> Res<Each> {
    if args.positional.is_empty()
        && let Some(attribute) = args.named("attribute")
    {
        let default = args.named("default").filter(|value| !matches!(value, Value::None));
        if let Some((name, _)) = args.named.first() {
            fail!("Unexpected keyword argument '{}'", shortened(name));
        }
        return Ok(Each::Attribute(attribute, default));
    }
    let Some(name) = args.next("") else {
        fail!("map requires a filter argument");
    };
    match name.as_str().and_then(Filter::named) {
        Some(filter) => Ok(Each::Filter(filter)),
        None => Err(unknown("filter", &name)),
    }
}

fn select_each(args: &mut Args) -> Res<Each> {
    let Some(name) = args.next("") else { return Ok(Each::Truth) };
    match name.as_str().and_then(Check::named) {
        Some(check) => Ok(Each::Check(check)),
        None => Err(unknown("test", &name)),
    }
}

fn unknown(kind: &str, name: &Value) -> Fault {
    Fault::failed(format!("No {kind} named '{}'.", shortened(name.as_str().unwrap_or("?"))))
}
