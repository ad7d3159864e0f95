//! [2] The values of templates, as Python's. A container knows how deep it is and what walking
//! through it costs: a value that holds others many times over is small in memory and endless to
//! walk. Only a namespace can change, and nothing that could hold it can be stored in it, so no
//! value contains itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::fault::Fault;
use super::functions::Function;
use super::loops::LoopState;
use super::work::Work;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A name or attribute that does not exist; its name for the error.
    Undefined(Option<Arc<str>>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    List(Rc<List>),
    Map(Rc<Map>),
    Function(Function),
    Special(Rc<Special>),
}

/// What cannot be printed or stored in a namespace.
#[derive(Debug)]
pub(crate) enum Special {
    Namespace(RefCell<Vec<(Arc<str>, Value)>>),
    /// A macro of the program, and the frame that it was declared in.
    Macro {
        index: usize,
        frame: usize,
    },
    Loop(LoopState),
    /// A method that was named but not called.
    Method(Value, Arc<str>),
}

/// Python's kinds of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    List,
    Tuple,
    /// What `groupby` makes: a pair with names.
    Group,
    /// `dict.items()` and the like: has a length, but no index.
    View,
    /// A generator: has neither, and is always true.
    Iter,
}

/// A sequence that does not change.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) kind: ListKind,
    pub(crate) items: Vec<Value>,
    shape: Shape,
}

/// A dict that does not change, in order. Keys are few: it is searched from the start.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) entries: Vec<(Value, Value)>,
    shape: Shape,
}

/// What is known of a value without walking through it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    depth: usize,
    /// Units of work of a walk.
    pub(crate) weight: usize,
    /// Whether a `Special` is in it.
    pub(crate) special: bool,
}

impl Shape {
    fn holding<'v>(values: impl Iterator<Item = &'v Value>) -> Result<Self, Fault> {
        let mut all = Self { depth: 0, weight: LEAF_WEIGHT, special: false };
        for value in values {
            let shape = value.shape();
            all.depth = all.depth.max(shape.depth);
            all.weight = all.weight.saturating_add(shape.weight);
            all.special |= shape.special;
        }
        all.depth += 1;
        if all.depth > MAX_DEPTH {
            return Err(Fault::failed(format!("a value is nested deeper than {MAX_DEPTH}")));
        }
        Ok(all)
    }
}

impl Value {
    /// A sequence; pays for it.
    pub(crate) fn list(kind: ListKind, items: Vec<Value>, work: &Work) -> Result<Self, Fault> {
        work.items(items.len())?;
        let shape = Shape::holding(items.iter())?;
        Ok(Self::List(Rc::new(List { kind, items, shape })))
    }

    /// A dict of entries with different keys; pays for it.
    pub(crate) fn map(entries: Vec<(Value, Value)>, work: &Work) -> Result<Self, Fault> {
        work.items(entries.len().saturating_mul(2))?;
        let shape = Shape::holding(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Self::Map(Rc::new(Map { entries, shape })))
    }

    /// A text; pays for it.
    pub(crate) fn text(text: impl AsRef<str> + Into<Arc<str>>, work: &Work) -> Result<Self, Fault> {
        work.spend(text.as_ref().len())?;
        Ok(Self::Str(text.into()))
    }

    /// A namespace, loop, macro or method.
    pub(crate) fn special(special: Special) -> Self {
        Self::Special(Rc::new(special))
    }

