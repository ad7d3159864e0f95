//! The values of templates, modelled on Python's. Only namespaces are mutable. Namespaces, macros
//! and their frames are indices into tables of the interpreter, so no value can contain itself, and
//! dropping a value recurses at most `MAX_DEPTH` levels.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::budget::Budget;
use crate::builtins::{Function, Method};
use crate::error::{Fault, Res, fail, shortened};
use crate::text::{Source, Text};

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Undefined(Undefined),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<List>),
    Map(Rc<Map>),
    /// `range(...)`.
    Range(Rc<Range>),
    /// A generator: can be iterated once.
    Iter(Rc<Iter>),
    /// Index into the interpreter's namespaces.
    Namespace(usize),
    Macro(MacroRef),
    Loop(Rc<LoopState>),
    Method(Rc<(Value, Method)>),
    Function(Function),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
}

/// The reason why a value does not exist. Using the value is an error with this reason.
#[derive(Clone, Debug)]
pub(crate) enum Undefined {
    /// A variable of this name.
    Name(Arc<str>),
    /// An attribute or item of a value of this type.
    Member(&'static str, Arc<str>),
    /// Another reason.
    Because(Arc<str>),
}

/// A macro of the program, and the frame of the interpreter that it was declared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MacroRef {
    pub(crate) index: usize,
    pub(crate) frame: usize,
}

/// Python's kinds of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    List,
    Tuple,
    /// What `groupby` makes: a pair with names.
    Group,
    Keys,
    Values,
    Items,
}

/// An immutable sequence.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) kind: ListKind,
    pub(crate) items: Vec<Value>,
    depth: usize,
}

/// An immutable dict, in order of insertion.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) entries: Vec<(Value, Value)>,
    /// The indices of string keys, if there are many entries.
    index: Option<HashMap<Arc<str>, usize>>,
    depth: usize,
}

/// The arguments of `range`.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) start: i128,
    pub(crate) stop: i128,
    pub(crate) step: i128,
}

/// A generator. Its items are computed at once; an error is raised when the iteration reaches it.
#[derive(Debug)]
pub(crate) struct Iter {
    pub(crate) items: RefCell<VecDeque<Value>>,
    pub(crate) fault: RefCell<Option<Fault>>,
    pub(crate) name: &'static str,
    depth: usize,
}

/// `cycler(...)`.
#[derive(Debug)]
pub(crate) struct Cycler {
    pub(crate) items: Vec<Value>,
    pub(crate) at: Cell<usize>,
    depth: usize,
}

/// `joiner(...)`.
#[derive(Debug)]
pub(crate) struct Joiner {
    pub(crate) separator: Value,
    pub(crate) used: Cell<bool>,
}

/// A running loop, which templates see as `loop`.
#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) source: LoopItems,
    /// The item after the current one, if it has been read ahead.
    pub(crate) after: RefCell<Option<Value>>,
    pub(crate) before: RefCell<Option<Value>>,
    pub(crate) current: RefCell<Option<Value>>,
    /// Items begun so far.
    pub(crate) begun: Cell<usize>,
    pub(crate) length: Cell<Option<usize>>,
    pub(crate) changed: RefCell<Option<Vec<Value>>>,
    /// Whether the remaining items need no test.
    pub(crate) tested: Cell<bool>,
    pub(crate) done: Cell<bool>,
    pub(crate) depth0: usize,
    /// The loop of the program, and the frame it runs in.
    pub(crate) index: usize,
    pub(crate) frame: usize,
    /// Depth as a value.
    pub(crate) depth: usize,
}

#[derive(Debug)]
pub(crate) enum LoopItems {
    Items(RefCell<VecDeque<Value>>),
    Generator(Rc<Iter>),
    /// The numbers of a range from one on, made as the loop comes to them.
    Range(Rc<Range>, Cell<usize>),
}

impl Range {
    pub(crate) fn len(&self) -> usize {
        let (low, high, step) = match self.step > 0 {
            true => (self.start, self.stop, self.step.unsigned_abs()),
            false => (self.stop, self.start, self.step.unsigned_abs()),
        };
        if low >= high {
            return 0;
        }
        let span = high.abs_diff(low);
        usize::try_from(span.div_ceil(step.max(1))).unwrap_or(usize::MAX)
    }

    pub(crate) fn get(&self, index: usize) -> Value {
        let index = i128::try_from(index).unwrap_or(i128::MAX);
        Value::Int(self.start.saturating_add(self.step.saturating_mul(index)))
    }

    pub(crate) fn contains(&self, value: i128) -> bool {
        let inside = match self.step > 0 {
            true => value >= self.start && value < self.stop,
            false => value <= self.start && value > self.stop,
        };
        inside && value.checked_sub(self.start).is_some_and(|off| off % self.step == 0)
    }
}

