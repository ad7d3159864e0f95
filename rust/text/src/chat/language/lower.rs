//! [2] From the parser's tree, which borrows from the source, to a `Program`. Load time only, on the
//! thread of `compile`: the parser's tree may be as deep as the source is long.

use std::collections::HashMap;
use std::sync::Arc;

use minijinja::machinery::ast;
use minijinja::value::ValueKind;

use super::checks;
use super::filters;
use super::program::{
    Arg, BinaryOp, CheckCall, CompareOp, Constant, Expr, FilterCall, For, Macro, Name, Program,
    Slice, Stmt, StmtKind, Target,
};

/// What is wrong with a template, and the line of it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) line: u16,
    pub(crate) message: String,
}

/// Turns a parsed template into a program.
pub(crate) fn lower(template: &ast::Stmt) -> Result<Program, Refusal> {
    let mut lowering = Lowering::default();
    let ast::Stmt::Template(template) = template else {
        return Err(Refusal { line: 0, message: "not a template".into() });
    };
    let body = lowering.body(&template.children)?;
    let known = |name: &str| lowering.numbers.get(name).copied();
    Ok(Program {
        body,
        loop_name: known("loop"),
        caller_name: known("caller"),
        varargs_name: known("varargs"),
        kwargs_name: known("kwargs"),
        ..lowering.program
    })
}

#[derive(Default)]
struct Lowering {
    program: Program,
    numbers: HashMap<Arc<str>, Name>,
    /// Levels of statements and expressions that are open.
    depth: usize,
    line: u16,
}

type Lowered<T> = Result<T, Refusal>;

impl Lowering {
    fn refuse<T>(&self, message: impl Into<String>) -> Lowered<T> {
        Err(Refusal { line: self.line, message: message.into() })
    }

