//! [2] Evaluates the expressions of a template.

use std::sync::Arc;

use super::args::Args;
use super::checks::Check;
use super::fault::Fault;
use super::filters::Filter;
use super::methods;
use super::ops;
use super::program::{Arg, CheckCall, CompareOp, Constant, Expr, FilterCall, Slice};
use super::run::Run;
use super::slices;
use super::value::{ListKind, Special, Value, shortened};

impl<'r> Run<'r> {
    pub(crate) fn eval(&mut self, expr: &'r Expr) -> Result<Value, Fault> {
        match expr {
            // What holds no other expression adds no level.
            Expr::Const(constant) => {
                self.work().step()?;
                Ok(constant_value(constant))
            }
            Expr::Var(name) => {
                self.work().step()?;
                Ok(self.look_up(*name))
            }
            Expr::Captured => self
                .captured
                .clone()
                .ok_or_else(|| Fault::failed("a filter has nothing to work on")),
            other => {
                self.enter()?;
                let value = self.eval_inner(other)?;
                self.leave();
                Ok(value)
            }
        }
    }

    fn eval_inner(&mut self, expr: &'r Expr) -> Result<Value, Fault> {
        match expr {
            Expr::Const(_) | Expr::Var(_) | Expr::Captured => self.eval(expr),
            Expr::Attr(of, name) => {
                let of = self.eval(of)?;
                self.attribute(&of, name)
            }
            Expr::Item(parts) => {
                let of = self.eval(&parts.0)?;
                let key = self.eval(&parts.1)?;
                slices::item(&of, &key, self.work())
            }
            Expr::Slice(slice) => self.slice(slice),
            Expr::Not(of) => Ok(Value::Bool(!self.eval(of)?.is_true())),
            Expr::Neg(of) => {
                let of = self.eval(of)?;
                ops::negate(&of)
            }
            Expr::All(parts) => self.first_that(parts, false),
            Expr::Any(parts) => self.first_that(parts, true),
            Expr::Chain(first, rest) => {
                let mut left = self.eval(first)?;
                for (op, right) in rest {
                    let right = self.eval(right)?;
                    left = ops::binary(*op, &left, &right, self.work())?;
                }
                Ok(left)
            }
            Expr::Compare(first, rest) => self.compare(first, rest),
            Expr::If(parts) => {
                if self.eval(&parts.0)?.is_true() {
                    return self.eval(&parts.1);
                }
                match &parts.2 {
                    Some(otherwise) => self.eval(otherwise),
                    None => Ok(Value::Undefined(None)),
                }
            }
            Expr::Filter(filter) => self.filter(filter),
            Expr::Check(check) => self.check(check),
            Expr::Call(call) => {
                let function = self.eval(&call.0)?;
                let args = self.args(&call.1)?;
                self.call(&function, args)
            }
            Expr::Method(call) => {
                let of = self.eval(&call.0)?;
                let args = self.args(&call.2)?;
                self.call_method(&of, &call.1, args)
            }
            Expr::List(items) => self.list(ListKind::List, items),
            Expr::Tuple(items) => self.list(ListKind::Tuple, items),
            Expr::Map(entries) => self.map(entries),
        }
    }

    /// `and`, `or`: the first part that decides, or the last.
    fn first_that(&mut self, parts: &'r [Expr], deciding: bool) -> Result<Value, Fault> {
        let mut value = Value::None;
        for part in parts {
            value = self.eval(part)?;
            if value.is_true() == deciding {
                break;
            }
        }
        Ok(value)
    }

    fn compare(&mut self, first: &'r Expr, rest: &'r [(CompareOp, Expr)]) -> Result<Value, Fault> {
        let mut left = self.eval(first)?;
        for (op, right) in rest {
            let right = self.eval(right)?;
            if !ops::compare(*op, &left, &right, self.work())? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn list(&mut self, kind: ListKind, items: &'r [Expr]) -> Result<Value, Fault> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            values.push(self.eval(item)?);
        }
        Value::list(kind, values, self.work())
    }

    fn map(&mut self, entries: &'r [(Expr, Expr)]) -> Result<Value, Fault> {
        let mut made: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            ops::insert(&mut made, key, value, self.work())?;
        }
        Value::map(made, self.work())
    }