    /// A value of the request. Not paid for: the budget grows with the request.
    pub(crate) fn from_json(json: serde_json::Value) -> Result<Self, Fault> {
        Ok(match json {
            serde_json::Value::Null => Self::None,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::String(text) => Self::Str(text.into()),
            serde_json::Value::Number(number) => match number.as_i128() {
                Some(value) => Self::Int(value),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::Array(items) => {
                let items: Vec<Value> =
                    items.into_iter().map(Self::from_json).collect::<Result<_, _>>()?;
                let shape = Shape::holding(items.iter())?;
                Self::List(Rc::new(List { kind: ListKind::List, items, shape }))
            }
            serde_json::Value::Object(map) => {
                let entry = |(key, value): (String, serde_json::Value)| {
                    Ok((Self::Str(key.into()), Self::from_json(value)?))
                };
                let entries: Vec<_> = map.into_iter().map(entry).collect::<Result<_, Fault>>()?;
                let shape = Shape::holding(entries.iter().map(|(_, value)| value))?;
                let weight = entries.iter().map(|(key, _)| key.shape().weight).sum::<usize>();
                let shape = Shape { weight: shape.weight.saturating_add(weight), ..shape };
                Self::Map(Rc::new(Map { entries, shape }))
            }
        })
    }

    pub(crate) fn shape(&self) -> Shape {
        let leaf = Shape { depth: 0, weight: LEAF_WEIGHT, special: false };
        match self {
            Self::Str(text) => Shape { weight: LEAF_WEIGHT + text.len(), ..leaf },
            Self::List(list) => list.shape,
            Self::Map(map) => map.shape,
            Self::Special(special) => {
                let depth = match &**special {
                    Special::Namespace(_) | Special::Macro { .. } => 0,
                    Special::Loop(state) => state.depth_of_items + 1,
                    Special::Method(receiver, _) => receiver.shape().depth + 1,
                };
                Shape { depth, special: true, ..leaf }
            }
            _ => leaf,
        }
    }

    /// How many levels of values are in it; 0 for what holds no others.
    pub(crate) fn depth(&self) -> usize {
        self.shape().depth
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// As Python's `int`, of which `bool` is one.
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
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => list.kind == ListKind::Iter || !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Function(_) | Self::Special(_) => true,
        }
    }

    /// What Python calls its type, for errors.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "undefined",
            Self::None => "None",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple | ListKind::Group => "tuple",
                ListKind::View => "view",
                ListKind::Iter => "generator",
            },
            Self::Map(_) => "dict",
            Self::Function(_) => "function",
            Self::Special(special) => match **special {
                Special::Namespace(_) => "namespace",
                Special::Macro { .. } => "macro",
                Special::Loop(_) => "loop",
                Special::Method(..) => "method",
            },
        }
    }

    /// The error of using an undefined value.
    pub(crate) fn undefined_fault(name: Option<&Arc<str>>) -> Fault {
        match name {
            Some(name) => Fault::failed(format!("{:?} is undefined", shortened(name))),
            None => Fault::failed("a value is undefined"),
        }
    }

    /// The items of a loop over this value; pays for them.
    pub(crate) fn items(&self, work: &Work) -> Result<Vec<Value>, Fault> {
        match self {
            Self::Undefined(_) => Ok(Vec::new()),
            Self::List(list) => {
                work.items(list.items.len())?;
                Ok(list.items.clone())
            }
            Self::Map(map) => {
                work.items(map.entries.len())?;
                Ok(map.entries.iter().map(|(key, _)| key.clone()).collect())
            }
            Self::Str(text) => {
                // Each character becomes a text of its own.
                work.items(text.len().saturating_mul(2))?;
                let mut buffer = [0; 4];
                Ok(text.chars().map(|c| Self::Str((&*c.encode_utf8(&mut buffer)).into())).collect())
            }
            other => Err(Fault::failed(format!("a {} cannot be looped over", other.type_name()))),
        }
    }

    /// Python's `len`.
    pub(crate) fn len(&self, work: &Work) -> Result<usize, Fault> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::List(list) if list.kind != ListKind::Iter => Ok(list.items.len()),
            Self::Map(map) => Ok(map.entries.len()),
            Self::Str(text) => {
                work.spend(text.len())?;
                Ok(text.chars().count())
            }
            other => Err(Fault::failed(format!("a {} has no length", other.type_name()))),
        }
    }
}

impl Map {
    /// The value of a text key.
    pub(crate) fn get_str(&self, key: &str, work: &Work) -> Result<Option<&Value>, Fault> {
        work.spend(self.entries.len())?;
        let found = self.entries.iter().find(|(candidate, _)| candidate.as_str() == Some(key));
        Ok(found.map(|(_, value)| value))
    }
}

/// The beginning of a name, for an error.
pub(crate) fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Int(i128::try_from(value).unwrap_or(i128::MAX))
    }
}

/// A body of JSON has at most 128 levels, the message list and calls on top.
pub(crate) const MAX_DEPTH: usize = 200;
const LEAF_WEIGHT: usize = 32;