    fn name(&mut self, name: &str) -> Name {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = Name(self.program.names.len());
        let name: Arc<str> = name.into();
        self.program.names.push(Arc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    fn enter(&mut self, line: u16) -> Lowered<()> {
        self.line = line;
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return self.refuse(format!("nested deeper than {MAX_NESTING}"));
        }
        Ok(())
    }

    fn body(&mut self, body: &[ast::Stmt]) -> Lowered<Vec<Stmt>> {
        let mut out = Vec::with_capacity(body.len());
        for stmt in body {
            let line = line_of(stmt);
            self.enter(line)?;
            let kind = self.stmt(stmt)?;
            self.depth -= 1;
            match kind {
                Lower::One(kind) => out.push(Stmt { line, kind }),
                Lower::Inline(body) => out.extend(body),
            }
        }
        Ok(out)
    }

    fn stmt(&mut self, stmt: &ast::Stmt) -> Lowered<Lower> {
        let kind = match stmt {
            ast::Stmt::EmitRaw(raw) => StmtKind::Text(raw.raw.into()),
            ast::Stmt::EmitExpr(emit) => StmtKind::Print(self.expr(&emit.expr)?),
            ast::Stmt::IfCond(condition) => self.condition(condition)?,
            ast::Stmt::ForLoop(each) => StmtKind::For(self.for_loop(each)?),
            ast::Stmt::Set(set) => StmtKind::Set(self.target(&set.target)?, self.expr(&set.expr)?),
            ast::Stmt::SetBlock(set) => {
                let filter = self.optional(set.filter.as_ref())?;
                StmtKind::SetBlock(self.target(&set.target)?, filter, self.body(&set.body)?)
            }
            ast::Stmt::WithBlock(with) => {
                let mut values = Vec::with_capacity(with.assignments.len());
                for (target, value) in &with.assignments {
                    values.push((self.target(target)?, self.expr(value)?));
                }
                StmtKind::With(values, self.body(&with.body)?)
            }
            ast::Stmt::FilterBlock(block) => {
                StmtKind::Filter(self.expr(&block.filter)?, self.body(&block.body)?)
            }
            ast::Stmt::Macro(declared) => StmtKind::Macro(self.declared_macro(declared)?),
            ast::Stmt::CallBlock(block) => {
                let call = self.call(&block.call)?;
                StmtKind::CallBlock(call, self.declared_macro(&block.macro_decl)?)
            }
            ast::Stmt::Continue(_) => StmtKind::Continue,
            ast::Stmt::Break(_) => StmtKind::Break,
            ast::Stmt::Do(call) => StmtKind::Do(self.call(&call.call)?),
            // Nothing is escaped here.
            ast::Stmt::AutoEscape(block) => return Ok(Lower::Inline(self.body(&block.body)?)),
            ast::Stmt::Block(block) => return Ok(Lower::Inline(self.body(&block.body)?)),
            ast::Stmt::Template(_)
            | ast::Stmt::Import(_)
            | ast::Stmt::FromImport(_)
            | ast::Stmt::Extends(_)
            | ast::Stmt::Include(_) => return self.refuse("there are no other templates to load"),
        };
        Ok(Lower::One(kind))
    }

    /// Branches side by side: the parser nests every `elif` in the one before.
    fn condition(&mut self, first: &ast::IfCond) -> Lowered<StmtKind> {
        let mut branches = vec![(self.expr(&first.expr)?, self.body(&first.true_body)?)];
        let mut rest = &first.false_body;
        while let [ast::Stmt::IfCond(next)] = rest.as_slice() {
            self.line = next.span().start_line;
            branches.push((self.expr(&next.expr)?, self.body(&next.true_body)?));
            rest = &next.false_body;
        }
        Ok(StmtKind::If(branches, self.body(rest)?))
    }

    fn for_loop(&mut self, each: &ast::ForLoop) -> Lowered<usize> {
        let made = For {
            target: self.target(&each.target)?,
            iter: self.expr(&each.iter)?,
            condition: self.optional(each.filter_expr.as_ref())?,
            recursive: each.recursive,
            body: self.body(&each.body)?,
            otherwise: self.body(&each.else_body)?,
        };
        self.program.loops.push(made);
        Ok(self.program.loops.len() - 1)
    }

    fn declared_macro(&mut self, declared: &ast::Macro) -> Lowered<usize> {
        let mut parameters = Vec::with_capacity(declared.args.len());
        for parameter in &declared.args {
            match self.target(parameter)? {
                Target::Name(name) => parameters.push(name),
                _ => return self.refuse("a parameter of a macro must be a name"),
            }
        }
        let made = Macro {
            name: self.name(declared.name),
            parameters,
            defaults: self.exprs(&declared.defaults)?,
            body: self.body(&declared.body)?,
        };
        self.program.macros.push(made);
        Ok(self.program.macros.len() - 1)
    }

    fn target(&mut self, target: &ast::Expr) -> Lowered<Target> {
        match target {
            ast::Expr::Var(var) => Ok(Target::Name(self.name(var.id))),
            ast::Expr::GetAttr(attr) => {
                Ok(Target::Attribute(self.expr(&attr.expr)?, attr.name.into()))
            }
            ast::Expr::List(list) => {
                self.enter(list.span().start_line)?;
                let targets = list.items.iter().map(|item| self.target(item));
                let targets = targets.collect::<Lowered<_>>()?;
                self.depth -= 1;
                Ok(Target::Several(targets))
            }
            _ => self.refuse("this cannot be assigned to"),
        }
    }

    fn optional(&mut self, expr: Option<&ast::Expr>) -> Lowered<Option<Expr>> {
        expr.map(|expr| self.expr(expr)).transpose()
    }

    fn exprs(&mut self, exprs: &[ast::Expr]) -> Lowered<Vec<Expr>> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn boxed(&mut self, expr: &ast::Expr) -> Lowered<Box<Expr>> {
        Ok(Box::new(self.expr(expr)?))
    }

    fn expr(&mut self, expr: &ast::Expr) -> Lowered<Expr> {
        self.enter(expr.span().start_line)?;
        let lowered = match expr {
            ast::Expr::Const(constant) => Expr::Const(self.constant(&constant.value)?),
            ast::Expr::Var(var) => Expr::Var(self.name(var.id)),
            ast::Expr::UnaryOp(unary) => match unary.op {
                ast::UnaryOpKind::Not => Expr::Not(self.boxed(&unary.expr)?),
                ast::UnaryOpKind::Neg => Expr::Neg(self.boxed(&unary.expr)?),
            },
            ast::Expr::BinOp(binary) => self.binary(binary)?,
            ast::Expr::Compare(compare) => {
                let mut operands = Vec::with_capacity(compare.ops.len());
                for part in &compare.ops {
                    operands.push((compare_op(part.op), self.expr(&part.expr)?));
                }
                Expr::Compare(self.boxed(&compare.expr)?, operands)
            }
            ast::Expr::IfExpr(choice) => Expr::If(Box::new((
                self.expr(&choice.test_expr)?,
                self.expr(&choice.true_expr)?,
                self.optional(choice.false_expr.as_ref())?,
            ))),
            ast::Expr::GetAttr(attr) => Expr::Attr(self.boxed(&attr.expr)?, attr.name.into()),
            ast::Expr::GetItem(item) => {
                Expr::Item(Box::new((self.expr(&item.expr)?, self.expr(&item.subscript_expr)?)))
            }
            ast::Expr::Slice(slice) => Expr::Slice(Box::new(Slice {
                of: self.expr(&slice.expr)?,
                start: self.optional(slice.start.as_ref())?,
                stop: self.optional(slice.stop.as_ref())?,
                step: self.optional(slice.step.as_ref())?,
            })),
            ast::Expr::Filter(filter) => Expr::Filter(Box::new(FilterCall {
                input: match &filter.expr {
                    Some(input) => self.expr(input)?,
                    None => Expr::Captured,
                },
                name: filter.name.into(),
                filter: filters::find(filter.name),
                args: self.args(&filter.args)?,
            })),
            ast::Expr::Test(test) => Expr::Check(Box::new(CheckCall {
                input: self.expr(&test.expr)?,
                name: test.name.into(),
                check: checks::find(test.name),
                args: self.args(&test.args)?,
            })),
            ast::Expr::Call(call) => self.call(call)?,
            ast::Expr::List(list) => Expr::List(self.exprs(&list.items)?),
            ast::Expr::Tuple(tuple) => Expr::Tuple(self.exprs(&tuple.items)?),
            ast::Expr::Map(map) => {
                let mut entries = Vec::with_capacity(map.keys.len());
                for (key, value) in map.keys.iter().zip(&map.values) {
                    entries.push((self.expr(key)?, self.expr(value)?));
                }
                Expr::Map(entries)
            }
        };
        self.depth -= 1;
        Ok(lowered)
    }

    fn call(&mut self, call: &ast::Call) -> Lowered<Expr> {
        let args = self.args(&call.args)?;
        Ok(match &call.expr {
            ast::Expr::GetAttr(method) => {
                Expr::Method(Box::new((self.expr(&method.expr)?, method.name.into(), args)))
            }
            function => Expr::Call(Box::new((self.expr(function)?, args))),
        })
    }

    fn args(&mut self, args: &[ast::CallArg]) -> Lowered<Vec<Arg>> {
        let lower = |arg: &ast::CallArg| {
            Ok(match arg {
                ast::CallArg::Pos(value) => Arg::Positional(self.expr(value)?),
                ast::CallArg::Kwarg(name, value) => Arg::Named((*name).into(), self.expr(value)?),
                ast::CallArg::PosSplat(list) => Arg::AllOf(self.expr(list)?),
                ast::CallArg::KwargSplat(map) => Arg::AllNamedOf(self.expr(map)?),
            })
        };
        args.iter().map(lower).collect()
    }

    /// Operators that associate to the left become one level, however long the row is.
    fn binary(&mut self, last: &ast::BinOp) -> Lowered<Expr> {
        use ast::BinOpKind as Kind;
        let same = |kind: Kind| match kind {
            Kind::ScAnd => Some(0),
            Kind::ScOr => Some(1),
            _ => arithmetic(kind).map(|_| 2),
        };
        let Some(level) = same(last.op) else {
            let right = vec![(comparison(last.op), self.expr(&last.right)?)];
            return Ok(Expr::Compare(self.boxed(&last.left)?, right));
        };
        let mut rights = vec![(last.op, &last.right)];
        let mut left = &last.left;
        while let ast::Expr::BinOp(inner) = left {
            if same(inner.op) != Some(level) {
                break;
            }
            rights.push((inner.op, &inner.right));
            left = &inner.left;
        }
        let first = self.expr(left)?;
        let mut rest = Vec::with_capacity(rights.len());
        for (op, right) in rights.into_iter().rev() {
            rest.push((op, self.expr(right)?));
        }
        let all = |first, rest: Vec<(Kind, Expr)>| {
            std::iter::once(first).chain(rest.into_iter().map(|(_, expr)| expr)).collect()
        };
        Ok(match level {
            0 => Expr::All(all(first, rest)),
            1 => Expr::Any(all(first, rest)),
            _ => {
                let op = |(kind, expr)| arithmetic(kind).map(|op| (op, expr));
                Expr::Chain(Box::new(first), rest.into_iter().filter_map(op).collect())
            }
        })
    }

    fn constant(&self, value: &minijinja::Value) -> Lowered<Constant> {
        match value.kind() {
            ValueKind::None => Ok(Constant::None),
            ValueKind::Bool => Ok(Constant::Bool(value.is_true())),
            ValueKind::String => Ok(Constant::Str(value.as_str().unwrap_or_default().into())),
            ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
                Ok(value) => Ok(Constant::Int(value)),
                Err(_) => self.refuse("an integer is too large"),
            },
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(value) => Ok(Constant::Float(value)),
                Err(_) => self.refuse("a number cannot be read"),
            },
            kind => self.refuse(format!("a constant cannot be a {kind}")),
        }
    }
}

