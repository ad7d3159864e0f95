//! The syntax tree of a compiled template. Its depth is bounded, and every variable has a slot.

use std::sync::Arc;

use crate::builtins::Check;
use crate::builtins::Filter;

/// The place of a variable: the number of functions outwards, and the slot in that function's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) hops: u16,
    pub(crate) index: u32,
}

/// A use of a variable.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) name: Arc<str>,
    pub(crate) slot: Slot,
}

/// The value of a slot when its scope begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// A variable of the rendering, by its index in `Program::variables`.
    Resolve(usize),
    /// The value of another slot.
    Alias(Slot),
    /// Nothing.
    Nothing,
}

/// The slots of a scope that are set when it begins.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) loads: Vec<(u32, Load)>,
}

/// A function: the template itself, a macro, a call block, a recursive loop.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) slots: u32,
}

/// A whole template.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) body: Vec<Stmt>,
    pub(crate) scope: Scope,
    pub(crate) root: Function,
    pub(crate) macros: Vec<Macro>,
    pub(crate) loops: Vec<For>,
    /// Names that the template takes from the rendering.
    pub(crate) variables: Vec<Arc<str>>,
}

#[derive(Debug)]
pub(crate) struct Stmt {
    pub(crate) line: u32,
    pub(crate) kind: StmtKind,
}

#[derive(Debug)]
pub(crate) enum StmtKind {
    Text(Arc<str>),
    Print(Expr),
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    /// A loop of the program.
    For(usize),
    Set(Target, Expr),
    SetBlock(Box<SetBlock>),
    With(Box<With>),
    FilterBlock(Box<FilterBlock>),
    /// A `block` or another statement that only opens a scope.
    Scoped(Scope, Vec<Stmt>),
    /// Declares a macro of the program.
    Macro(Name, usize),
    /// Calls something with a macro of the program as its `caller`. `None` prints that macro's text.
    CallBlock(Option<Call>, usize),
    Continue,
    Break,
    /// `include`, `import` and `extends`, which need a loader.
    NoLoader,
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) test: Option<(Scope, Target, Expr)>,
    /// The slot of `loop`, if the body uses it.
    pub(crate) loop_slot: Option<u32>,
    /// For a recursive loop, its function.
    pub(crate) recursive: Option<Function>,
    pub(crate) scope: Scope,
    pub(crate) body: Vec<Stmt>,
    pub(crate) else_scope: Scope,
    pub(crate) otherwise: Vec<Stmt>,
}

impl For {
    /// A condition, its line, and the value with which a round does nothing, and so do all rounds after it: the body is
    /// one `if` that this condition keeps from doing anything, and it depends on nothing that a round changes without
    /// doing something. So a loop that looks for one item among many, as published templates do for the turn before
    /// each turn, ends where it has found it.
    pub(crate) fn idle(&self) -> Option<(u32, &Expr, bool)> {
        let Target::Name(item) = &self.target else { return None };
        if self.test.is_some() || self.recursive.is_some() {
            return None;
        }
        let is_empty = |stmt: &&Stmt| matches!(&stmt.kind, StmtKind::Text(text) if text.is_empty());
        let mut body = self.body.iter().filter(|stmt| !is_empty(stmt));
        let (Some(only), None) = (body.next(), body.next()) else { return None };
        let StmtKind::If(branches, otherwise) = &only.kind else { return None };
        let (condition, first) = branches.first()?;
        let is_fixed = |condition: &Expr| condition.is_fixed(&item.name);
        if first.iter().all(|stmt| is_empty(&stmt)) {
            return is_fixed(condition).then_some((only.line, condition, true));
        }
        if branches.len() > 1 || !otherwise.is_empty() {
            return None;
        }
        // Nothing behind the first operand of `and` is looked at if that is false.
        let mut condition = condition;
        while let ExprKind::And(pair) = &condition.kind {
            if is_fixed(condition) {
                break;
            }
            condition = &pair.0;
        }
        is_fixed(condition).then_some((only.line, condition, false))
    }
}

