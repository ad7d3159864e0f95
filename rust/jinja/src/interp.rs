//! Runs a template. One rendering, one thread; every step is paid for, depth is bounded.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::{
    FilterBlock, For, Load, Name, Program, Scope, SetBlock, Slot, Stmt, StmtKind, Target, With,
};
use crate::budget::Budget;
use crate::error::{Fault, Res, fail};
use crate::loops::LoopState;
use crate::print;
use crate::text::TextBuf;
use crate::value::{MacroRef, Value};

/// The text of a format of `strftime`, or why there is none.
pub(crate) type Clock<'t> = &'t dyn Fn(&str) -> Result<String, String>;

/// One rendering.
pub(crate) struct Interp<'t> {
    pub(crate) program: &'t Program,
    pub(crate) budget: Budget,
    pub(crate) clock: Clock<'t>,
    /// The variables that the template uses, as `Program::variables` lists them.
    globals: Vec<Option<Value>>,
    /// Frames of the functions that run or that macros still refer to. Freed with the rendering.
    frames: Vec<Frame>,
    pub(crate) frame: usize,
    pub(crate) namespaces: Vec<Vec<(Arc<str>, Value)>>,
    pub(crate) out: TextBuf,
    /// What filter blocks work on.
    pub(crate) captured: Vec<Value>,
    depth: usize,
}

#[derive(Debug, Default)]
struct Frame {
    slots: Vec<Option<Value>>,
    parent: usize,
    /// Whether a macro refers to it.
    kept: bool,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Interp<'t> {
    pub(crate) fn new(
        program: &'t Program,
        variables: &HashMap<String, Value>,
        budget: Budget,
        clock: Clock<'t>,
    ) -> Self {
        let globals = program.variables.iter().map(|name| match variables.get(&**name) {
            Some(value) => Some(value.clone()),
            None => crate::functions::Function::named(name).map(Value::Function),
        });
        Self {
            program,
            budget,
            clock,
            globals: globals.collect(),
            frames: Vec::new(),
            frame: 0,
            namespaces: Vec::new(),
            out: TextBuf::default(),
            captured: Vec::new(),
            depth: 0,
        }
    }

    /// Renders the template.
    pub(crate) fn run(mut self) -> Res<TextBuf> {
        self.push_frame(self.program.root.slots, 0)?;
        self.begin(&self.program.scope)?;
        self.body(&self.program.body)?;
        Ok(self.out)
    }

