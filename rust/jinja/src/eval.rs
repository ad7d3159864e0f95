//! Evaluates expressions. Every node is paid for, and depth is bounded.

use std::sync::Arc;

use crate::args::Args;
use crate::arithmetic;
use crate::ast::{self, CompareOp, Constant, Expr, ExprKind};
use crate::error::{Res, fail, shortened};
use crate::interp::Interp;
use crate::ops;
use crate::print;
use crate::slices;
use crate::text::{Source, Text, TextBuf};
use crate::value::{Undefined, Value};

impl<'t> Interp<'t> {
    /// The value of an expression.
    pub(crate) fn eval(&mut self, expr: &'t Expr) -> Res<Value> {
        match &expr.kind {
            ExprKind::Const(constant) => {
                self.budget.step()?;
                Ok(constant_value(constant))
            }
            ExprKind::Name(name) => {
                self.budget.step()?;
                Ok(match self.slot(name.slot) {
                    Some(value) => value.clone(),
                    None => Value::Undefined(Undefined::Name(Arc::clone(&name.name))),
                })
            }
            ExprKind::Captured => Ok(self.captured.last().cloned().unwrap_or(Value::None)),
            kind => {
                self.enter()?;
                let value = self.operation(kind);
                self.leave();
                value
            }
        }
    }

    fn operation(&mut self, kind: &'t ExprKind) -> Res<Value> {
        match kind {
            ExprKind::Attribute(of, name) => {
                let of = self.eval(of)?;
                self.attribute(&of, name)
            }
            ExprKind::Item(pair) => {
                let (of, index) = (self.eval(&pair.0)?, self.eval(&pair.1)?);
                self.item(&of, &index)
            }
            ExprKind::Slice(slice) => self.slice(slice),
            ExprKind::Not(of) => Ok(Value::Bool(!self.eval(of)?.is_true())),
            ExprKind::Neg(of) => arithmetic::negated(&self.eval(of)?),
            ExprKind::Pos(of) => arithmetic::positive(&self.eval(of)?),
            ExprKind::And(pair) => {
                let left = self.eval(&pair.0)?;
                if left.is_true() { self.eval(&pair.1) } else { Ok(left) }
            }
            ExprKind::Or(pair) => {
                let left = self.eval(&pair.0)?;
                if left.is_true() { Ok(left) } else { self.eval(&pair.1) }
            }
            ExprKind::Binary(op, pair) => {
                let (left, right) = (self.eval(&pair.0)?, self.eval(&pair.1)?);
                arithmetic::binary(*op, &left, &right, self)
            }
            ExprKind::Concat(items) => self.concat(items),
            ExprKind::Compare(first, others) => self.comparison(first, others),
            ExprKind::If(parts) => {
                if self.eval(&parts.0)?.is_true() {
                    return self.eval(&parts.1);
                }
                match &parts.2 {
                    Some(otherwise) => self.eval(otherwise),
                    None => Ok(Value::missing(
                        "the inline if-expression evaluated to false and no else section was defined.",
                    )),
                }
            }
            ExprKind::Filter(call) => {
                let Some(filter) = call.filter else {
                    fail!("No filter named '{}' found.", shortened(&call.name));
                };
                let input = self.eval(&call.input)?;
                let args = self.args(&call.args)?;
                self.apply(filter, input, args)
            }
            ExprKind::Check(call) => {
                let Some(check) = call.check else {
                    fail!("No test named '{}' found.", shortened(&call.name));
                };
                let input = self.eval(&call.input)?;
                let args = self.args(&call.args)?;
                self.check(check, &input, args).map(Value::Bool)
            }
            ExprKind::Call(call) => self.call_expr(call),
            ExprKind::List(items) => {
                let items = self.all(items)?;
                Value::list(items, &self.budget)
            }
            ExprKind::Tuple(items) => {
                let items = self.all(items)?;
                Value::tuple(items, &self.budget)
            }
            ExprKind::Dict(entries) => self.dict(entries),
            ExprKind::Const(_) | ExprKind::Name(_) | ExprKind::Captured => Ok(Value::None),
        }
    }

    #[inline(never)]
    fn comparison(&mut self, first: &'t Expr, others: &'t [(CompareOp, Expr)]) -> Res<Value> {
        let mut left = self.eval(first)?;
        for (op, expr) in others {
            let right = self.eval(expr)?;
            if !ops::compare(*op, &left, &right, &self.budget)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn all(&mut self, exprs: &'t [Expr]) -> Res<Vec<Value>> {
        let mut values = Vec::with_capacity(exprs.len());
        for expr in exprs {
            values.push(self.eval(expr)?);
        }
        Ok(values)
    }

    #[inline(never)]
    fn concat(&mut self, items: &'t [Expr]) -> Res<Value> {
        let mut text = TextBuf::default();
        for item in items {
            let value = self.eval(item)?;
            print::str_into(&value, &mut text, self)?;
        }
        self.budget.pay(text.len())?;
        Ok(Value::Str(text.finish()))
    }

    #[inline(never)]
    fn dict(&mut self, entries: &'t [(Expr, Expr)]) -> Res<Value> {
        let mut pairs = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.eval(key)?;
            pairs.push((key, self.eval(value)?));
        }
        ops::dict_of(pairs, &self.budget)
    }

    #[inline(never)]
    fn slice(&mut self, slice: &'t ast::Slice) -> Res<Value> {
        let of = self.eval(&slice.of)?;
        let mut part = |expr: &'t Option<Expr>| -> Res<Value> {
            expr.as_ref().map_or(Ok(Value::None), |expr| self.eval(expr))
        };
        let parts = [part(&slice.start)?, part(&slice.stop)?, part(&slice.step)?];
        slices::slice(&of, &parts, &self.budget)
    }

    /// The arguments of a call.
    #[inline(never)]
    pub(crate) fn args(&mut self, args: &'t ast::Args) -> Res<Args> {
        let mut positional = self.all(&args.positional)?;
        let mut named = Vec::with_capacity(args.named.len());
        for (name, expr) in &args.named {
            named.push((Arc::clone(name), self.eval(expr)?));
        }
        if let Some(all) = &args.all_of {
            positional.extend(self.eval(all)?.items(&self.budget)?);
        }
        if let Some(all) = &args.all_named_of {
            let Value::Map(map) = self.eval(all)? else {
                fail!("argument after ** must be a mapping");
            };
            self.budget.items(map.entries.len())?;
            for (key, value) in &map.entries {
                let Value::Str(name) = key else {
                    fail!("keywords must be strings");
                };
                if named.iter().any(|(known, _)| **known == *name.as_str()) {
                    fail!(
                        "got multiple values for keyword argument '{}'",
                        shortened(name.as_str())
                    );
                }
                self.budget.pay(named.len())?;
                named.push((name.shared(), value.clone()));
            }
        }
        Ok(Args::new(positional, named))
    }
}

fn constant_value(constant: &Constant) -> Value {
    match constant {
        Constant::None => Value::None,
        Constant::Bool(value) => Value::Bool(*value),
        Constant::Int(value) => Value::Int(*value),
        Constant::Float(value) => Value::Float(*value),
        Constant::Str(text) => Value::Str(Text::new(Arc::clone(text), Source::Template)),
    }
}
