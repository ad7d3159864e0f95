//! [2] The arguments of a call.

use std::sync::Arc;

use super::fault::Fault;
use super::value::{Value, shortened};

/// Arguments; each is taken once, and what nobody took is refused.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
    /// Positional ones that were asked for.
    pub(crate) asked: usize,
}

impl Args {
    pub(crate) fn positional(positional: Vec<Value>) -> Self {
        Self { positional, ..Self::default() }
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
        Some(self.named.swap_remove(at).1)
    }

    /// The next parameter, which has no default.
    pub(crate) fn required(&mut self, name: &str) -> Result<Value, Fault> {
        self.next(name).ok_or_else(|| Fault::failed(format!("the argument {name:?} is missing")))
    }

    /// The next parameter, a text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Arc<str>, Fault> {
        text_of(self.required(name)?, name)
    }

    /// The next parameter, a text unless it is left out or none.
    pub(crate) fn optional_text(&mut self, name: &str) -> Result<Option<Arc<str>>, Fault> {
        match self.next(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => text_of(value, name).map(Some),
        }
    }

    /// The next parameter, an integer unless it is left out or none.
    pub(crate) fn optional_int(&mut self, name: &str) -> Result<Option<i128>, Fault> {
        match self.next(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int() {
                Some(number) => Ok(Some(number)),
                None => Err(wrong_type(name, "an integer", &value)),
            },
        }
    }

    /// The next parameter as a condition; false if it is left out.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.next(name).is_some_and(|value| value.is_true())
    }

    /// Refuses what nobody asked for.
    pub(crate) fn end(&self) -> Result<(), Fault> {
        if let Some((name, _)) = self.named.first() {
            let name = shortened(name);
            return Err(Fault::failed(format!("there is no argument {name:?} here")));
        }
        if self.positional.len() > self.asked {
            let (most, given) = (self.asked, self.positional.len());
            return Err(Fault::failed(format!("{given} arguments where {most} are allowed")));
        }
        Ok(())
    }

    /// What is left, for a call that these arguments are handed on to.
    pub(crate) fn rest(&mut self) -> Self {
        let positional = self.positional.drain(self.asked.min(self.positional.len())..).collect();
        Self { positional, named: std::mem::take(&mut self.named), asked: 0 }
    }
}

fn text_of(value: Value, name: &str) -> Result<Arc<str>, Fault> {
    match value {
        Value::Str(text) => Ok(text),
        other => Err(wrong_type(name, "a text", &other)),
    }
}

fn wrong_type(name: &str, wanted: &str, value: &Value) -> Fault {
    Fault::failed(format!("the argument {name:?} must be {wanted}, not {}", value.type_name()))
}
