//! Parses Jinja2's statements. At load only. Recursion is bounded by `MAX_NESTING`.

use std::sync::Arc;

use crate::ast::{
    Args, Expr, ExprKind, FilterBlock, For, Function, Macro, Name, Scope, SetBlock, Slot, Stmt,
    StmtKind, Target, With,
};
use crate::error::{CompileError, shortened};
use crate::lexer::{Token, TokenKind};

/// Reads tokens from the first to the last.
pub(crate) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    pub(crate) nesting: usize,
    /// Bodies of macros and call blocks, in the order of their ends.
    pub(crate) macros: Vec<Macro>,
    /// Loops, in the order of their ends.
    pub(crate) loops: Vec<For>,
}

pub(crate) type Parsed<T> = Result<T, CompileError>;

/// A statement tag that ends a body.
type Ends = &'static [&'static str];

impl Parser {
    pub(crate) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, nesting: 0, macros: Vec::new(), loops: Vec::new() }
    }

    /// The statements of the whole template.
    pub(crate) fn template(&mut self) -> Parsed<Vec<Stmt>> {
        let body = self.body(&[])?;
        match self.kind() {
            TokenKind::Eof => Ok(body),
            _ => self.unexpected(),
        }
    }

    pub(crate) fn kind(&self) -> &TokenKind {
        self.tokens.get(self.at).map_or(&TokenKind::Eof, |token| &token.kind)
    }

    pub(crate) fn next_kind(&self) -> &TokenKind {
        self.tokens.get(self.at + 1).map_or(&TokenKind::Eof, |token| &token.kind)
    }

    pub(crate) fn line(&self) -> u32 {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    pub(crate) fn advance(&mut self) {
        self.at += 1;
    }

    pub(crate) fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(CompileError { line: self.line(), message: message.into() })
    }

    pub(crate) fn unexpected<T>(&self) -> Parsed<T> {
        self.fail(format!("unexpected {}", described(self.kind())))
    }

    pub(crate) fn is_op(&self, op: &str) -> bool {
        matches!(self.kind(), TokenKind::Op(found) if *found == op)
    }

    pub(crate) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect_op(&mut self, op: &str) -> Parsed<()> {
        if self.skip_op(op) {
            return Ok(());
        }
        self.fail(format!("expected '{op}', got {}", described(self.kind())))
    }

    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), TokenKind::Name(found) if **found == *name)
    }

    pub(crate) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect_name(&mut self) -> Parsed<Arc<str>> {
        let TokenKind::Name(name) = self.kind() else {
            return self.fail(format!("expected a name, got {}", described(self.kind())));
        };
        let name = Arc::clone(name);
        self.advance();
        Ok(name)
    }

    fn expect(&mut self, kind: &TokenKind) -> Parsed<()> {
        if self.kind() != kind {
            let (wanted, got) = (described(kind), described(self.kind()));
            return self.fail(format!("expected {wanted}, got {got}"));
        }
        self.advance();
        Ok(())
    }

    /// Goes one level deeper for `work`.
    pub(crate) fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting >= MAX_NESTING {
            return self.fail(format!("nested deeper than {MAX_NESTING}"));
        }
        self.nesting += 1;
        let done = work(self);
        self.nesting -= 1;
        done
    }

    /// Statements up to a tag of `ends`, which is the current token then; or to the end of the source.
    fn body(&mut self, ends: Ends) -> Parsed<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.kind().clone() {
                TokenKind::Data(text) => {
                    self.advance();
                    body.push(Stmt { line, kind: StmtKind::Text(text) });
                }
                TokenKind::VariableBegin => {
                    self.advance();
                    let expr = self.tuple(true, &[], false)?;
                    self.expect(&TokenKind::VariableEnd)?;
                    body.push(Stmt { line, kind: StmtKind::Print(expr) });
                }
                TokenKind::BlockBegin => {
                    self.advance();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let line = self.line();
                    let kind = self.nested(|parser| parser.statement(&mut body))?;
                    body.extend(kind.map(|kind| Stmt { line, kind }));
                    self.expect(&TokenKind::BlockEnd)?;
                }
                TokenKind::Eof if ends.is_empty() => return Ok(body),
                TokenKind::Eof => {
                    let wanted = ends.join("' or '");
                    return self.fail(format!("unexpected end of template, expected '{wanted}'"));
                }
                _ => return self.unexpected(),
            }
        }
    }

    /// The rest of the current tag, then a body up to one of `ends`.
    fn statements(&mut self, ends: Ends) -> Parsed<Vec<Stmt>> {
        self.skip_op(":");
        self.expect(&TokenKind::BlockEnd)?;
        self.body(ends)
    }

    /// The same with one possible end, which is passed.
    fn statements_to(&mut self, end: Ends) -> Parsed<Vec<Stmt>> {
        let body = self.statements(end)?;
        self.advance();
        Ok(body)
    }

    /// One statement from its name on; what only prints goes to `body`.
    fn statement(&mut self, body: &mut Vec<Stmt>) -> Parsed<Option<StmtKind>> {
        let TokenKind::Name(name) = self.kind() else {
            return self.fail("tag name expected");
        };
        let name = Arc::clone(name);
        let line = self.line();
        self.advance();
        Ok(Some(match &*name {
            "for" => self.for_loop()?,
            "if" => self.if_tag()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_tag()?,
            "call" => self.call_block()?,
            "filter" => self.filter_block()?,
            "generation" => {
                let body = self.statements_to(&["endgeneration"])?;
                StmtKind::CallBlock(None, self.add_macro("".into(), Signature::default(), body))
            }
            "block" => self.block()?,
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            "print" => {
                let mut first = true;
                while self.kind() != &TokenKind::BlockEnd {
                    if !first {
                        self.expect_op(",")?;
                    }
                    first = false;
                    let kind = StmtKind::Print(self.expression(true)?);
                    body.push(Stmt { line, kind });
                }
                return Ok(None);
            }
            "autoescape" => self.autoescape()?,
            "include" | "import" | "from" | "extends" => {
                while self.kind() != &TokenKind::BlockEnd {
                    if self.kind() == &TokenKind::Eof {
                        return self.unexpected();
                    }
                    self.advance();
                }
                StmtKind::NoLoader
            }
            _ => {
                self.at -= 1;
                return self.fail(format!("Encountered unknown tag '{}'.", shortened(&name)));
            }
        }))
    }

    fn for_loop(&mut self) -> Parsed<StmtKind> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.fail(format!("expected 'in', got {}", described(self.kind())));
        }
        let iter = self.tuple(false, &["recursive"], false)?;
        let test = match self.skip_name("if") {
            true => Some((Scope::default(), target.clone(), self.expression(true)?)),
            false => None,
        };
        let recursive = self.skip_name("recursive").then(Function::default);
        let body = self.statements(&["endfor", "else"])?;
        let has_else = self.is_name("else");
        self.advance();
        let otherwise = if has_else { self.statements_to(&["endfor"])? } else { Vec::new() };
        self.loops.push(For {
            target,
            iter,
            test,
            loop_slot: None,
            recursive,
            scope: Scope::default(),
            body,
            else_scope: Scope::default(),
            otherwise,
        });
        Ok(StmtKind::For(self.loops.len() - 1))
    }

    fn if_tag(&mut self) -> Parsed<StmtKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(false, &[], false)?;
            let body = self.statements(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            let is_else = self.is_name("else");
            let is_elif = self.is_name("elif");
            self.advance();
            if !is_elif {
                let otherwise = if is_else { self.statements_to(&["endif"])? } else { Vec::new() };
                return Ok(StmtKind::If(branches, otherwise));
            }
        }
    }

    fn set(&mut self) -> Parsed<StmtKind> {
        let target = self.target(true)?;
        if self.skip_op("=") {
            return Ok(StmtKind::Set(target, self.tuple(true, &[], false)?));
        }
        let mut filter = None;
        while self.is_op("|") {
            let input = filter.take().unwrap_or(Expr { depth: 0, kind: ExprKind::Captured });
            self.advance();
            filter = Some(self.filter(input)?);
        }
        let body = self.statements_to(&["endset"])?;
        let scope = Scope::default();
        Ok(StmtKind::SetBlock(Box::new(SetBlock { target, filter, scope, body })))
    }

    fn with(&mut self) -> Parsed<StmtKind> {
        let mut targets = Vec::new();
        while self.kind() != &TokenKind::BlockEnd {
            if !targets.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(false)?;
            self.expect_op("=")?;
            targets.push((target, self.expression(true)?));
        }
        let body = self.statements_to(&["endwith"])?;
        Ok(StmtKind::With(Box::new(With { targets, scope: Scope::default(), body })))
    }

    fn autoescape(&mut self) -> Parsed<StmtKind> {
        if !self.skip_name("false") && !self.skip_name("False") {
            return self.fail("autoescape is not supported: prompts are not HTML");
        }
        Ok(StmtKind::Scoped(Scope::default(), self.statements_to(&["endautoescape"])?))
    }

    fn block(&mut self) -> Parsed<StmtKind> {
        let name = self.expect_name()?;
        self.skip_name("scoped");
        self.skip_name("required");
        let body = self.statements_to(&["endblock"])?;
        self.skip_name(&name);
        Ok(StmtKind::Scoped(Scope::default(), body))
    }

    fn filter_block(&mut self) -> Parsed<StmtKind> {
        let mut filter = self.filter(Expr { depth: 0, kind: ExprKind::Captured })?;
        while self.skip_op("|") {
            filter = self.filter(filter)?;
        }
        let body = self.statements_to(&["endfilter"])?;
        Ok(StmtKind::FilterBlock(Box::new(FilterBlock { filter, scope: Scope::default(), body })))
    }

    fn macro_tag(&mut self) -> Parsed<StmtKind> {
        let name = self.expect_name()?;
        let signature = self.signature()?;
        let body = self.statements_to(&["endmacro"])?;
        let index = self.add_macro(Arc::clone(&name), signature, body);
        Ok(StmtKind::Macro(unplaced(name), index))
    }

    fn call_block(&mut self) -> Parsed<StmtKind> {
        let signature = match self.is_op("(") {
            true => self.signature()?,
            false => Signature::default(),
        };
        let call = self.expression(true)?;
        let ExprKind::Call(call) = call.kind else {
            return self.fail("expected call");
        };
        let body = self.statements_to(&["endcall"])?;
        Ok(StmtKind::CallBlock(Some(*call), self.add_macro("".into(), signature, body)))
    }

    fn signature(&mut self) -> Parsed<Signature> {
        let mut signature = Signature::default();
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !signature.parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            if signature.parameters.iter().any(|known| known.name == name) {
                return self.fail(format!("duplicate argument '{}'", shortened(&name)));
            }
            signature.parameters.push(unplaced(name));
            if self.skip_op("=") {
                signature.defaults.push(self.expression(true)?);
            } else if !signature.defaults.is_empty() {
                return self.fail("non-default argument follows default argument");
            }
        }
        self.expect_op(")")?;
        Ok(signature)
    }

    fn add_macro(&mut self, name: Arc<str>, signature: Signature, body: Vec<Stmt>) -> usize {
        self.macros.push(Macro {
            name,
            parameters: signature.parameters,
            defaults: signature.defaults,
            caller: None,
            kwargs: None,
            varargs: None,
            explicit_caller: false,
            function: Function::default(),
            scope: Scope::default(),
            body,
        });
        self.macros.len() - 1
    }

    /// What `for`, `set` and `with` assign to.
    fn target(&mut self, with_namespace: bool) -> Parsed<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if is_tuple && (self.is_name("in") || self.ends_tuple(&[])) {
                break;
            }
            targets.push(self.nested(|parser| parser.one_target(with_namespace))?);
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match (is_tuple, targets.pop()) {
            (false, Some(only)) => Ok(only),
            (_, last) => {
                targets.extend(last);
                Ok(Target::Several(targets))
            }
        }
    }

    fn one_target(&mut self, with_namespace: bool) -> Parsed<Target> {
        if self.skip_op("(") {
            let inner = self.target(false)?;
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&&*name) {
            return self.fail("can't assign to 'const'");
        }
        if with_namespace && self.skip_op(".") {
            return Ok(Target::Attribute(unplaced(name), self.expect_name()?));
        }
        Ok(Target::Name(unplaced(name)))
    }

    /// Whether the current token cannot begin another item of a tuple.
    pub(crate) fn ends_tuple(&self, extra: Ends) -> bool {
        matches!(self.kind(), TokenKind::VariableEnd | TokenKind::BlockEnd | TokenKind::Eof)
            || self.is_op(")")
            || extra.iter().any(|name| self.is_name(name))
    }
}

