//! Parses Jinja2's expressions by precedence. At load only. No expression is deeper than
//! `MAX_DEPTH`.

use std::sync::Arc;

use crate::ast::{
    Args, BinaryOp, Call, CheckCall, CompareOp, Constant, Expr, ExprKind, FilterCall, Slice,
};
use crate::builtins::Check;
use crate::builtins::Filter;
use crate::lexer::TokenKind;
use crate::parser::{Parsed, Parser, no_args, unplaced};

/// Levels of precedence, the loosest first.
const OR: u8 = 1;
const AND: u8 = 2;
const NOT: u8 = 3;
const COMPARE: u8 = 4;
const SUM: u8 = 5;
const CONCAT: u8 = 6;
const PRODUCT: u8 = 7;
const POWER: u8 = 8;

#[derive(Clone, Copy)]
enum Infix {
    Or,
    And,
    Compare(CompareOp, usize),
    Concat,
    Binary(BinaryOp),
}

impl Parser {
    /// An expression; conditional ones only if asked for.
    pub(crate) fn expression(&mut self, conditional: bool) -> Parsed<Expr> {
        self.nested(|parser| {
            let mut expr = parser.operators(OR)?;
            while conditional && parser.skip_name("if") {
                let condition = parser.operators(OR)?;
                let otherwise = match parser.skip_name("else") {
                    true => Some(parser.expression(true)?),
                    false => None,
                };
                let depth = expr.depth.max(condition.depth);
                let depth = depth.max(otherwise.as_ref().map_or(0, |expr| expr.depth));
                expr = parser.node(ExprKind::If(Box::new((condition, expr, otherwise))), depth)?;
            }
            Ok(expr)
        })
    }

