//! The list of filters, and the filters that are neither for strings nor for lists.

use crate::args::Args;
use crate::builtins::Filter;
use crate::error::{Res, fail, too_large};
use crate::escape::escaped;
use crate::floats;
use crate::interp::Interp;
use crate::json;
use crate::print;
use crate::text::{Source, Text};
use crate::value::Value;

impl Interp<'_> {
    /// Applies a filter.
    #[inline(never)]
    pub(crate) fn apply(&mut self, filter: Filter, input: Value, mut args: Args) -> Res<Value> {
        self.budget.step()?;
        match filter.name() {
            "default" | "d" => {
                let default = args.next("default_value").unwrap_or_else(|| Value::text(""));
                let also_false = args.flag("boolean", false);
                args.end()?;
                let replaced = input.is_undefined() || (also_false && !input.is_true());
                Ok(if replaced { default } else { input })
            }
            "tojson" => json::tojson(&input, args, self),
            "length" | "count" => {
                args.end()?;
                if let Value::Loop(state) = &input {
                    return Ok(Value::int(state.len(self)?));
                }
                Ok(Value::int(input.len(&self.budget)?))
            }
            "string" => {
                args.end()?;
                print::text_of(&input, self).map(Value::Str)
            }
            "safe" => {
                args.end()?;
                let mut text = print::text_of(&input, self)?;
                text.markup = true;
                Ok(Value::Str(text))
            }
            "escape" | "e" | "forceescape" => {
                args.end()?;
                let text = print::text_of(&input, self)?;
                if text.markup && filter.name() != "forceescape" {
                    return Ok(Value::Str(text));
                }
                let mut text = escaped(&text, &self.budget)?;
                text.markup = true;
                Ok(Value::Str(text))
            }
            "int" => self.int_of(&input, args),
            "float" => self.float_of(&input, args),
            "abs" => {
                args.end()?;
                absolute(&input)
            }
            "round" => round(&input, args),
            "attr" => {
                let name = args.text("name")?.shared();
                args.end()?;
                self.attribute_only(&input, &name)
            }
            "items" => {
                args.end()?;
                let pairs = match &input {
                    Value::Undefined(_) => Vec::new(),
                    Value::Map(map) => crate::methods::pairs(map, &self.budget)?,
                    _ => fail!("Can only get item pairs from a mapping."),
                };
                Value::iter("do_items", pairs, &self.budget)
            }
            "filesizeformat" => self.file_size(&input, args),
            "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
                self.select_filter(filter.name(), &input, args)
            }
            "first" | "last" | "list" | "reverse" | "sum" | "batch" | "slice" | "join" => {
                self.list_filter(filter.name(), &input, args)
            }
            "sort" | "unique" | "min" | "max" | "groupby" | "dictsort" => {
                self.sort_filter(filter.name(), &input, args)
            }
            name => self.text_filter(name, &input, args),
        }
    }

    fn int_of(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let default = args.next("default").unwrap_or(Value::Int(0));
        let base = args.optional_int("base")?.unwrap_or(10);
        args.end()?;
        input.defined()?;
        match input {
            Value::Str(text) => {
                self.budget.pay(text.len())?;
                let base = u32::try_from(base).ok().filter(|base| matches!(base, 0 | 2..=36));
                let found = base.and_then(|base| floats::parse_int(text.as_str(), base));
                if let Some(value) = found {
                    return value.map(Value::Int).map_err(|_| too_large());
                }
                match floats::parse(text.as_str()) {
                    Some(value) if value.is_finite() => {
                        floats::truncated(value).map(Value::Int).ok_or_else(too_large)
                    }
                    _ => Ok(default),
                }
            }
            Value::Float(value) if value.is_nan() => Ok(default),
            Value::Float(value) if value.is_infinite() => {
                fail!("cannot convert float infinity to integer")
            }
            Value::Float(value) => floats::truncated(*value).map(Value::Int).ok_or_else(too_large),
            other => Ok(other.as_int().map_or(default, Value::Int)),
        }
    }

    fn float_of(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let default = args.next("default").unwrap_or(Value::Float(0.0));
        args.end()?;
        input.defined()?;
        let value = match input {
            Value::Str(text) => {
                self.budget.pay(text.len())?;
                floats::parse(text.as_str())
            }
            other => other.as_float(),
        };
        Ok(value.map_or(default, Value::Float))
    }

    fn file_size(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let binary = args.flag("binary", false);
        args.end()?;
        let none = Args::new(vec![Value::None], Vec::new());
        let Value::Float(bytes) = self.float_of(input, none)? else {
            fail!("could not convert '{}' object to float", input.type_name());
        };
        let base: f64 = if binary { 1024.0 } else { 1000.0 };
        if bytes == 1.0 {
            return Ok(Value::text("1 Byte"));
        }
        if bytes < base {
            let whole = floats::truncated(bytes).ok_or_else(too_large)?;
            return Ok(Value::text(format!("{whole} Bytes")));
        }
        let (mut unit, mut text) = (base, String::new());
        for prefix in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
            let prefix =
                if binary { prefix.to_uppercase() + "iB" } else { prefix.to_owned() + "B" };
            unit *= base;
            text = format!("{:.1} {prefix}", base * bytes / unit);
            if bytes < unit {
                break;
            }
        }
        Ok(Value::text(text))
    }
}

fn absolute(input: &Value) -> Res<Value> {
    input.defined()?;
    match input {
        Value::Float(value) => Ok(Value::Float(value.abs())),
        other => match other.as_int().map(i128::checked_abs) {
            Some(size) => size.map(Value::Int).ok_or_else(too_large),
            None => fail!("bad operand type for abs(): '{}'", other.type_name()),
        },
    }
}

fn round(input: &Value, mut args: Args) -> Res<Value> {
    let precision = args.optional_int("precision")?.unwrap_or(0);
    let method = args.next("method");
    args.end()?;
    input.defined()?;
    let method = method.as_ref().map_or(Some("common"), Value::as_str).unwrap_or_default();
    let precision = i32::try_from(precision.clamp(-400, 400)).unwrap_or(0);
    let Some(value) = input.as_float() else {
        fail!("type {} doesn't define __round__ method", input.type_name());
    };
    match (method, input.as_int()) {
        ("common", Some(value)) if precision >= 0 => Ok(Value::Int(value)),
        ("common", Some(value)) => Ok(Value::Int(rounded_int(value, precision.unsigned_abs()))),
        ("common", None) if value.is_finite() => {
            Ok(Value::Float(floats::rounded(value, precision)))
        }
        ("common", None) => Ok(Value::Float(value)),
        ("ceil" | "floor", _) => {
            let scale = 10f64.powi(precision);
            let scaled = value * scale;
            let whole = if method == "ceil" { scaled.ceil() } else { scaled.floor() };
            // Python's integers have no negative zero.
            Ok(Value::Float((whole + 0.0) / scale))
        }
        _ => fail!("method must be common, ceil or floor"),
    }
}

/// The nearest multiple of a power of ten, ties to even.
fn rounded_int(value: i128, digits: u32) -> i128 {
    let Some(unit) = 10i128.checked_pow(digits) else { return 0 };
    let (quotient, rest) = (value.div_euclid(unit), value.rem_euclid(unit));
    let up = match (rest.saturating_mul(2)).cmp(&unit) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => quotient % 2 != 0,
    };
    quotient.saturating_add(i128::from(up)).saturating_mul(unit)
}

/// A string that the template wrote.
pub(crate) fn own(text: &str) -> Text {
    Text::new(text, Source::Template)
}