#[derive(Default)]
struct Signature {
    parameters: Vec<Name>,
    defaults: Vec<Expr>,
}

/// A name whose slot is found later.
pub(crate) fn unplaced(name: Arc<str>) -> Name {
    Name { name, slot: Slot { hops: 0, index: 0 } }
}

/// A token for an error message.
pub(crate) fn described(kind: &TokenKind) -> String {
    match kind {
        TokenKind::Data(_) => "template data / text".into(),
        TokenKind::VariableBegin => "begin of print statement".into(),
        TokenKind::VariableEnd => "end of print statement".into(),
        TokenKind::BlockBegin => "begin of statement block".into(),
        TokenKind::BlockEnd => "end of statement block".into(),
        TokenKind::Name(name) => format!("'{}'", shortened(name)),
        TokenKind::Str(text) => format!("the string '{}'", shortened(text)),
        TokenKind::Int(value) => format!("'{value}'"),
        TokenKind::Float(value) => format!("'{value}'"),
        TokenKind::Op(op) => format!("'{op}'"),
        TokenKind::Eof => "end of template".into(),
    }
}

/// No arguments.
pub(crate) fn no_args() -> Args {
    Args::default()
}

/// Levels of tags, parentheses and the like in each other.
pub(crate) const MAX_NESTING: usize = 100;
