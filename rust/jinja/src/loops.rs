//! Runs loops and implements the variable `loop`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::args::Args;
use crate::ast::For;
use crate::error::{Res, fail};
use crate::interp::{Flow, Interp};
use crate::value::{LoopItems, LoopState, Value};

impl LoopState {
    /// A loop over a value; pays for its items.
    pub(crate) fn new(
        iterable: &Value,
        (index, frame): (usize, usize),
        depth0: usize,
        interp: &Interp,
    ) -> Res<Self> {
        let depth = crate::value::depth_over(std::iter::once(iterable))?;
        let tested = interp.program.loops.get(index).is_some_and(|each| each.test.is_some());
        let (source, length) = match iterable {
            Value::Iter(iter) => (LoopItems::Generator(Rc::clone(iter)), None),
            Value::Range(range) if !tested => {
                (LoopItems::Range(Rc::clone(range), Cell::new(0)), Some(range.len()))
            }
            other => {
                let items = other.items(&interp.budget)?;
                let length = (!tested).then_some(items.len());
                (LoopItems::Items(RefCell::new(items.into())), length)
            }
        };
        Ok(Self {
            source,
            after: RefCell::default(),
            before: RefCell::default(),
            current: RefCell::default(),
            begun: Cell::new(0),
            length: Cell::new(length),
            changed: RefCell::default(),
            tested: Cell::new(!tested),
            done: Cell::new(false),
            depth0,
            index,
            frame,
            depth,
        })
    }

    /// The next item that passes the loop's condition.
    fn pull(&self, interp: &mut Interp) -> Res<Option<Value>> {
        loop {
            let item = match &self.source {
                LoopItems::Items(items) => items.borrow_mut().pop_front(),
                LoopItems::Generator(iter) => iter.next()?,
                LoopItems::Range(range, at) if Some(at.get()) < self.length.get() => {
                    interp.budget.items(1)?;
                    Some(range.get(at.replace(at.get() + 1)))
                }
                LoopItems::Range(..) => None,
            };
            let Some(item) = item else { return Ok(None) };
            if self.tested.get() || interp.passes_test(self.index, self.frame, &item)? {
                return Ok(Some(item));
            }
        }
    }

    /// Begins the next iteration.
    pub(crate) fn next(&self, interp: &mut Interp) -> Res<Option<Value>> {
        let looked = self.after.borrow_mut().take();
        let item = if looked.is_some() { looked } else { self.pull(interp)? };
        if item.is_some() {
            self.begun.set(self.begun.get() + 1);
            *self.before.borrow_mut() = self.current.replace(item.clone());
        }
        Ok(item)
    }

    fn peek(&self, interp: &mut Interp) -> Res<Option<Value>> {
        let looked = self.after.borrow().clone();
        if looked.is_some() {
            return Ok(looked);
        }
        let item = self.pull(interp)?;
        self.after.borrow_mut().clone_from(&item);
        Ok(item)
    }

    /// Python's `len`. Iterates to the end if the length is not known.
    pub(crate) fn len(&self, interp: &mut Interp) -> Res<usize> {
        if let Some(length) = self.length.get() {
            return Ok(length);
        }
        let mut rest = VecDeque::new();
        while let Some(item) = self.pull(interp)? {
            interp.budget.items(1)?;
            rest.push_back(item);
        }
        let looked = usize::from(self.after.borrow().is_some());
        let length = rest.len() + self.begun.get() + looked;
        match &self.source {
            LoopItems::Items(items) => *items.borrow_mut() = rest,
            LoopItems::Generator(iter) => *iter.items.borrow_mut() = rest,
            // Its length was known.
            LoopItems::Range(..) => {}
        }
        // The remaining items have passed the loop's condition.
        self.tested.set(true);
        self.length.set(Some(length));
        Ok(length)
    }

    /// The printed form. Not every loop has a known length.
    pub(crate) fn repr(&self) -> String {
        let length = self.length.get().map_or("?".to_owned(), |length| length.to_string());
        format!("<LoopContext {}/{length}>", self.begun.get())
    }

    /// Ends the loop and drops values that could refer to it.
    pub(crate) fn finish(&self) {
        self.done.set(true);
        self.changed.borrow_mut().take();
    }

    /// An attribute; `None` if there is no such one.
    pub(crate) fn attribute(&self, name: &str, interp: &mut Interp) -> Res<Option<Value>> {
        let index = self.begun.get();
        let index0 = index.saturating_sub(1);
        Ok(Some(match name {
            "index" => Value::int(index),
            "index0" => Value::int(index0),
            "first" => Value::Bool(index <= 1),
            "last" => Value::Bool(self.peek(interp)?.is_none()),
            "length" => Value::int(self.len(interp)?),
            "revindex" => Value::int(self.len(interp)?.saturating_sub(index0)),
            "revindex0" => Value::int(self.len(interp)?.saturating_sub(index)),
            "depth" => Value::int(self.depth0 + 1),
            "depth0" => Value::int(self.depth0),
            "previtem" => {
                let before = self.before.borrow().clone();
                before.unwrap_or_else(|| Value::missing("there is no previous item"))
            }
            "nextitem" => {
                self.peek(interp)?.unwrap_or_else(|| Value::missing("there is no next item"))
            }
            _ => return Ok(None),
        }))
    }

    /// `loop.cycle(...)`.
    pub(crate) fn cycle(&self, args: Args) -> Res<Value> {
        let at = self.begun.get().saturating_sub(1).checked_rem(args.positional.len());
        match at.and_then(|at| args.positional.into_iter().nth(at)) {
            Some(value) => Ok(value),
            None => fail!("no items for cycling given"),
        }
    }

    /// `loop.changed(...)`.
    pub(crate) fn has_changed(&self, args: Args, interp: &Interp) -> Res<Value> {
        let same = match &*self.changed.borrow() {
            None => false,
            Some(last) => crate::ops::equal_lists(last, &args.positional, &interp.budget)?,
        };
        if !same && !self.done.get() {
            interp.budget.items(args.positional.len())?;
            *self.changed.borrow_mut() = Some(args.positional);
        }
        Ok(Value::Bool(!same))
    }
}

impl<'t> Interp<'t> {
    pub(crate) fn run_loop(&mut self, index: usize) -> Res<Flow> {
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
        let idle = each.idle().filter(|_| !matches!(state.source, LoopItems::Generator(_)));
        while let Some(item) = state.next(self)? {
            ran = true;
            self.budget.step()?;
            if let Some(slot) = each.loop_slot {
                self.set_slot(slot, Some(Value::Loop(Rc::clone(state))));
            }
            self.assign(&each.target, item)?;
            self.begin(&each.scope)?;
            if let Some((line, condition, is_idle)) = idle {
                let value = self.eval(condition).map_err(|fault| fault.at(line))?;
                if value.is_true() == is_idle {
                    break;
                }
            }
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

    /// Whether an item passes the loop's condition.
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
        let parent = self.parent_of(state.frame);
        let back = self.push_frame(function.slots, parent)?;
        let captured =
            self.capture(|interp| interp.loop_over(each, state.index, iterable, state.depth0 + 1));
        self.pop_frame(back);
        let (text, _) = captured?;
        self.budget.pay(text.len())?;
        Ok(Value::Str(text.finish()))
    }
}