    /// One expression, or a tuple of several; `explicit` is for one in parentheses, which may be empty.
    pub(crate) fn tuple(
        &mut self,
        conditional: bool,
        ends: &'static [&'static str],
        explicit: bool,
    ) -> Parsed<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        while !self.ends_tuple(ends) {
            items.push(self.expression(conditional)?);
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            Some(only) if !is_tuple => Ok(only),
            None if !explicit => self.fail(format!(
                "Expected an expression, got {}",
                crate::parser::described(self.kind())
            )),
            last => {
                items.extend(last);
                let depth = deepest(&items);
                self.node(ExprKind::Tuple(items), depth)
            }
        }
    }

    /// A node above others of this depth.
    fn node(&self, kind: ExprKind, below: u16) -> Parsed<Expr> {
        if below >= MAX_DEPTH {
            return self.fail(format!("an expression is deeper than {MAX_DEPTH}"));
        }
        Ok(Expr { depth: below + 1, kind })
    }

    /// Operators that bind at least as tightly as `least`.
    fn operators(&mut self, least: u8) -> Parsed<Expr> {
        let mut left = if least <= NOT && self.is_name("not") {
            self.advance();
            let operand = self.nested(|parser| parser.operators(NOT))?;
            let depth = operand.depth;
            self.node(ExprKind::Not(Box::new(operand)), depth)?
        } else {
            self.unary(true)?
        };
        while let Some((infix, level)) = self.infix().filter(|(_, level)| *level >= least) {
            left = match infix {
                Infix::Or | Infix::And => {
                    self.advance();
                    let right = self.operators(level + 1)?;
                    let depth = left.depth.max(right.depth);
                    let pair = Box::new((left, right));
                    let is_or = matches!(infix, Infix::Or);
                    self.node(if is_or { ExprKind::Or(pair) } else { ExprKind::And(pair) }, depth)?
                }
                Infix::Compare(..) => self.comparison(left)?,
                Infix::Concat => {
                    let mut items = vec![left];
                    while self.skip_op("~") {
                        items.push(self.operators(PRODUCT)?);
                    }
                    let depth = deepest(&items);
                    self.node(ExprKind::Concat(items), depth)?
                }
                Infix::Binary(op) => {
                    self.advance();
                    let right = self.operators(level + 1)?;
                    let depth = left.depth.max(right.depth);
                    self.node(ExprKind::Binary(op, Box::new((left, right))), depth)?
                }
            };
        }
        Ok(left)
    }

    fn comparison(&mut self, left: Expr) -> Parsed<Expr> {
        let mut depth = left.depth;
        let mut others = Vec::new();
        while let Some((Infix::Compare(op, tokens), _)) = self.infix() {
            (0..tokens).for_each(|_| self.advance());
            let right = self.operators(SUM)?;
            depth = depth.max(right.depth);
            others.push((op, right));
        }
        self.node(ExprKind::Compare(Box::new(left), others), depth)
    }

    /// The operator that the current token begins, and its level.
    fn infix(&self) -> Option<(Infix, u8)> {
        let compare = |op, tokens| Some((Infix::Compare(op, tokens), COMPARE));
        let binary = |op, level| Some((Infix::Binary(op), level));
        match self.kind() {
            TokenKind::Name(name) => match &**name {
                "or" => Some((Infix::Or, OR)),
                "and" => Some((Infix::And, AND)),
                "in" => compare(CompareOp::In, 1),
                "not" => match self.next_kind() {
                    TokenKind::Name(name) if **name == *"in" => compare(CompareOp::NotIn, 2),
                    _ => None,
                },
                _ => None,
            },
            TokenKind::Op(op) => match *op {
                "==" => compare(CompareOp::Eq, 1),
                "!=" => compare(CompareOp::Ne, 1),
                "<" => compare(CompareOp::Lt, 1),
                "<=" => compare(CompareOp::Le, 1),
                ">" => compare(CompareOp::Gt, 1),
                ">=" => compare(CompareOp::Ge, 1),
                "~" => Some((Infix::Concat, CONCAT)),
                "+" => binary(BinaryOp::Add, SUM),
                "-" => binary(BinaryOp::Sub, SUM),
                "*" => binary(BinaryOp::Mul, PRODUCT),
                "/" => binary(BinaryOp::Div, PRODUCT),
                "//" => binary(BinaryOp::FloorDiv, PRODUCT),
                "%" => binary(BinaryOp::Rem, PRODUCT),
                "**" => binary(BinaryOp::Pow, POWER),
                _ => None,
            },
            _ => None,
        }
    }

    fn unary(&mut self, with_filter: bool) -> Parsed<Expr> {
        let negative = self.is_op("-");
        let mut expr = if negative || self.is_op("+") {
            self.advance();
            let operand = self.nested(|parser| parser.unary(false))?;
            let depth = operand.depth;
            let operand = Box::new(operand);
            let kind = if negative { ExprKind::Neg(operand) } else { ExprKind::Pos(operand) };
            self.node(kind, depth)?
        } else {
            self.primary()?
        };
        expr = self.postfix(expr)?;
        if !with_filter {
            return Ok(expr);
        }
        loop {
            expr = if self.skip_op("|") {
                self.filter(expr)?
            } else if self.skip_name("is") {
                self.check(expr)?
            } else if self.is_op("(") {
                self.call(expr)?
            } else {
                return Ok(expr);
            };
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let kind = match self.kind().clone() {
            TokenKind::Name(name) => match &*name {
                "true" | "True" => ExprKind::Const(Constant::Bool(true)),
                "false" | "False" => ExprKind::Const(Constant::Bool(false)),
                "none" | "None" => ExprKind::Const(Constant::None),
                _ => ExprKind::Name(unplaced(name)),
            },
            TokenKind::Int(value) => ExprKind::Const(Constant::Int(value)),
            TokenKind::Float(value) => ExprKind::Const(Constant::Float(value)),
            TokenKind::Str(first) => {
                if !matches!(self.next_kind(), TokenKind::Str(_)) {
                    ExprKind::Const(Constant::Str(first))
                } else {
                    let mut text = first.to_string();
                    while let TokenKind::Str(next) = self.next_kind() {
                        text.push_str(next);
                        self.advance();
                    }
                    ExprKind::Const(Constant::Str(text.into()))
                }
            }
            TokenKind::Op("(") => {
                self.advance();
                let inner = self.tuple(true, &[], true)?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            TokenKind::Op("[") => return self.list(),
            TokenKind::Op("{") => return self.dict(),
            _ => return self.unexpected(),
        };
        self.advance();
        Ok(Expr { depth: 0, kind })
    }

    fn list(&mut self) -> Parsed<Expr> {
        self.advance();
        let mut items = Vec::new();
        while !self.is_op("]") {
            items.push(self.expression(true)?);
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op("]")?;
        let depth = deepest(&items);
        self.node(ExprKind::List(items), depth)
    }

    fn dict(&mut self) -> Parsed<Expr> {
        self.advance();
        let mut entries = Vec::new();
        let mut depth = 0;
        while !self.is_op("}") {
            let key = self.expression(true)?;
            self.expect_op(":")?;
            let value = self.expression(true)?;
            depth = depth.max(key.depth).max(value.depth);
            entries.push((key, value));
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op("}")?;
        self.node(ExprKind::Dict(entries), depth)
    }

    fn postfix(&mut self, mut expr: Expr) -> Parsed<Expr> {
        loop {
            if self.skip_op(".") {
                let depth = expr.depth;
                let kind = match self.kind().clone() {
                    TokenKind::Name(name) => ExprKind::Attribute(Box::new(expr), name),
                    TokenKind::Int(index) => {
                        let kind = ExprKind::Const(Constant::Int(index));
                        ExprKind::Item(Box::new((expr, Expr { depth: 0, kind })))
                    }
                    _ => return self.fail("expected name or number"),
                };
                self.advance();
                expr = self.node(kind, depth)?;
            } else if self.skip_op("[") {
                expr = self.subscript(expr)?;
            } else if self.is_op("(") {
                expr = self.call(expr)?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn subscript(&mut self, of: Expr) -> Parsed<Expr> {
        let mut indices = Vec::new();
        let mut depth = of.depth;
        while !self.is_op("]") {
            if !indices.is_empty() {
                self.expect_op(",")?;
            }
            let start = if self.is_op(":") { None } else { Some(self.expression(true)?) };
            depth = depth.max(start.as_ref().map_or(0, |expr| expr.depth));
            if !self.skip_op(":") {
                indices.extend(start);
                continue;
            }
            let stop = self.slice_part()?;
            let step = if self.skip_op(":") { self.slice_part()? } else { None };
            let parts = [&stop, &step].into_iter().flatten().map(|expr| expr.depth);
            depth = parts.fold(depth, u16::max);
            if !self.is_op("]") || !indices.is_empty() {
                return self.fail("a slice cannot be one of several indices");
            }
            self.expect_op("]")?;
            return self.node(ExprKind::Slice(Box::new(Slice { start, stop, step, of })), depth);
        }
        self.expect_op("]")?;
        let index = match indices.pop() {
            Some(only) if indices.is_empty() => only,
            last => {
                indices.extend(last);
                Expr { depth, kind: ExprKind::Tuple(indices) }
            }
        };
        self.node(ExprKind::Item(Box::new((of, index))), depth)
    }

    fn slice_part(&mut self) -> Parsed<Option<Expr>> {
        if [":", "]", ","].iter().any(|op| self.is_op(op)) {
            return Ok(None);
        }
        self.expression(true).map(Some)
    }

    fn call(&mut self, callee: Expr) -> Parsed<Expr> {
        let (args, depth) = self.args()?;
        let depth = depth.max(callee.depth);
        self.node(ExprKind::Call(Box::new(Call { callee, args })), depth)
    }

    /// Arguments in parentheses, and the depth of the deepest one.
    fn args(&mut self) -> Parsed<(Args, u16)> {
        let mut args = no_args();
        let mut deepest = 0;
        self.expect_op("(")?;
        while !self.is_op(")") {
            deepest = deepest.max(self.argument(&mut args)?);
            if !self.is_op(")") {
                self.expect_op(",")?;
            }
        }
        self.expect_op(")")?;
        Ok((args, deepest))
    }

    /// One argument and its depth.
    fn argument(&mut self, args: &mut Args) -> Parsed<u16> {
        let is_named = matches!(self.kind(), TokenKind::Name(_))
            && matches!(self.next_kind(), TokenKind::Op("="));
        let (after_all, after_named) = (args.all_of.is_some(), args.all_named_of.is_some());
        let plain = !self.is_op("*") && !self.is_op("**") && !is_named;
        let late = (plain || self.is_op("*")) && after_all || plain && !args.named.is_empty();
        if after_named || late {
            return self.fail("invalid syntax for function call expression");
        }
        if self.skip_op("*") {
            let expr = self.expression(true)?;
            return Ok(args.all_of.insert(expr).depth);
        }
        if self.skip_op("**") {
            let expr = self.expression(true)?;
            return Ok(args.all_named_of.insert(expr).depth);
        }
        if !is_named {
            let expr = self.expression(true)?;
            let depth = expr.depth;
            args.positional.push(expr);
            return Ok(depth);
        }
        let name = self.expect_name()?;
        if args.named.iter().any(|(known, _)| *known == name) {
            return self.fail("keyword argument repeated");
        }
        self.expect_op("=")?;
        let expr = self.expression(true)?;
        let depth = expr.depth;
        args.named.push((name, expr));
        Ok(depth)
    }

    /// A filter from its name on.
    pub(crate) fn filter(&mut self, input: Expr) -> Parsed<Expr> {
        let name = self.dotted_name()?;
        let (args, depth) = match self.is_op("(") {
            true => self.args()?,
            false => (no_args(), 0),
        };
        let depth = depth.max(input.depth);
        let filter = Filter::named(&name);
        self.node(ExprKind::Filter(Box::new(FilterCall { input, name, filter, args })), depth)
    }

    /// A test from the word after `is` on.
    fn check(&mut self, input: Expr) -> Parsed<Expr> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let (args, depth) = match self.kind() {
            TokenKind::Op("(") => self.args()?,
            TokenKind::Name(word) if matches!(&**word, "else" | "or" | "and") => (no_args(), 0),
            TokenKind::Name(word) if **word == *"is" => {
                return self.fail("You cannot chain multiple tests with is");
            }
            TokenKind::Name(_)
            | TokenKind::Str(_)
            | TokenKind::Int(_)
            | TokenKind::Float(_)
            | TokenKind::Op("[" | "{") => {
                let operand = self.primary()?;
                let operand = self.postfix(operand)?;
                let depth = operand.depth;
                (Args { positional: vec![operand], ..no_args() }, depth)
            }
            _ => (no_args(), 0),
        };
        let depth = depth.max(input.depth);
        let check = Check::named(&name);
        let call = CheckCall { input, name, check, args };
        let expr = self.node(ExprKind::Check(Box::new(call)), depth)?;
        if !negated {
            return Ok(expr);
        }
        let depth = expr.depth;
        self.node(ExprKind::Not(Box::new(expr)), depth)
    }

    fn dotted_name(&mut self) -> Parsed<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }
}

fn deepest(items: &[Expr]) -> u16 {
    items.iter().map(|expr| expr.depth).max().unwrap_or(0)
}

/// Levels of one expression.
const MAX_DEPTH: u16 = 200;
