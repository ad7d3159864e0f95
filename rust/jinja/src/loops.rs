//! The state of a running loop, which templates see as `loop`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::args::Args;
use crate::error::{Res, fail};
use crate::interp::Interp;
use crate::value::{Iter, Value};

/// A running loop.
#[derive(Debug)]
pub(crate) struct LoopState {
    source: Source,
    /// The item after the current one, once somebody looked.
    after: RefCell<Option<Value>>,
    before: RefCell<Option<Value>>,
    current: RefCell<Option<Value>>,
    /// Items begun so far.
    begun: Cell<usize>,
    length: Cell<Option<usize>>,
    changed: RefCell<Option<Vec<Value>>>,
    /// Whether the items left need no test.
    tested: Cell<bool>,
    done: Cell<bool>,
    pub(crate) depth0: usize,
    /// The loop of the program, and the frame it runs in.
    pub(crate) index: usize,
    pub(crate) frame: usize,
    /// Depth as a value.
    pub(crate) depth: usize,
}

#[derive(Debug)]
enum Source {
    Items(RefCell<VecDeque<Value>>),
    Generator(Rc<Iter>),
}

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
            Value::Iter(iter) => (Source::Generator(Rc::clone(iter)), None),
            other => {
                let items = other.items(&interp.budget)?;
                let length = (!tested).then_some(items.len());
                (Source::Items(RefCell::new(items.into())), length)
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

    /// The next item that the loop's own condition lets through.
    fn pull(&self, interp: &mut Interp) -> Res<Option<Value>> {
        loop {
            let item = match &self.source {
                Source::Items(items) => items.borrow_mut().pop_front(),
                Source::Generator(iter) => iter.next()?,
            };
            let Some(item) = item else { return Ok(None) };
            if self.tested.get() || interp.passes_test(self.index, self.frame, &item)? {
                return Ok(Some(item));
            }
        }
    }

    /// Begins the next round.
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

    /// Python's `len`: walks to the end where the length is not known.
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
            Source::Items(items) => *items.borrow_mut() = rest,
            Source::Generator(iter) => *iter.items.borrow_mut() = rest,
        }
        // What is left has passed the loop's condition.
        self.tested.set(true);
        self.length.set(Some(length));
        Ok(length)
    }

    /// How it prints; the length is not known of every loop.
    pub(crate) fn repr(&self) -> String {
        let length = self.length.get().map_or("?".to_owned(), |length| length.to_string());
        format!("<LoopContext {}/{length}>", self.begun.get())
    }

    /// The loop has ended: nothing is kept that could hold it.
    pub(crate) fn finish(&self) {
        self.done.set(true);
        self.changed.borrow_mut().take();
    }

    /// An attribute; none: there is no such one.
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
