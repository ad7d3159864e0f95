//! [2] Runs the statements of a template.
//!
//! Scopes are frames on a stack, each with the frame around it in the source. A macro knows the frame
//! that it was declared in; it can be handed to what is called, but stored nowhere that outlives that
//! frame, since a namespace refuses it.

use std::cell::Cell;
use std::sync::Arc;

use super::Given;
use super::args::Args;
use super::fault::Fault;
use super::functions::Function;
use super::loops::LoopState;
use super::print;
use super::program::{Expr, Name, Program, Stmt, StmtKind, Target};
use super::value::{ListKind, Special, Value};
use super::work::Work;

/// One rendering.
pub(crate) struct Run<'r> {
    pub(crate) program: &'r Program,
    pub(crate) host: Host<'r>,
    /// Variables of the outermost scope, by name.
    globals: Vec<Option<Value>>,
    frames: Vec<Frame>,
    /// The frame that names are looked up from; `None`: only the outermost scope.
    frame: Option<usize>,
    out: String,
    /// The text that a filter without operand works on.
    pub(crate) captured: Option<Value>,
    depth: Cell<usize>,
}

/// What filters, checks and functions see of a rendering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'r> {
    pub(crate) work: &'r Work,
    pub(crate) given: Given<'r>,
}

#[derive(Debug)]
struct Frame {
    parent: Option<usize>,
    variables: Vec<(Name, Value)>,
}

/// What goes on after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Continue,
    Break,
}

impl<'r> Run<'r> {
    pub(crate) fn new(program: &'r Program, work: &'r Work, given: Given<'r>) -> Self {
        let function = |name: &Arc<str>| Function::find(name).map(Value::Function);
        Self {
            program,
            host: Host { work, given },
            globals: program.names.iter().map(function).collect(),
            frames: Vec::new(),
            frame: None,
            out: String::new(),
            captured: None,
            depth: Cell::new(0),
        }
    }

    /// Sets a variable of the outermost scope; one that the template does not name is dropped.
    pub(crate) fn define(&mut self, name: &str, value: Value) {
        let at = self.program.names.iter().position(|known| **known == *name);
        if let Some(slot) = at.and_then(|at| self.globals.get_mut(at)) {
            *slot = Some(value);
        }
    }

    /// Renders everything.
    pub(crate) fn whole(mut self) -> Result<String, Fault> {
        let program = self.program;
        self.body(&program.body)?;
        Ok(self.out)
    }

