//! [2] The variable `loop`.

use std::cell::{Cell, RefCell};

use super::args::Args;
use super::fault::Fault;
use super::ops;
use super::value::{Value, shortened};
use super::work::Work;

/// Where a loop stands.
#[derive(Debug)]
pub(crate) struct LoopState {
    /// Place in `Program::loops`.
    pub(crate) index: usize,
    /// The frame around the loop.
    pub(crate) frame: usize,
    items: Vec<Value>,
    /// Of the deepest item.
    pub(crate) depth_of_items: usize,
    at: Cell<usize>,
    /// How many loops of a recursion are around it.
    pub(crate) level: usize,
    /// What `changed` was given last.
    last: RefCell<Option<Vec<Value>>>,
}

impl LoopState {
    pub(crate) fn new(index: usize, frame: usize, items: Vec<Value>, level: usize) -> Self {
        let depth_of_items = items.iter().map(Value::depth).max().unwrap_or(0);
        let (at, last) = (Cell::new(0), RefCell::new(None));
        Self { index, frame, items, depth_of_items, at, level, last }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Goes to an item and returns it.
    pub(crate) fn go_to(&self, at: usize) -> Option<Value> {
        self.at.set(at);
        self.items.get(at).cloned()
    }

    pub(crate) fn attribute(&self, name: &str) -> Value {
        let at = self.at.get();
        let item = |at: Option<usize>| {
            at.and_then(|at| self.items.get(at)).cloned().unwrap_or(Value::Undefined(None))
        };
        match name {
            "index" => (at + 1).into(),
            "index0" => at.into(),
            "revindex" => self.items.len().saturating_sub(at).into(),
            "revindex0" => self.items.len().saturating_sub(at + 1).into(),
            "first" => (at == 0).into(),
            "last" => (at + 1 >= self.items.len()).into(),
            "length" => self.items.len().into(),
            "depth" => (self.level + 1).into(),
            "depth0" => self.level.into(),
            "previtem" => item(at.checked_sub(1)),
            "nextitem" => item(at.checked_add(1)),
            other => Value::Undefined(Some(other.into())),
        }
    }

    pub(crate) fn method(&self, name: &str, args: &Args, work: &Work) -> Result<Value, Fault> {
        let values = &args.positional;
        match name {
            "cycle" => match self.at.get().checked_rem(values.len()) {
                Some(at) => Ok(values.get(at).cloned().unwrap_or(Value::None)),
                None => Err(Fault::failed("loop.cycle needs values")),
            },
            "changed" => {
                if values.iter().any(|value| value.shape().special) {
                    return Err(Fault::failed("loop.changed cannot keep such a value"));
                }
                let mut last = self.last.borrow_mut();
                let same = match &*last {
                    Some(last) => ops::all_equal(last, values, work)?,
                    None => false,
                };
                *last = Some(values.clone());
                Ok(Value::Bool(!same))
            }
            other => Err(Fault::failed(format!("loop has no method {:?}", shortened(other)))),
        }
    }
}
