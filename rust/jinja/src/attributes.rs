//! Attributes and items: `x.name` and `x['name']`, with Jinja2's fallback from one to the other.

use std::sync::Arc;

use crate::builtins::Function;
use crate::error::{Res, shortened};
use crate::interp::Interp;
use crate::methods::{is_unsafe, method_of, method_of_dict};
use crate::ops;
use crate::slices;
use crate::value::{ListKind, MacroRef, Undefined, Value};

impl Interp<'_> {
    /// `of.name`: an attribute, or else the item of that name.
    pub(crate) fn attribute(&mut self, of: &Value, name: &Arc<str>) -> Res<Value> {
        of.defined()?;
        // The usual case first: an entry of a dict that is not a method.
        if let Value::Map(map) = of
            && !is_attribute_of_dict(name)
        {
            let found = map.get_str(name, &self.budget)?.cloned();
            return Ok(found.unwrap_or_else(|| missing(of, name)));
        }
        if let Some(value) = self.own_attribute(of, name)? {
            return Ok(value);
        }
        match of {
            Value::Map(map) => {
                let found = map.get_str(name, &self.budget)?.cloned();
                Ok(found.unwrap_or_else(|| missing(of, name)))
            }
            _ => Ok(missing(of, name)),
        }
    }

    /// `of[index]`: an item, or else the attribute of that name.
    pub(crate) fn item(&mut self, of: &Value, index: &Value) -> Res<Value> {
        of.defined()?;
        if let Some(value) = self.own_item(of, index)? {
            return Ok(value);
        }
        if let Value::Str(name) = index {
            let name = name.shared();
            let found = self.own_attribute(of, &name)?;
            return Ok(found.unwrap_or_else(|| missing(of, &name)));
        }
        let mut text = crate::text::TextBuf::default();
        crate::print::repr_into(index, &mut text, self)?;
        let owner = object_type(of);
        Ok(Value::missing(format!("{owner} has no element {}", shortened(text.as_str()))))
    }

    /// The result of Python's `of[index]`.
    fn own_item(&mut self, of: &Value, index: &Value) -> Res<Option<Value>> {
        match (of, index) {
            (Value::Map(map), Value::Str(key)) => {
                Ok(map.get_str(key.as_str(), &self.budget)?.cloned())
            }
            (Value::Map(map), key) if ops::is_hashable(key, &self.budget)? => {
                for (known, value) in &map.entries {
                    if ops::equal(known, key, &self.budget)? {
                        return Ok(Some(value.clone()));
                    }
                }
                Ok(None)
            }
            (Value::List(_) | Value::Str(_) | Value::Range(_), index) => {
                let Some(index) = index.as_int() else { return Ok(None) };
                slices::at(of, index, &self.budget)
            }
            _ => Ok(None),
        }
    }

    /// The result of Python's `getattr(of, name)`.
    pub(crate) fn own_attribute(&mut self, of: &Value, name: &Arc<str>) -> Res<Option<Value>> {
        let is_special = name.starts_with("__") && name.ends_with("__") && name.len() > 4;
        if is_unsafe(of, name) || (is_special && DUNDERS.contains(&&**name)) {
            return Ok(Some(Value::missing(format!(
                "access to attribute '{}' of '{}' object is unsafe.",
                shortened(name),
                of.type_name()
            ))));
        }
        if name.starts_with('_') {
            return Ok(None);
        }
        if let Some(method) = method_of(of, name) {
            return Value::method(of.clone(), method).map(Some);
        }
        Ok(match of {
            Value::Namespace(index) => {
                let entries = self.namespaces.get(*index).map_or(&[][..], Vec::as_slice);
                self.budget.pay(entries.len())?;
                let found = entries.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| value.clone())
            }
            Value::Loop(state) => return state.attribute(name, self),
            Value::Macro(reference) => return self.macro_attribute(*reference, name),
            Value::List(list) if list.kind == ListKind::Group => match &**name {
                "grouper" => list.items.first().cloned(),
                "list" => list.items.get(1).cloned(),
                _ => None,
            },
            Value::Cycler(cycler) => match &**name {
                "current" => cycler.items.get(cycler.at.get()).cloned(),
                "pos" => Some(Value::int(cycler.at.get())),
                "items" => Some(Value::tuple(cycler.items.clone(), &self.budget)?),
                _ => None,
            },
            Value::Joiner(joiner) => match &**name {
                "sep" => Some(joiner.separator.clone()),
                "used" => Some(Value::Bool(joiner.used.get())),
                _ => None,
            },
            Value::Int(_) | Value::Bool(_) => {
                let value = of.as_int().unwrap_or(0);
                match &**name {
                    "real" | "numerator" => Some(Value::Int(value)),
                    "imag" => Some(Value::Int(0)),
                    "denominator" => Some(Value::Int(1)),
                    _ => None,
                }
            }
            Value::Float(value) => match &**name {
                "real" => Some(Value::Float(*value)),
                "imag" => Some(Value::Float(0.0)),
                _ => None,
            },
            Value::Range(range) => match &**name {
                "start" => Some(Value::Int(range.start)),
                "stop" => Some(Value::Int(range.stop)),
                "step" => Some(Value::Int(range.step)),
                _ => None,
            },
            Value::Function(Function::Dict) => None,
            _ => None,
        })
    }

    fn macro_attribute(&mut self, reference: MacroRef, name: &str) -> Res<Option<Value>> {
        let Some(definition) = self.program.macros.get(reference.index) else { return Ok(None) };
        Ok(Some(match name {
            "name" if definition.name.is_empty() => Value::None,
            "name" => Value::text(Arc::clone(&definition.name)),
            "arguments" => {
                let names = definition.parameters.iter();
                let names = names.map(|parameter| Value::text(Arc::clone(&parameter.name)));
                Value::tuple(names.collect(), &self.budget)?
            }
            "caller" => Value::Bool(definition.caller.is_some()),
            "catch_kwargs" => Value::Bool(definition.kwargs.is_some()),
            "catch_varargs" => Value::Bool(definition.varargs.is_some()),
            "explicit_caller" => Value::Bool(definition.explicit_caller),
            _ => return Ok(None),
        }))
    }
}

fn missing(of: &Value, name: &Arc<str>) -> Value {
    Value::Undefined(Undefined::Member(of.type_name(), Arc::clone(name)))
}

/// The name of a value's type in Jinja2's messages.
fn object_type(of: &Value) -> String {
    match of {
        Value::None => "None".into(),
        other => format!("{} object", other.type_name()),
    }
}

fn is_attribute_of_dict(name: &str) -> bool {
    name.starts_with("__") || method_of_dict(name).is_some() || is_unsafe_of_dict(name)
}

fn is_unsafe_of_dict(name: &str) -> bool {
    matches!(name, "clear" | "pop" | "popitem" | "setdefault" | "update")
}

/// Special attributes of all Python values. The sandbox forbids them.
const DUNDERS: [&str; 12] = [
    "__class__",
    "__doc__",
    "__init__",
    "__new__",
    "__eq__",
    "__hash__",
    "__repr__",
    "__str__",
    "__dir__",
    "__getattribute__",
    "__reduce__",
    "__subclasshook__",
];