    fn slice(&mut self, slice: &'r Slice) -> Result<Value, Fault> {
        let of = self.eval(&slice.of)?;
        let mut bound = |expr: &'r Option<Expr>| match expr {
            Some(expr) => self.eval(expr),
            None => Ok(Value::None),
        };
        let (start, stop, step) = (bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?);
        slices::slice(&of, [&start, &stop, &step], self.work())
    }

    fn attribute(&mut self, of: &Value, name: &Arc<str>) -> Result<Value, Fault> {
        match of {
            Value::Undefined(undefined) => Err(Value::undefined_fault(undefined.as_ref())),
            Value::Map(map) => {
                // As in Python, a method hides the key of its name.
                if methods::DICT_METHODS.contains(&&**name) {
                    let method = Special::Method(of.clone(), Arc::clone(name));
                    return Ok(Value::special(method));
                }
                let found = map.get_str(name, self.work())?.cloned();
                Ok(found.unwrap_or_else(|| Value::Undefined(Some(Arc::clone(name)))))
            }
            Value::Special(special) => match &**special {
                Special::Namespace(variables) => {
                    let variables = variables.borrow();
                    self.work().spend(variables.len())?;
                    let found = variables.iter().find(|(known, _)| known == name);
                    Ok(found.map_or_else(
                        || Value::Undefined(Some(Arc::clone(name))),
                        |(_, value)| value.clone(),
                    ))
                }
                Special::Loop(state) => Ok(state.attribute(name)),
                _ => Ok(Value::Undefined(Some(Arc::clone(name)))),
            },
            other => slices::named_item(other, name, self.work()),
        }
    }

    pub(crate) fn args(&mut self, args: &'r [Arg]) -> Result<Args, Fault> {
        let mut made = Args { positional: Vec::with_capacity(args.len()), ..Args::default() };
        for arg in args {
            match arg {
                Arg::Positional(value) => made.positional.push(self.eval(value)?),
                Arg::Named(name, value) => {
                    made.named.push((Arc::clone(name), self.eval(value)?));
                }
                Arg::AllOf(list) => {
                    let items = self.eval(list)?.items(self.work())?;
                    made.positional.extend(items);
                }
                Arg::AllNamedOf(map) => match self.eval(map)? {
                    Value::Map(map) => {
                        self.work().items(map.entries.len())?;
                        for (key, value) in &map.entries {
                            let Value::Str(key) = key else {
                                return Err(Fault::failed("names of arguments must be texts"));
                            };
                            made.named.push((Arc::clone(key), value.clone()));
                        }
                    }
                    other => {
                        let kind = other.type_name();
                        return Err(Fault::failed(format!("named arguments from a {kind}")));
                    }
                },
            }
        }
        Ok(made)
    }

    fn filter(&mut self, call: &'r FilterCall) -> Result<Value, Fault> {
        let input = self.eval(&call.input)?;
        let args = self.args(&call.args)?;
        let Some(Filter(filter)) = call.filter else {
            return Err(Fault::failed(format!("there is no filter {:?}", shortened(&call.name))));
        };
        filter(&self.host, input, args)
    }

    fn check(&mut self, call: &'r CheckCall) -> Result<Value, Fault> {
        let input = self.eval(&call.input)?;
        let args = self.args(&call.args)?;
        let Some(Check(check)) = call.check else {
            return Err(Fault::failed(format!("there is no test {:?}", shortened(&call.name))));
        };
        check(&self.host, &input, args).map(Value::Bool)
    }

    pub(crate) fn call(&mut self, function: &Value, mut args: Args) -> Result<Value, Fault> {
        match function {
            Value::Function(function) => function.call(&self.host, args),
            Value::Undefined(name) => Err(Value::undefined_fault(name.as_ref())),
            Value::Special(special) => match &**special {
                Special::Macro { index, frame } => self.call_macro(*index, *frame, args),
                Special::Loop(state) => self.recurse(state, &mut args),
                Special::Method(of, name) => self.call_method(of, name, args),
                Special::Namespace(_) => Err(Fault::failed("a namespace cannot be called")),
            },
            other => Err(Fault::failed(format!("a {} cannot be called", other.type_name()))),
        }
    }

    fn call_method(&mut self, of: &Value, name: &Arc<str>, args: Args) -> Result<Value, Fault> {
        match of {
            Value::Undefined(undefined) => Err(Value::undefined_fault(undefined.as_ref())),
            Value::Special(special) => match &**special {
                Special::Loop(state) => state.method(name, &args, self.work()),
                _ => {
                    let function = self.attribute(of, name)?;
                    self.call(&function, args)
                }
            },
            other => methods::call(&self.host, other, name, args),
        }
    }
}

fn constant_value(constant: &Constant) -> Value {
    match constant {
        Constant::None => Value::None,
        Constant::Bool(value) => Value::Bool(*value),
        Constant::Int(value) => Value::Int(*value),
        Constant::Float(value) => Value::Float(*value),
        Constant::Str(text) => Value::Str(Arc::clone(text)),
    }
}
