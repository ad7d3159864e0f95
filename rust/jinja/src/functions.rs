//! The global functions of templates.

use std::rc::Rc;
use std::sync::Arc;

use crate::args::Args;
use crate::builtins::Function;
use crate::error::{Fault, Res, fail};
use crate::interp::Interp;
use crate::ops;
use crate::print;
use crate::value::{Joiner, Range, Value};

impl Interp<'_> {
    #[inline(never)]
    pub(crate) fn call_function(&mut self, function: Function, mut args: Args) -> Res<Value> {
        match function {
            Function::Range => range(args),
            Function::Dict => self.dict_of_args(args),
            Function::Namespace => {
                let entries = self.dict_of_args(args)?;
                self.make_namespace(&entries)
            }
            Function::Cycler => {
                if args.positional.is_empty() {
                    fail!("at least one item has to be provided");
                }
                let items = std::mem::take(&mut args.positional);
                args.end()?;
                Value::cycler(items, &self.budget)
            }
            Function::Joiner => {
                let separator = args.next("sep").unwrap_or_else(|| Value::text(", "));
                args.end()?;
                crate::value::depth_over(std::iter::once(&separator))?;
                let used = std::cell::Cell::new(false);
                Ok(Value::Joiner(Rc::new(Joiner { separator, used })))
            }
            Function::Lipsum => fail!("lipsum is not supported: its text is random"),
            Function::RaiseException => {
                let message = args.required("message")?;
                args.end()?;
                let message = print::text_of(&message, self)?;
                Err(Fault::raised(message.as_str().to_owned()))
            }
            Function::StrftimeNow => {
                let format = args.text("format")?;
                args.end()?;
                self.budget.pay(32 * format.len())?;
                (self.clock)(format.as_str()).map(Value::text).map_err(Fault::failed)
            }
        }
    }

    /// `dict(mapping or pairs, **more)`.
    fn dict_of_args(&mut self, mut args: Args) -> Res<Value> {
        let mut pairs = Vec::new();
        match args.next("") {
            None => {}
            Some(Value::Map(map)) => {
                self.budget.items(2 * map.entries.len())?;
                pairs.extend(map.entries.iter().cloned());
            }
            Some(Value::Namespace(_)) => fail!("'Namespace' object is not iterable"),
            Some(other) => {
                for item in other.items(&self.budget)? {
                    let pair = item.items(&self.budget)?;
                    let [key, value] = pair.as_slice() else {
                        fail!(
                            "dictionary update sequence element has length {}; 2 is required",
                            pair.len()
                        );
                    };
                    pairs.push((key.clone(), value.clone()));
                }
            }
        }
        if args.positional.len() > 1 {
            fail!("dict expected at most 1 argument, got {}", args.positional.len());
        }
        let named = std::mem::take(&mut args.named).into_iter();
        pairs.extend(named.map(|(name, value)| (Value::text(name), value)));
        ops::dict_of(pairs, &self.budget)
    }

    fn make_namespace(&mut self, entries: &Value) -> Res<Value> {
        let mut namespace: Vec<(Arc<str>, Value)> = Vec::new();
        if let Value::Map(map) = entries {
            self.budget.items(2 * map.entries.len() + 1)?;
            for (key, value) in &map.entries {
                let Value::Str(key) = key else {
                    fail!("the names of a namespace must be texts");
                };
                namespace.push((key.shared(), value.clone()));
            }
        }
        self.namespaces.push(namespace);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }
}

/// `range(stop)` or `range(start, stop, step)`, of at most `MAX_RANGE` numbers.
fn range(mut args: Args) -> Res<Value> {
    let first = args.int("start")?;
    let stop = args.next("stop");
    let step = args.next("step");
    args.end()?;
    let int = |value: Value| match value.as_int() {
        Some(value) => Ok(value),
        None => fail!("'{}' object cannot be interpreted as an integer", value.type_name()),
    };
    let (start, stop) = match stop {
        Some(stop) => (first, int(stop)?),
        None => (0, first),
    };
    let step = step.map_or(Ok(1), int)?;
    if step == 0 {
        fail!("range() arg 3 must not be zero");
    }
    let range = Range { start, stop, step };
    if range.len() > MAX_RANGE {
        fail!("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE}).");
    }
    Ok(Value::Range(Rc::new(range)))
}

/// As Jinja2's sandbox.
const MAX_RANGE: usize = 100_000;
