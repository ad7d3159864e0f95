//! Runs statements.

use crate::ast::{FilterBlock, SetBlock, Stmt, StmtKind, With};
use crate::error::{Res, fail};
use crate::interp::{Flow, Interp};
use crate::print;
use crate::value::Value;

impl<'t> Interp<'t> {
    pub(crate) fn body(&mut self, body: &'t [Stmt]) -> Res<Flow> {
        for stmt in body {
            let flow = self.stmt(stmt).map_err(|fault| fault.at(stmt.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// A body that is inside another one.
    fn inner_body(&mut self, body: &'t [Stmt]) -> Res<Flow> {
        self.enter()?;
        let flow = self.body(body);
        self.leave();
        flow
    }

    fn stmt(&mut self, stmt: &'t Stmt) -> Res<Flow> {
        self.budget.step()?;
        match &stmt.kind {
            StmtKind::Text(text) => {
                self.budget.pay(text.len())?;
                self.out.push(text, crate::text::Source::Template);
            }
            StmtKind::Print(expr) => {
                let value = self.eval(expr)?;
                let mut out = std::mem::take(&mut self.out);
                let done = print::str_into(&value, &mut out, self);
                self.out = out;
                done?;
            }
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.inner_body(body);
                    }
                }
                return self.inner_body(otherwise);
            }
            StmtKind::For(index) => return self.run_loop(*index),
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(set) => return self.set_block(set),
            StmtKind::With(with) => return self.with(with),
            StmtKind::FilterBlock(block) => return self.filter_block(block),
            StmtKind::Scoped(scope, body) => {
                self.begin(scope)?;
                return self.inner_body(body);
            }
            StmtKind::Macro(name, index) => {
                let value = self.macro_value(*index);
                self.set_slot(name.slot.index, Some(value));
            }
            StmtKind::CallBlock(call, index) => {
                let value = self.call_block(call.as_ref(), *index)?;
                let mut out = std::mem::take(&mut self.out);
                let done = print::str_into(&value, &mut out, self);
                self.out = out;
                done?;
            }
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::NoLoader => fail!("no loader for this environment specified"),
        }
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn set_block(&mut self, set: &'t SetBlock) -> Res<Flow> {
        self.begin(&set.scope)?;
        let (text, flow) = self.capture(|interp| interp.inner_body(&set.body))?;
        if flow != Flow::Next {
            return Ok(flow);
        }
        self.budget.pay(text.len())?;
        let mut value = Value::Str(text.finish());
        if let Some(filter) = &set.filter {
            self.captured.push(value);
            let filtered = self.eval(filter);
            self.captured.pop();
            value = filtered?;
        }
        self.assign(&set.target, value)?;
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn filter_block(&mut self, block: &'t FilterBlock) -> Res<Flow> {
        self.begin(&block.scope)?;
        let (text, flow) = self.capture(|interp| interp.inner_body(&block.body))?;
        if flow != Flow::Next {
            return Ok(flow);
        }
        self.budget.pay(text.len())?;
        self.captured.push(Value::Str(text.finish()));
        let filtered = self.eval(&block.filter);
        self.captured.pop();
        let mut out = std::mem::take(&mut self.out);
        let done = filtered.and_then(|value| print::str_into(&value, &mut out, self));
        self.out = out;
        done.map(|()| Flow::Next)
    }

    #[inline(never)]
    fn with(&mut self, with: &'t With) -> Res<Flow> {
        self.begin(&with.scope)?;
        for (target, expr) in &with.targets {
            let value = self.eval(expr)?;
            self.assign(target, value)?;
        }
        self.inner_body(&with.body)
    }
}