/// A statement, or several that take its place.
enum Lower {
    One(StmtKind),
    Inline(Vec<Stmt>),
}

fn arithmetic(kind: ast::BinOpKind) -> Option<BinaryOp> {
    use ast::BinOpKind as Kind;
    Some(match kind {
        Kind::Add => BinaryOp::Add,
        Kind::Sub => BinaryOp::Sub,
        Kind::Mul => BinaryOp::Mul,
        Kind::Div => BinaryOp::Div,
        Kind::FloorDiv => BinaryOp::FloorDiv,
        Kind::Rem => BinaryOp::Rem,
        Kind::Pow => BinaryOp::Pow,
        Kind::Concat => BinaryOp::Concat,
        _ => return None,
    })
}

fn comparison(kind: ast::BinOpKind) -> CompareOp {
    use ast::BinOpKind as Kind;
    match kind {
        Kind::Ne => CompareOp::Ne,
        Kind::Lt => CompareOp::Lt,
        Kind::Lte => CompareOp::Le,
        Kind::Gt => CompareOp::Gt,
        Kind::Gte => CompareOp::Ge,
        Kind::In => CompareOp::In,
        _ => CompareOp::Eq,
    }
}

fn compare_op(kind: ast::CompareOpKind) -> CompareOp {
    use ast::CompareOpKind as Kind;
    match kind {
        Kind::Eq => CompareOp::Eq,
        Kind::Ne => CompareOp::Ne,
        Kind::Lt => CompareOp::Lt,
        Kind::Lte => CompareOp::Le,
        Kind::Gt => CompareOp::Gt,
        Kind::Gte => CompareOp::Ge,
        Kind::In => CompareOp::In,
        Kind::NotIn => CompareOp::NotIn,
    }
}