impl Map {
    /// The value of a text key.
    pub(crate) fn get_str(&self, key: &str, budget: &Budget) -> Res<Option<&Value>> {
        // It is hashed, or compared with keys of its length.
        budget.pay(key.len())?;
        if let Some(index) = &self.index {
            return Ok(index.get(key).and_then(|at| self.entries.get(*at)).map(|(_, value)| value));
        }
        budget.pay(self.entries.len())?;
        let found = self.entries.iter().find(|(known, _)| known.as_str() == Some(key));
        Ok(found.map(|(_, value)| value))
    }
}

impl Iter {
    /// Takes the remaining items.
    pub(crate) fn take(&self) -> Res<Vec<Value>> {
        let items = std::mem::take(&mut *self.items.borrow_mut());
        match self.fault.borrow_mut().take() {
            Some(fault) => Err(fault),
            None => Ok(items.into()),
        }
    }

    /// The next item, or the error at this position.
    pub(crate) fn next(&self) -> Res<Option<Value>> {
        let item = self.items.borrow_mut().pop_front();
        match item {
            Some(item) => Ok(Some(item)),
            None => self.fault.borrow_mut().take().map_or(Ok(None), Err),
        }
    }
}

/// The depth of a container of these values. Errors if it is too deep.
pub(crate) fn depth_over<'v>(values: impl Iterator<Item = &'v Value>) -> Res<usize> {
    let depth = values.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MAX_DEPTH {
        fail!("a value is nested deeper than {MAX_DEPTH}");
    }
    Ok(depth)
}

impl Value {
    /// A sequence; pays for it.
    pub(crate) fn sequence(kind: ListKind, items: Vec<Value>, budget: &Budget) -> Res<Self> {
        budget.items(items.len() + 1)?;
        let depth = depth_over(items.iter())?;
        Ok(Self::List(Rc::new(List { kind, items, depth })))
    }

    pub(crate) fn list(items: Vec<Value>, budget: &Budget) -> Res<Self> {
        Self::sequence(ListKind::List, items, budget)
    }

    pub(crate) fn tuple(items: Vec<Value>, budget: &Budget) -> Res<Self> {
        Self::sequence(ListKind::Tuple, items, budget)
    }

    /// A generator over these items, called `name` when it is printed.
    pub(crate) fn iter(name: &'static str, items: Vec<Value>, budget: &Budget) -> Res<Self> {
        Self::broken_iter(name, items, None, budget)
    }

    /// As `iter`, with an error after the items.
    pub(crate) fn broken_iter(
        name: &'static str,
        items: Vec<Value>,
        fault: Option<Fault>,
        budget: &Budget,
    ) -> Res<Self> {
        budget.items(items.len() + 1)?;
        let depth = depth_over(items.iter())?;
        let (items, fault) = (RefCell::new(items.into()), RefCell::new(fault));
        Ok(Self::Iter(Rc::new(Iter { items, fault, name, depth })))
    }

    /// A dict of entries whose keys differ; pays for it.
    pub(crate) fn map(entries: Vec<(Value, Value)>, budget: &Budget) -> Res<Self> {
        budget.items(entries.len().saturating_mul(2) + 1)?;
        let depth = depth_over(entries.iter().flat_map(|(key, value)| [key, value]))?;
        let index = (entries.len() > MAX_SCANNED).then(|| {
            let keys = entries.iter().enumerate();
            keys.filter_map(|(at, (key, _))| match key {
                Value::Str(text) => Some((text.shared(), at)),
                _ => None,
            })
            .collect()
        });
        Ok(Self::Map(Rc::new(Map { entries, index, depth })))
    }

    pub(crate) fn cycler(items: Vec<Value>, budget: &Budget) -> Res<Self> {
        budget.items(items.len())?;
        let depth = depth_over(items.iter())?;
        Ok(Self::Cycler(Rc::new(Cycler { items, at: Cell::new(0), depth })))
    }

    /// A method of a value, named but not called.
    pub(crate) fn method(receiver: Value, method: Method) -> Res<Self> {
        depth_over(std::iter::once(&receiver))?;
        Ok(Self::Method(Rc::new((receiver, method))))
    }