#[derive(Debug)]
pub(crate) struct SetBlock {
    pub(crate) target: Target,
    /// A chain of filters whose innermost operand is `ExprKind::Captured`.
    pub(crate) filter: Option<Expr>,
    pub(crate) scope: Scope,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(crate) struct With {
    pub(crate) targets: Vec<(Target, Expr)>,
    pub(crate) scope: Scope,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(crate) struct FilterBlock {
    pub(crate) filter: Expr,
    pub(crate) scope: Scope,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Arc<str>,
    pub(crate) parameters: Vec<Name>,
    /// Default values of the last parameters.
    pub(crate) defaults: Vec<Expr>,
    pub(crate) caller: Option<u32>,
    pub(crate) kwargs: Option<u32>,
    pub(crate) varargs: Option<u32>,
    /// Whether `caller` is one of the parameters.
    pub(crate) explicit_caller: bool,
    pub(crate) function: Function,
    pub(crate) scope: Scope,
    pub(crate) body: Vec<Stmt>,
}

/// The target of an assignment.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Name(Name),
    /// An attribute of a namespace.
    Attribute(Name, Arc<str>),
    Several(Vec<Target>),
}

#[derive(Clone, Debug)]
pub(crate) enum Constant {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// An expression and how deep it is.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) depth: u16,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    Const(Constant),
    Name(Name),
    /// The text that a filter block works on.
    Captured,
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<(Expr, Expr)>),
    Slice(Box<Slice>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    Binary(BinaryOp, Box<(Expr, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// Condition, then and else.
    If(Box<(Expr, Expr, Option<Expr>)>),
    Filter(Box<FilterCall>),
    Check(Box<CheckCall>),
    Call(Box<Call>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
}

/// The indices of `x[a:b:c]`.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) start: Option<Expr>,
    pub(crate) stop: Option<Expr>,
    pub(crate) step: Option<Expr>,
    pub(crate) of: Expr,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) callee: Expr,
    pub(crate) args: Args,
}

#[derive(Debug)]
pub(crate) struct FilterCall {
    pub(crate) input: Expr,
    pub(crate) name: Arc<str>,
    /// `None` if there is no such filter; that is an error only when it is used.
    pub(crate) filter: Option<Filter>,
    pub(crate) args: Args,
}

#[derive(Debug)]
pub(crate) struct CheckCall {
    pub(crate) input: Expr,
    pub(crate) name: Arc<str>,
    pub(crate) check: Option<Check>,
    pub(crate) args: Args,
}

#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    pub(crate) all_of: Option<Expr>,
    pub(crate) all_named_of: Option<Expr>,
}

impl Expr {
    /// Whether it is made of names, attributes and their logic alone, without the item of a loop or `loop`: it has the
    /// same value until something is done.
    fn is_fixed(&self, item: &str) -> bool {
        match &self.kind {
            ExprKind::Const(_) => true,
            ExprKind::Name(name) => &*name.name != item && &*name.name != "loop",
            ExprKind::Attribute(of, _) | ExprKind::Not(of) => of.is_fixed(item),
            ExprKind::And(pair) | ExprKind::Or(pair) => {
                pair.0.is_fixed(item) && pair.1.is_fixed(item)
            }
            _ => false,
        }
    }
}

impl ExprKind {
    /// The direct operands, except those of calls, filters and tests.
    pub(crate) fn operands(&self) -> Vec<&Expr> {
        match self {
            Self::Const(_) | Self::Name(_) | Self::Captured => Vec::new(),
            Self::Filter(_) | Self::Check(_) | Self::Call(_) => Vec::new(),
            Self::Attribute(of, _) | Self::Not(of) | Self::Neg(of) | Self::Pos(of) => vec![of],
            Self::Item(pair) | Self::And(pair) | Self::Or(pair) | Self::Binary(_, pair) => {
                vec![&pair.0, &pair.1]
            }
            Self::Slice(slice) => {
                let parts = [&slice.start, &slice.stop, &slice.step].into_iter().flatten();
                std::iter::once(&slice.of).chain(parts).collect()
            }
            Self::Concat(items) | Self::List(items) | Self::Tuple(items) => items.iter().collect(),
            Self::Compare(first, others) => {
                let others = others.iter().map(|(_, expr)| expr);
                std::iter::once(&**first).chain(others).collect()
            }
            Self::If(parts) => [&parts.0, &parts.1].into_iter().chain(&parts.2).collect(),
            Self::Dict(entries) => entries.iter().flat_map(|(key, value)| [key, value]).collect(),
        }
    }

    /// As `operands`, mutable.
    pub(crate) fn operands_mut(&mut self) -> Vec<&mut Expr> {
        match self {
            Self::Const(_) | Self::Name(_) | Self::Captured => Vec::new(),
            Self::Filter(_) | Self::Check(_) | Self::Call(_) => Vec::new(),
            Self::Attribute(of, _) | Self::Not(of) | Self::Neg(of) | Self::Pos(of) => vec![of],
            Self::Item(pair) | Self::And(pair) | Self::Or(pair) | Self::Binary(_, pair) => {
                let (left, right) = &mut **pair;
                vec![left, right]
            }
            Self::Slice(slice) => {
                let Slice { start, stop, step, of } = &mut **slice;
                let parts = [start, stop, step].into_iter().flatten();
                std::iter::once(of).chain(parts).collect()
            }
            Self::Concat(items) | Self::List(items) | Self::Tuple(items) => {
                items.iter_mut().collect()
            }
            Self::Compare(first, others) => {
                let others = others.iter_mut().map(|(_, expr)| expr);
                std::iter::once(&mut **first).chain(others).collect()
            }
            Self::If(parts) => {
                let (condition, then, otherwise) = &mut **parts;
                [condition, then].into_iter().chain(otherwise).collect()
            }
            Self::Dict(entries) => {
                entries.iter_mut().flat_map(|(key, value)| [key, value]).collect()
            }
        }
    }
}