fn line_of(stmt: &ast::Stmt) -> u16 {
    let span = match stmt {
        ast::Stmt::Template(node) => node.span(),
        ast::Stmt::EmitExpr(node) => node.span(),
        ast::Stmt::EmitRaw(node) => node.span(),
        ast::Stmt::ForLoop(node) => node.span(),
        ast::Stmt::IfCond(node) => node.span(),
        ast::Stmt::WithBlock(node) => node.span(),
        ast::Stmt::Set(node) => node.span(),
        ast::Stmt::SetBlock(node) => node.span(),
        ast::Stmt::AutoEscape(node) => node.span(),
        ast::Stmt::FilterBlock(node) => node.span(),
        ast::Stmt::Block(node) => node.span(),
        ast::Stmt::Import(node) => node.span(),
        ast::Stmt::FromImport(node) => node.span(),
        ast::Stmt::Extends(node) => node.span(),
        ast::Stmt::Include(node) => node.span(),
        ast::Stmt::Macro(node) => node.span(),
        ast::Stmt::CallBlock(node) => node.span(),
        ast::Stmt::Continue(node) => node.span(),
        ast::Stmt::Break(node) => node.span(),
        ast::Stmt::Do(node) => node.span(),
    };
    span.start_line
}

/// Levels of statements and expressions in each other. Templates in use have about 20.
const MAX_NESTING: usize = 120;