    /// A string that the template wrote; the caller has paid.
    pub(crate) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Str(Text::new(text, Source::Template))
    }

    pub(crate) fn int(value: usize) -> Self {
        Self::Int(i128::try_from(value).unwrap_or(i128::MAX))
    }

    /// A value that does not exist, for this reason.
    pub(crate) fn missing(reason: impl Into<Arc<str>>) -> Self {
        Self::Undefined(Undefined::Because(reason.into()))
    }

    /// A value of the request. Not paid for: the budget grows with the request.
    pub(crate) fn from_json(json: serde_json::Value, source: Source, free: &Budget) -> Res<Self> {
        Ok(match json {
            serde_json::Value::Null => Self::None,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::String(text) => Self::Str(Text::new(text, source)),
            serde_json::Value::Number(number) => match number.as_i128() {
                Some(value) => Self::Int(value),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::Array(items) => {
                let items = items.into_iter().map(|item| Self::from_json(item, source, free));
                Self::list(items.collect::<Res<_>>()?, free)?
            }
            serde_json::Value::Object(map) => {
                let entry = |(key, value): (String, serde_json::Value)| {
                    let key = Self::Str(Text::new(key, source));
                    Ok((key, Self::from_json(value, source, free)?))
                };
                Self::map(map.into_iter().map(entry).collect::<Res<_>>()?, free)?
            }
        })
    }

    /// The levels of values in it; 0 if it contains no others.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::Iter(iter) => iter.depth,
            Self::Loop(state) => state.depth,
            Self::Cycler(cycler) => cycler.depth,
            Self::Method(method) => method.0.depth() + 1,
            Self::Joiner(joiner) => joiner.separator.depth() + 1,
            _ => 0,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// As Python's `int`, which includes `bool`.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "Python rounds as well")]
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => text.len() > 0,
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Range(range) => range.len() > 0,
            _ => true,
        }
    }

    /// Python's name of its type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(text) => {
                if text.markup {
                    "Markup"
                } else {
                    "str"
                }
            }
            Self::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple => "tuple",
                ListKind::Group => "_GroupTuple",
                ListKind::Keys => "dict_keys",
                ListKind::Values => "dict_values",
                ListKind::Items => "dict_items",
            },
            Self::Map(_) => "dict",
            Self::Range(_) => "range",
            Self::Iter(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Method(_) => "builtin_function_or_method",
            Self::Function(_) => "function",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
        }
    }

    /// The error of using a value that does not exist; `Ok` for one that does.
    pub(crate) fn defined(&self) -> Res<()> {
        match self {
            Self::Undefined(undefined) => Err(undefined.fault()),
            _ => Ok(()),
        }
    }

    /// The items of an iteration over this value; pays for them.
    pub(crate) fn items(&self, budget: &Budget) -> Res<Vec<Value>> {
        match self {
            Self::Undefined(_) => Ok(Vec::new()),
            Self::List(list) => {
                budget.items(list.items.len())?;
                Ok(list.items.clone())
            }
            Self::Map(map) => {
                budget.items(map.entries.len())?;
                Ok(map.entries.iter().map(|(key, _)| key.clone()).collect())
            }
            Self::Str(text) => {
                // Each character becomes a separate string.
                budget.items(text.len().saturating_mul(2))?;
                let chars = text.as_str().char_indices();
                // Iterating over markup yields plain strings.
                let plain = |mut text: Text| {
                    text.markup = false;
                    Self::Str(text)
                };
                Ok(chars.map(|(at, c)| plain(text.slice(at..at + c.len_utf8()))).collect())
            }
            Self::Range(range) => {
                budget.items(range.len())?;
                Ok((0..range.len()).map(|at| range.get(at)).collect())
            }
            Self::Iter(iter) => {
                budget.items(iter.items.borrow().len())?;
                iter.take()
            }
            other => fail!("'{}' object is not iterable", other.type_name()),
        }
    }

    /// Python's `len`.
    pub(crate) fn len(&self, budget: &Budget) -> Res<usize> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::List(list) => Ok(list.items.len()),
            Self::Map(map) => Ok(map.entries.len()),
            Self::Range(range) => Ok(range.len()),
            Self::Str(text) => {
                budget.pay(text.len())?;
                Ok(text.as_str().chars().count())
            }
            other => fail!("object of type '{}' has no len()", other.type_name()),
        }
    }
}

impl Undefined {
    /// The error of using it.
    pub(crate) fn fault(&self) -> Fault {
        Fault::failed(match self {
            Self::Name(name) => format!("'{}' is undefined", shortened(name)),
            Self::Member(owner, name) => {
                let owner = if *owner == "Undefined" { "" } else { owner };
                format!("'{owner} object' has no attribute '{}'", shortened(name))
            }
            Self::Because(reason) => shortened(reason).to_owned(),
        })
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// A body of JSON has at most 128 levels, the message list and calls on top.
pub(crate) const MAX_DEPTH: usize = 200;
/// Larger dicts are indexed.
const MAX_SCANNED: usize = 8;
