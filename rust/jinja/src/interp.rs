//! The state of one rendering: frames, variables, output. Used by one thread. Every step is paid
//! for and depth is bounded. `statements.rs` and `eval.rs` run the template.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{Load, Name, Program, Scope, Slot, Target};
use crate::budget::Budget;
use crate::builtins::Function;
use crate::error::{Fault, Res, fail};
use crate::text::TextBuf;
use crate::value::{MacroRef, Value};

/// Formats the current time with a `strftime` format, or returns an error message.
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
    /// The inputs of filter blocks.
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
            None => Function::named(name).map(Value::Function),
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

    /// Renders the template; gives the text and the units of work.
    pub(crate) fn run(mut self) -> Res<(TextBuf, u64)> {
        self.push_frame(self.program.root.slots, 0)?;
        self.begin(&self.program.scope)?;
        self.body(&self.program.body)?;
        Ok((self.out, self.budget.spent()))
    }

    /// Enters one more level of nesting.
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

    /// Creates a frame and makes it current; returns the previous one.
    pub(crate) fn push_frame(&mut self, slots: u32, parent: usize) -> Res<usize> {
        self.budget.items(slots as usize + 2)?;
        let slots = vec![None; slots as usize];
        self.frames.push(Frame { slots, parent, kept: false });
        Ok(std::mem::replace(&mut self.frame, self.frames.len() - 1))
    }

    /// Returns to the frame `back`. The current one is dropped unless a macro refers to it.
    pub(crate) fn pop_frame(&mut self, back: usize) {
        if self.frame + 1 == self.frames.len() && self.frames.last().is_some_and(|top| !top.kept) {
            self.frames.pop();
        }
        self.frame = back;
    }

    /// The frame that a frame's function was declared in.
    pub(crate) fn parent_of(&self, frame: usize) -> usize {
        self.frames.get(frame).map_or(0, |frame| frame.parent)
    }

    fn frame_of(&self, hops: u16) -> usize {
        let mut at = self.frame;
        for _ in 0..hops {
            at = self.parent_of(at);
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

    /// A macro of the program, declared here.
    pub(crate) fn macro_value(&mut self, index: usize) -> Value {
        if let Some(frame) = self.frames.get_mut(self.frame) {
            frame.kept = true;
        }
        Value::Macro(MacroRef { index, frame: self.frame })
    }

    /// The output of a body, and how it ended.
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

/// Levels of statements, expressions and calls in each other while running. One takes up to 1.3 kB of
/// stack; code that is not on the path to the next level is therefore not inlined.
const MAX_RUN_DEPTH: usize = 400;
