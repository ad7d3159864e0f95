//! Finds which special names (`loop`, `caller`, `kwargs`, `varargs`) a body uses before it sets
//! them. Walks the tree in Jinja2's order. At load only.

use crate::ast::{Args, Expr, ExprKind, For, Macro, Stmt, StmtKind, Target};

/// Looks for the uses of some names.
pub(crate) struct Names<'p> {
    /// What is looked for, until it is set.
    wanted: Vec<&'static str>,
    found: Vec<&'static str>,
    macros: &'p [Option<Macro>],
    loops: &'p [Option<For>],
}

/// Those of `wanted` that the statements use before they set them.
pub(crate) fn undeclared(
    wanted: &[&'static str],
    body: &[Stmt],
    macros: &[Option<Macro>],
    loops: &[Option<For>],
) -> Vec<&'static str> {
    let mut names = Names { wanted: wanted.to_vec(), found: Vec::new(), macros, loops };
    names.body(body);
    names.found
}

impl Names<'_> {
    fn body(&mut self, body: &[Stmt]) {
        body.iter().for_each(|stmt| self.stmt(stmt));
    }

    fn store(&mut self, name: &str) {
        self.wanted.retain(|wanted| *wanted != name);
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.store(&name.name),
            Target::Attribute(..) => {}
            Target::Several(targets) => targets.iter().for_each(|target| self.target(target)),
        }
    }

    fn macro_body(&mut self, index: usize) {
        let macros = self.macros;
        let Some(Some(definition)) = macros.get(index) else { return };
        definition.parameters.iter().for_each(|name| self.store(&name.name));
        definition.defaults.iter().for_each(|expr| self.expr(expr));
        self.body(&definition.body);
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Print(expr) => self.expr(expr),
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    self.expr(condition);
                    self.body(body);
                }
                self.body(otherwise);
            }
            StmtKind::For(index) => {
                let loops = self.loops;
                let Some(Some(each)) = loops.get(*index) else { return };
                self.target(&each.target);
                self.expr(&each.iter);
                self.body(&each.body);
                self.body(&each.otherwise);
                each.test.iter().for_each(|(_, _, test)| self.expr(test));
            }
            StmtKind::Set(target, expr) => {
                self.target(target);
                self.expr(expr);
            }
            StmtKind::SetBlock(set) => {
                self.target(&set.target);
                set.filter.iter().for_each(|filter| self.expr(filter));
                self.body(&set.body);
            }
            StmtKind::With(with) => {
                with.targets.iter().for_each(|(target, _)| self.target(target));
                with.targets.iter().for_each(|(_, value)| self.expr(value));
                self.body(&with.body);
            }
            StmtKind::FilterBlock(block) => {
                self.body(&block.body);
                self.expr(&block.filter);
            }
            StmtKind::Macro(_, index) => self.macro_body(*index),
            StmtKind::CallBlock(call, index) => {
                if let Some(call) = call {
                    self.expr(&call.callee);
                    self.args(&call.args);
                }
                self.macro_body(*index);
            }
            StmtKind::Text(_)
            | StmtKind::Scoped(..)
            | StmtKind::Continue
            | StmtKind::Break
            | StmtKind::NoLoader => {}
        }
    }

    fn args(&mut self, args: &Args) {
        let named = args.named.iter().map(|(_, expr)| expr);
        let all = args.positional.iter().chain(named);
        all.chain(&args.all_of).chain(&args.all_named_of).for_each(|expr| self.expr(expr));
    }

    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Name(name) => {
                if let Some(at) = self.wanted.iter().position(|wanted| **wanted == *name.name) {
                    self.found.push(self.wanted.swap_remove(at));
                }
            }
            ExprKind::Const(_) | ExprKind::Captured => {}
            ExprKind::Attribute(of, _) => self.expr(of),
            ExprKind::Not(of) | ExprKind::Neg(of) | ExprKind::Pos(of) => self.expr(of),
            ExprKind::Item(pair)
            | ExprKind::And(pair)
            | ExprKind::Or(pair)
            | ExprKind::Binary(_, pair) => {
                self.expr(&pair.0);
                self.expr(&pair.1);
            }
            ExprKind::Slice(slice) => {
                self.expr(&slice.of);
                let parts = [&slice.start, &slice.stop, &slice.step];
                parts.into_iter().flatten().for_each(|expr| self.expr(expr));
            }
            ExprKind::Concat(items) | ExprKind::List(items) | ExprKind::Tuple(items) => {
                items.iter().for_each(|item| self.expr(item));
            }
            ExprKind::Compare(first, others) => {
                self.expr(first);
                others.iter().for_each(|(_, expr)| self.expr(expr));
            }
            ExprKind::If(parts) => {
                self.expr(&parts.0);
                self.expr(&parts.1);
                parts.2.iter().for_each(|expr| self.expr(expr));
            }
            ExprKind::Filter(call) => {
                self.expr(&call.input);
                self.args(&call.args);
            }
            ExprKind::Check(call) => {
                self.expr(&call.input);
                self.args(&call.args);
            }
            ExprKind::Call(call) => {
                self.expr(&call.callee);
                self.args(&call.args);
            }
            ExprKind::Dict(entries) => {
                for (key, value) in entries {
                    self.expr(key);
                    self.expr(value);
                }
            }
        }
    }
}