    pub(crate) fn work(&self) -> &'r Work {
        self.host.work
    }

    /// One more level of statements, expressions and calls; `leave` ends it.
    pub(crate) fn enter(&self) -> Result<(), Fault> {
        let depth = self.depth.get() + 1;
        self.depth.set(depth);
        if depth > MAX_RUN_DEPTH {
            return Err(Fault::failed("calls and blocks are nested too deep"));
        }
        self.work().step()
    }

    pub(crate) fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    fn body(&mut self, body: &'r [Stmt]) -> Result<Flow, Fault> {
        self.enter()?;
        let mut flow = Flow::Next;
        for stmt in body {
            flow = self.stmt(stmt).map_err(|fault| fault.at(stmt.line))?;
            if flow != Flow::Next {
                break;
            }
        }
        self.leave();
        Ok(flow)
    }

    fn stmt(&mut self, stmt: &'r Stmt) -> Result<Flow, Fault> {
        match &stmt.kind {
            StmtKind::Text(text) => self.write(text)?,
            StmtKind::Print(expr) => self.print(expr)?,
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            StmtKind::For(index) => self.for_loop(*index)?,
            StmtKind::Set(target, value) => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(target, filter, body) => {
                let text = self.captured_body(body)?;
                let value = match filter {
                    Some(filter) => self.eval_with_captured(filter, text)?,
                    None => text,
                };
                self.assign(target, value)?;
            }
            StmtKind::With(values, body) => self.with(values, body)?,
            StmtKind::Filter(filter, body) => {
                let text = self.captured_body(body)?;
                let value = self.eval_with_captured(filter, text)?;
                self.write_value(&value)?;
            }
            StmtKind::Macro(index) => self.declare(*index),
            StmtKind::CallBlock(call, caller) => self.call_block(call, *caller)?,
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Do(expr) => {
                self.eval(expr)?;
            }
        }
        Ok(Flow::Next)
    }

    fn print(&mut self, expr: &'r Expr) -> Result<(), Fault> {
        let value = self.eval(expr)?;
        self.write_value(&value)
    }

    fn write_value(&mut self, value: &Value) -> Result<(), Fault> {
        match value {
            Value::Str(text) => self.write(text),
            other => print::str_into(other, &mut self.out, self.host.work),
        }
    }

    fn write(&mut self, text: &str) -> Result<(), Fault> {
        self.work().spend(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    /// What is written while `run` runs, as a value.
    fn capture(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<Value, Fault> {
        let outer = std::mem::take(&mut self.out);
        let done = run(self);
        let inner = std::mem::replace(&mut self.out, outer);
        done?;
        Value::text(inner, self.work())
    }

    fn captured_body(&mut self, body: &'r [Stmt]) -> Result<Value, Fault> {
        let around = self.frame;
        self.capture(|run| run.in_frame(around, |run| run.body(body).map(|_| ())))
    }

    fn eval_with_captured(&mut self, filter: &'r Expr, text: Value) -> Result<Value, Fault> {
        let outer = self.captured.replace(text);
        let value = self.eval(filter);
        self.captured = outer;
        value
    }

    /// Runs in a new scope inside `parent`.
    fn in_frame<T>(
        &mut self,
        parent: Option<usize>,
        run: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let before = self.frame;
        self.frame = Some(self.frames.len());
        self.frames.push(Frame { parent, variables: Vec::new() });
        let done = run(self);
        self.frames.pop();
        self.frame = before;
        done
    }

    pub(crate) fn look_up(&self, name: Name) -> Value {
        let mut at = self.frame;
        while let Some(frame) = at.and_then(|at| self.frames.get(at)) {
            if let Some((_, value)) = frame.variables.iter().rev().find(|(known, _)| *known == name)
            {
                return value.clone();
            }
            at = frame.parent;
        }
        match self.globals.get(name.0) {
            Some(Some(value)) => value.clone(),
            _ => Value::Undefined(self.program.names.get(name.0).cloned()),
        }
    }

    fn set(&mut self, name: Name, value: Value) {
        let Some(frame) = self.frame.and_then(|at| self.frames.get_mut(at)) else {
            if let Some(slot) = self.globals.get_mut(name.0) {
                *slot = Some(value);
            }
            return;
        };
        match frame.variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, slot)) => *slot = value,
            None => frame.variables.push((name, value)),
        }
    }

    fn assign(&mut self, target: &'r Target, value: Value) -> Result<(), Fault> {
        match target {
            Target::Name(name) => self.set(*name, value),
            Target::Attribute(of, attribute) => {
                let of = self.eval(of)?;
                let Value::Special(special) = &of else {
                    return Err(Fault::failed("only attributes of a namespace can be set"));
                };
                let Special::Namespace(variables) = &**special else {
                    return Err(Fault::failed("only attributes of a namespace can be set"));
                };
                if value.shape().special {
                    let kind = value.type_name();
                    return Err(Fault::failed(format!("a namespace cannot hold a {kind}")));
                }
                let mut variables = variables.borrow_mut();
                self.work().items(1 + variables.len() / 8)?;
                match variables.iter_mut().find(|(known, _)| known == attribute) {
                    Some((_, slot)) => *slot = value,
                    None => variables.push((Arc::clone(attribute), value)),
                }
            }
            Target::Several(targets) => {
                let items = value.items(self.work())?;
                if items.len() != targets.len() {
                    let (given, wanted) = (items.len(), targets.len());
                    return Err(Fault::failed(format!("{given} values for {wanted} names")));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
        }
        Ok(())
    }

    fn with(&mut self, values: &'r [(Target, Expr)], body: &'r [Stmt]) -> Result<(), Fault> {
        let outer = self.frame;
        let mut evaluated = Vec::with_capacity(values.len());
        for (target, value) in values {
            evaluated.push((target, self.eval(value)?));
        }
        self.in_frame(outer, |run| {
            for (target, value) in evaluated {
                run.assign(target, value)?;
            }
            run.body(body).map(|_| ())
        })
    }

    fn for_loop(&mut self, index: usize) -> Result<(), Fault> {
        let Some(each) = self.program.loops.get(index) else { return Ok(()) };
        let over = self.eval(&each.iter)?;
        self.loop_over(index, self.frame, &over, 0)
    }

    /// A loop over a value, in a scope inside `around`.
    fn loop_over(
        &mut self,
        index: usize,
        around: Option<usize>,
        over: &Value,
        level: usize,
    ) -> Result<(), Fault> {
        let Some(each) = self.program.loops.get(index) else { return Ok(()) };
        let mut items = over.items(self.work())?;
        if let Some(condition) = &each.condition {
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let keeps = self.in_frame(around, |run| {
                    run.assign(&each.target, item.clone())?;
                    run.eval(condition)
                })?;
                if keeps.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.in_frame(around, |run| run.body(&each.otherwise).map(|_| ()));
        }
        // The frame around is found again by a recursion, as one more than its place.
        let state = LoopState::new(index, around.map_or(0, |at| at + 1), items, level);
        let count = state.len();
        let state = Value::special(Special::Loop(state));
        let Value::Special(shared) = &state else { return Ok(()) };
        let Special::Loop(position) = &**shared else { return Ok(()) };
        self.in_frame(around, |run| {
            for at in 0..count {
                run.work().step()?;
                let Some(item) = position.go_to(at) else { break };
                run.clear_frame(&state);
                run.assign(&each.target, item)?;
                if run.body(&each.body)? == Flow::Break {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Forgets the variables of the last round of a loop.
    fn clear_frame(&mut self, state: &Value) {
        let name = self.program.loop_name;
        if let Some(frame) = self.frame.and_then(|at| self.frames.get_mut(at)) {
            frame.variables.clear();
            frame.variables.extend(name.map(|name| (name, state.clone())));
        }
    }

    /// `loop(children)` inside a recursive loop.
    pub(crate) fn recurse(&mut self, state: &LoopState, args: &mut Args) -> Result<Value, Fault> {
        let over = args.required("iterable")?;
        args.end()?;
        if !self.program.loops.get(state.index).is_some_and(|each| each.recursive) {
            return Err(Fault::failed("this loop is not recursive"));
        }
        self.enter()?;
        let (index, level) = (state.index, state.level + 1);
        let around = state.frame.checked_sub(1);
        let text = self.capture(|run| run.loop_over(index, around, &over, level))?;
        self.leave();
        Ok(text)
    }

    fn macro_value(&self, index: usize) -> Value {
        // As in loops: one more than its place.
        let frame = self.frame.map_or(0, |at| at + 1);
        Value::special(Special::Macro { index, frame })
    }

    fn declare(&mut self, index: usize) {
        if let Some(declared) = self.program.macros.get(index) {
            let value = self.macro_value(index);
            self.set(declared.name, value);
        }
    }

    fn call_block(&mut self, call: &'r Expr, caller: usize) -> Result<(), Fault> {
        let caller = self.macro_value(caller);
        let value = match call {
            Expr::Call(call) => {
                let function = self.eval(&call.0)?;
                let mut args = self.args(&call.1)?;
                args.named.push(("caller".into(), caller));
                self.call(&function, args)?
            }
            _ => return Err(Fault::failed("a call block must call a macro")),
        };
        self.write_value(&value)
    }

    /// Calls a macro; what it writes is the value.
    pub(crate) fn call_macro(
        &mut self,
        index: usize,
        frame: usize,
        mut args: Args,
    ) -> Result<Value, Fault> {
        let Some(called) = self.program.macros.get(index) else { return Ok(Value::None) };
        self.enter()?;
        let around = frame.checked_sub(1);
        let text = self.capture(|run| {
            run.in_frame(around, |run| {
                let without = called.parameters.len().saturating_sub(called.defaults.len());
                for (at, parameter) in called.parameters.iter().enumerate() {
                    let name = run.program.names.get(parameter.0);
                    let given = name.and_then(|name| args.next(name));
                    let default = at.checked_sub(without).and_then(|at| called.defaults.get(at));
                    let value = match (given, default) {
                        (Some(value), _) => value,
                        (None, Some(default)) => run.eval(default)?,
                        (None, None) => Value::Undefined(name.cloned()),
                    };
                    run.set(*parameter, value);
                }
                run.set_extra_arguments(&mut args)?;
                args.end()?;
                run.body(&called.body).map(|_| ())
            })
        })?;
        self.leave();
        Ok(text)
    }

    /// `caller`, and the arguments that a macro has no parameters for if it names them.
    fn set_extra_arguments(&mut self, args: &mut Args) -> Result<(), Fault> {
        if let (Some(name), Some(caller)) = (self.program.caller_name, args.named("caller")) {
            self.set(name, caller);
        }
        if let Some(name) = self.program.varargs_name {
            let mut rest = args.rest();
            args.named = std::mem::take(&mut rest.named);
            let value = Value::list(ListKind::Tuple, rest.positional, self.work())?;
            self.set(name, value);
        }
        if let Some(name) = self.program.kwargs_name {
            let entries = std::mem::take(&mut args.named).into_iter();
            let entries = entries.map(|(name, value)| (Value::Str(name), value)).collect();
            let value = Value::map(entries, self.work())?;
            self.set(name, value);
        }
        Ok(())
    }
}

/// Levels of statements, expressions and calls in each other while running. One takes up to 1 kB of
/// stack (4 kB where code is not optimised). Source nests up to 120.
const MAX_RUN_DEPTH: usize = 400;
