//! [2] A template as it is kept: a tree of bounded depth without references into its source.

use std::sync::Arc;

use super::checks::Check;
use super::filters::Filter;

/// A name of the template, by its place in `Program::names`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub(crate) usize);

/// A whole template.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) body: Vec<Stmt>,
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) macros: Vec<Macro>,
    pub(crate) loops: Vec<For>,
    /// Names that are given a meaning, where the template uses them.
    pub(crate) loop_name: Option<Name>,
    pub(crate) caller_name: Option<Name>,
    pub(crate) varargs_name: Option<Name>,
    pub(crate) kwargs_name: Option<Name>,
}

#[derive(Debug)]
pub(crate) struct Stmt {
    pub(crate) line: u16,
    pub(crate) kind: StmtKind,
}

#[derive(Debug)]
pub(crate) enum StmtKind {
    Text(Arc<str>),
    Print(Expr),
    /// The branches, and what else is done.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    /// A loop of `Program::loops`.
    For(usize),
    Set(Target, Expr),
    /// A captured body, and what is done to it before it is stored.
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    /// A captured body and what is printed of it.
    Filter(Expr, Vec<Stmt>),
    /// Declares a macro of `Program::macros`.
    Macro(usize),
    /// Calls a macro with another one as its `caller`.
    CallBlock(Expr, usize),
    Continue,
    Break,
    Do(Expr),
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) condition: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<Name>,
    /// Of the last parameters.
    pub(crate) defaults: Vec<Expr>,
    pub(crate) body: Vec<Stmt>,
}

/// What is assigned to.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Name),
    Attribute(Expr, Arc<str>),
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
    Concat,
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

#[derive(Debug)]
pub(crate) enum Expr {
    Const(Constant),
    Var(Name),
    /// The captured text that a filter without operand works on.
    Captured,
    Attr(Box<Expr>, Arc<str>),
    Item(Box<(Expr, Expr)>),
    Slice(Box<Slice>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    All(Vec<Expr>),
    Any(Vec<Expr>),
    /// Operators of one precedence, from left to right.
    Chain(Box<Expr>, Vec<(BinaryOp, Expr)>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// Condition, then and else.
    If(Box<(Expr, Expr, Option<Expr>)>),
    Filter(Box<FilterCall>),
    Check(Box<CheckCall>),
    Call(Box<(Expr, Vec<Arg>)>),
    Method(Box<(Expr, Arc<str>, Vec<Arg>)>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
}

#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) of: Expr,
    pub(crate) start: Option<Expr>,
    pub(crate) stop: Option<Expr>,
    pub(crate) step: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct FilterCall {
    pub(crate) input: Expr,
    pub(crate) name: Arc<str>,
    /// `None`: there is no such filter, which matters only if it is used.
    pub(crate) filter: Option<Filter>,
    pub(crate) args: Vec<Arg>,
}

#[derive(Debug)]
pub(crate) struct CheckCall {
    pub(crate) input: Expr,
    pub(crate) name: Arc<str>,
    pub(crate) check: Option<Check>,
    pub(crate) args: Vec<Arg>,
}

#[derive(Debug)]
pub(crate) enum Arg {
    Positional(Expr),
    Named(Arc<str>, Expr),
    AllOf(Expr),
    AllNamedOf(Expr),
}