    /// One level deeper.
    pub(crate) fn enter(&mut self) -> Res<()> {
        self.budget.step()?;
        if self.depth >= MAX_RUN_DEPTH {
            return Err(Fault::failed(format!(
                "the template is nested or calls itself deeper than {MAX_RUN_DEPTH} levels"
            )));
        }
        self.depth += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Makes a frame and makes it the current one; the one before comes back.
    pub(crate) fn push_frame(&mut self, slots: u32, parent: usize) -> Res<usize> {
        self.budget.items(slots as usize + 2)?;
        let slots = vec![None; slots as usize];
        self.frames.push(Frame { slots, parent, kept: false });
        Ok(std::mem::replace(&mut self.frame, self.frames.len() - 1))
    }

    /// Goes back to a frame; the one left goes unless a macro refers to it.
    pub(crate) fn pop_frame(&mut self, back: usize) {
        if self.frame + 1 == self.frames.len() && self.frames.last().is_some_and(|top| !top.kept) {
            self.frames.pop();
        }
        self.frame = back;
    }

    fn frame_of(&self, hops: u16) -> usize {
        let mut at = self.frame;
        for _ in 0..hops {
            at = self.frames.get(at).map_or(0, |frame| frame.parent);
        }
        at
    }

    pub(crate) fn slot(&self, slot: Slot) -> Option<&Value> {
        let frame = self.frames.get(self.frame_of(slot.hops))?;
        frame.slots.get(slot.index as usize)?.as_ref()
    }

    pub(crate) fn set_slot(&mut self, index: u32, value: Option<Value>) {
        let frame = self.frames.get_mut(self.frame);
        if let Some(slot) = frame.and_then(|frame| frame.slots.get_mut(index as usize)) {
            *slot = value;
        }
    }

    /// Sets the slots that a scope begins with.
    pub(crate) fn begin(&mut self, scope: &Scope) -> Res<()> {
        self.budget.pay(8 * scope.loads.len())?;
        for (index, load) in &scope.loads {
            let value = match load {
                Load::Resolve(variable) => self.globals.get(*variable).cloned().flatten(),
                Load::Alias(outer) => self.slot(*outer).cloned(),
                Load::Nothing => None,
            };
            self.set_slot(*index, value);
        }
        Ok(())
    }

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

    /// A macro of the program, declared here.
    pub(crate) fn macro_value(&mut self, index: usize) -> Value {
        if let Some(frame) = self.frames.get_mut(self.frame) {
            frame.kept = true;
        }
        Value::Macro(MacroRef { index, frame: self.frame })
    }

    /// What a body writes, and how it ended.
    pub(crate) fn capture(
        &mut self,
        work: impl FnOnce(&mut Self) -> Res<Flow>,
    ) -> Res<(TextBuf, Flow)> {
        let before = std::mem::take(&mut self.out);
        let flow = work(self);
        let text = std::mem::replace(&mut self.out, before);
        Ok((text, flow?))
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

    #[inline(never)]
    pub(crate) fn assign(&mut self, target: &Target, value: Value) -> Res<()> {
        match target {
            Target::Name(name) => self.set_slot(name.slot.index, Some(value)),
            Target::Attribute(name, attribute) => {
                return self.set_attribute(name, attribute, value);
            }
            Target::Several(targets) => {
                let items = value.items(&self.budget)?;
                let (wanted, got) = (targets.len(), items.len());
                if got < wanted {
                    fail!("not enough values to unpack (expected {wanted}, got {got})");
                }
                if got > wanted {
                    fail!("too many values to unpack (expected {wanted})");
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
        }
        Ok(())
    }

    fn set_attribute(&mut self, name: &Name, attribute: &Arc<str>, value: Value) -> Res<()> {
        let Some(Value::Namespace(index)) = self.slot(name.slot) else {
            fail!("cannot assign attribute on non-namespace object");
        };
        let index = *index;
        let Some(entries) = self.namespaces.get_mut(index) else { return Ok(()) };
        self.budget.pay(entries.len())?;
        match entries.iter_mut().find(|(known, _)| known == attribute) {
            Some((_, known)) => *known = value,
            None => {
                self.budget.items(2)?;
                entries.push((Arc::clone(attribute), value));
            }
        }
        Ok(())
    }
}

// Loops.
impl<'t> Interp<'t> {
    fn run_loop(&mut self, index: usize) -> Res<Flow> {
        let program = self.program;
        let Some(each) = program.loops.get(index) else { return Ok(Flow::Next) };
        let iterable = self.eval(&each.iter)?;
        let Some(function) = &each.recursive else {
            return self.loop_over(each, index, &iterable, 0);
        };
        let back = self.push_frame(function.slots, self.frame)?;
        let flow = self.loop_over(each, index, &iterable, 0);
        self.pop_frame(back);
        flow
    }

    fn loop_over(
        &mut self,
        each: &'t For,
        index: usize,
        iterable: &Value,
        depth0: usize,
    ) -> Res<Flow> {
        self.enter()?;
        let state = LoopState::new(iterable, (index, self.frame), depth0, self);
        let flow = state.and_then(|state| {
            let state = Rc::new(state);
            let flow = self.rounds(each, &state);
            state.finish();
            flow
        });
        self.leave();
        flow
    }

    fn rounds(&mut self, each: &'t For, state: &Rc<LoopState>) -> Res<Flow> {
        let mut ran = false;
        while let Some(item) = state.next(self)? {
            ran = true;
            self.budget.step()?;
            if let Some(slot) = each.loop_slot {
                self.set_slot(slot, Some(Value::Loop(Rc::clone(state))));
            }
            self.assign(&each.target, item)?;
            self.begin(&each.scope)?;
            if self.body(&each.body)? == Flow::Break {
                break;
            }
        }
        if ran {
            return Ok(Flow::Next);
        }
        self.begin(&each.else_scope)?;
        self.body(&each.otherwise)
    }

    /// Whether a loop's own condition lets an item through.
    pub(crate) fn passes_test(&mut self, index: usize, frame: usize, item: &Value) -> Res<bool> {
        let program = self.program;
        let each = program.loops.get(index);
        let Some((scope, target, test)) = each.and_then(|each| each.test.as_ref()) else {
            return Ok(true);
        };
        self.budget.step()?;
        let back = std::mem::replace(&mut self.frame, frame);
        let done = self.begin(scope).and_then(|()| {
            self.assign(target, item.clone())?;
            Ok(self.eval(test)?.is_true())
        });
        self.frame = back;
        done
    }

    /// `loop(iterable)` of a recursive loop.
    pub(crate) fn recurse(&mut self, state: &LoopState, iterable: &Value) -> Res<Value> {
        let program = self.program;
        let each = program.loops.get(state.index);
        let Some((each, function)) = each.and_then(|each| Some((each, each.recursive.as_ref()?)))
        else {
            fail!("The loop must have the 'recursive' marker to be called recursively.");
        };
        let parent = self.frames.get(state.frame).map_or(0, |frame| frame.parent);
        let back = self.push_frame(function.slots, parent)?;
        let captured =
            self.capture(|interp| interp.loop_over(each, state.index, iterable, state.depth0 + 1));
        self.pop_frame(back);
        let (text, _) = captured?;
        self.budget.pay(text.len())?;
        Ok(Value::Str(text.finish()))
    }
}

/// Levels of statements, expressions and calls in each other while running. One takes up to 1.3 kB of
/// stack; what is not on the way to the next level is kept out of line for that.
const MAX_RUN_DEPTH: usize = 400;
