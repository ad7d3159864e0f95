//! The arguments of a call.

use std::sync::Arc;

use crate::error::{Res, fail, shortened};
use crate::text::Text;
use crate::value::Value;

/// Arguments. Each is taken once; arguments that are left are refused.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
    /// Number of positional arguments that were requested.
    asked: usize,
}

impl Args {
    pub(crate) fn new(positional: Vec<Value>, named: Vec<(Arc<str>, Value)>) -> Self {
        Self { positional, named, asked: 0 }
    }

    /// The next parameter, by position or by name.
    pub(crate) fn next(&mut self, name: &str) -> Option<Value> {
        let index = self.asked;
        self.asked += 1;
        match self.positional.get_mut(index) {
            Some(value) => Some(std::mem::replace(value, Value::None)),
            None => self.named(name),
        }
    }

    /// A parameter that is given by name only.
    pub(crate) fn named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(given, _)| **given == *name)?;
        Some(self.named.remove(at).1)
    }

    /// The next parameter, which has no default.
    pub(crate) fn required(&mut self, name: &str) -> Res<Value> {
        match self.next(name) {
            Some(value) => Ok(value),
            None => fail!("missing a required argument: '{name}'"),
        }
    }

    /// The next parameter, a string.
    pub(crate) fn text(&mut self, name: &str) -> Res<Text> {
        text_of(self.required(name)?, name)
    }

    /// The next parameter: a string, absent or none.
    pub(crate) fn optional_text(&mut self, name: &str) -> Res<Option<Text>> {
        match self.next(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => text_of(value, name).map(Some),
        }
    }

    /// The next parameter: an integer, absent or none.
    pub(crate) fn optional_int(&mut self, name: &str) -> Res<Option<i128>> {
        match self.next(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => int_of(&value, name).map(Some),
        }
    }

    /// The next parameter, an integer.
    pub(crate) fn int(&mut self, name: &str) -> Res<i128> {
        int_of(&self.required(name)?, name)
    }

    /// The next parameter as a condition.
    pub(crate) fn flag(&mut self, name: &str, default: bool) -> bool {
        self.next(name).map_or(default, |value| value.is_true())
    }

    /// Refuses arguments that were not taken.
    pub(crate) fn end(&self) -> Res<()> {
        if let Some((name, _)) = self.named.first() {
            fail!("got an unexpected keyword argument '{}'", shortened(name));
        }
        if self.positional.len() > self.asked {
            fail!("takes {} arguments but {} were given", self.asked, self.positional.len());
        }
        Ok(())
    }

    /// The remaining arguments, to pass on to another call.
    pub(crate) fn rest(&mut self) -> Self {
        let from = self.asked.min(self.positional.len());
        Self::new(self.positional.split_off(from), std::mem::take(&mut self.named))
    }
}

fn text_of(value: Value, name: &str) -> Res<Text> {
    match value {
        Value::Str(text) => Ok(text),
        Value::Undefined(undefined) => Err(undefined.fault()),
        other => fail!("the argument '{name}' must be str, not {}", other.type_name()),
    }
}

fn int_of(value: &Value, name: &str) -> Res<i128> {
    value.defined()?;
    match value.as_int() {
        Some(number) => Ok(number),
        None => fail!("the argument '{name}' must be an integer, not {}", value.type_name()),
    }
}

/// An integer as a count; negative ones count as zero.
pub(crate) fn count(value: i128) -> usize {
    usize::try_from(value.max(0)).unwrap_or(usize::MAX)
}
