//! [7] Reads one JSON object that is a tool call, character by character. Reports the name once its
//! arguments have begun as an object, then the arguments' JSON text as it arrives. Arguments that
//! are not an object make no call; null counts as no arguments.

use crate::answer_piece::Pieces;

/// A call while it is read.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    place: Place,
    key: String,
    name: Option<String>,
    arguments: Arguments,
    value: ValueScan,
    /// The value that is being read, if it is the name, or arguments that are a JSON string.
    text: String,
    reads: Reads,
    /// Only the arguments: the name stood before them.
    bare: bool,
}

/// What the objects may be that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// After a marker: calls, perhaps with keys of their own.
    Anything,
    /// A key that no call has makes it no call, so that other JSON need not be held back to its end.
    Calls,
    /// The same, and a name alone makes no call, only a name and an object of arguments.
    CallsOrJson,
}

/// What the reader has learnt from a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStep {
    /// More is needed.
    More,
    /// The name is known: ask `name`. It is a call only if its arguments are an object.
    Named,
    /// The arguments have begun, or have been read, and are an object: this is a call.
    Begun,
    /// The object is complete.
    Done,
    /// This is not a call.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before `{`.
    Open,
    /// Before a key or `}`.
    Key {
        first: bool,
    },
    InKey {
        escaped: bool,
    },
    Colon,
    /// Before a value.
    Value,
    InValue(Use),
    /// Before `,` or `}`.
    Comma,
    Done,
}

/// What a value is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Name,
    Arguments,
    /// Arguments as a JSON string that holds the JSON text: decoded, so that the client decodes once.
    QuotedArguments,
    /// Perhaps `null`.
    NoArguments,
    /// Of no use.
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Arguments {
    None,
    /// They came before the name, or are about to be shown.
    Waiting(String),
    Shown,
}

/// Where a JSON value ends.
#[derive(Clone, Copy, Debug, Default)]
struct ValueScan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    is_scalar: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueStep {
    More,
    /// The character is the value's last.
    Last,
    /// The value ended before the character.
    Past,
}

impl CallReader {
    /// Reads `{"name": .., "arguments": ..}`.
    pub(crate) fn new(reads: Reads) -> Self {
        Self {
            place: Place::Open,
            key: String::new(),
            name: None,
            arguments: Arguments::None,
            value: ValueScan::default(),
            text: String::new(),
            reads,
            bare: false,
        }
    }

    /// Reads an object that is the arguments of the call `name`, which stood before it.
    pub(crate) fn bare(name: String) -> Self {
        Self {
            place: Place::Value,
            key: "arguments".into(),
            name: Some(name),
            bare: true,
            ..Self::new(Reads::Anything)
        }
    }

    /// The name, once known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether a value has just ended, and the arguments are among those that have been read.
    pub(crate) fn has_whole_arguments(&self) -> bool {
        self.place == Place::Comma && self.arguments == Arguments::Shown
    }

    /// Emits arguments that came before the call was sent. `index` is the call's, as in `step`.
    pub(crate) fn show_waiting(&mut self, index: u32, out: &mut Pieces) {
        if let Arguments::Waiting(text) = &self.arguments {
            out.arguments(index, text);
            self.arguments = Arguments::Shown;
        }
    }

    /// The object ended: arguments that never came are an empty object.
    pub(crate) fn end(&self, index: u32, out: &mut Pieces) {
        if self.arguments == Arguments::None {
            out.arguments(index, "{}");
        }
    }

    /// Takes the next character.
    pub(crate) fn step(&mut self, c: char, index: u32, out: &mut Pieces) -> CallStep {
        match self.place {
            Place::Open | Place::Key { .. } | Place::Colon | Place::Comma if is_space(c) => {}
            Place::Open if c == '{' => self.place = Place::Key { first: true },
            Place::Key { .. } if c == '"' => {
                self.key.clear();
                self.place = Place::InKey { escaped: false };
            }
            Place::Key { first: true } | Place::Comma if c == '}' => return self.close(),
            Place::InKey { escaped: false } if c == '"' => {
                if self.reads != Reads::Anything && !KEYS.contains(&self.key.as_str()) {
                    return CallStep::Broken;
                }
                self.place = Place::Colon;
            }
            Place::InKey { escaped } => {
                self.key.push(c);
                self.place = Place::InKey { escaped: !escaped && c == '\\' };
            }
            Place::Colon if c == ':' => self.place = Place::Value,
            Place::Value if is_space(c) => {}
            Place::Value => return self.begin_value(c, index, out),
            Place::InValue(kind) => return self.step_value(kind, c, index, out),
            Place::Comma if c == ',' => self.place = Place::Key { first: false },
            _ => return CallStep::Broken,
        }
        CallStep::More
    }

    fn close(&mut self) -> CallStep {
        self.place = Place::Done;
        let is_call = self.reads != Reads::CallsOrJson || self.arguments != Arguments::None;
        if self.name.is_some() && is_call { CallStep::Done } else { CallStep::Broken }
    }

    fn begin_value(&mut self, c: char, index: u32, out: &mut Pieces) -> CallStep {
        let kind = match self.key.as_str() {
            "name" if c == '"' && self.name.is_none() => Use::Name,
            "name" => return CallStep::Broken,
            "arguments" | "parameters" if self.arguments == Arguments::None => match c {
                '{' => Use::Arguments,
                _ if self.reads == Reads::CallsOrJson => return CallStep::Broken,
                '"' if !self.bare => Use::QuotedArguments,
                'n' => Use::NoArguments,
                _ => return CallStep::Broken,
            },
            _ => Use::Skip,
        };
        if matches!(c, ',' | ':' | '}' | ']') {
            return CallStep::Broken;
        }
        self.value = ValueScan::default();
        self.text.clear();
        self.place = Place::InValue(kind);
        if kind == Use::Arguments {
            self.arguments = Arguments::Waiting(String::new());
        }
        let step = self.step_value(kind, c, index, out);
        // The first character of an object is never its last.
        let has_begun = kind == Use::Arguments && self.name.is_some();
        if has_begun && step == CallStep::More { CallStep::Begun } else { step }
    }

    fn step_value(&mut self, kind: Use, c: char, index: u32, out: &mut Pieces) -> CallStep {
        let step = self.value.step(c);
        if step != ValueStep::Past {
            match kind {
                Use::Arguments => self.take_arguments(c, index, out),
                Use::Name | Use::QuotedArguments | Use::NoArguments => self.text.push(c),
                Use::Skip => {}
            }
        }
        if kind == Use::NoArguments && !"null".starts_with(&self.text) {
            return CallStep::Broken;
        }
        // Alone it ends with its last letter.
        let is_whole = kind == Use::NoArguments && self.bare && self.text == "null";
        if step == ValueStep::More && !is_whole {
            return CallStep::More;
        }
        self.place = Place::Comma;
        let mut result = CallStep::More;
        match kind {
            Use::Name => match serde_json::from_str::<String>(&self.text) {
                Ok(name) if !name.is_empty() => {
                    self.name = Some(name);
                    let is_call = self.arguments != Arguments::None;
                    result = if is_call { CallStep::Begun } else { CallStep::Named };
                }
                _ => return CallStep::Broken,
            },
            Use::QuotedArguments => match decoded_object(&self.text) {
                Some(object) if object.is_empty() => {}
                Some(object) => {
                    self.arguments = Arguments::Waiting(object);
                    if self.name.is_some() {
                        result = CallStep::Begun;
                    }
                }
                None => return CallStep::Broken,
            },
            Use::NoArguments if self.text != "null" => return CallStep::Broken,
            Use::Arguments | Use::NoArguments | Use::Skip => {}
        }
        if self.bare {
            return self.close();
        }
        // The character after a scalar belongs to the object.
        if step == ValueStep::Past { self.step(c, index, out) } else { result }
    }

    fn take_arguments(&mut self, c: char, index: u32, out: &mut Pieces) {
        let mut buffer = [0; 4];
        self.take_text(c.encode_utf8(&mut buffer), index, out);
    }

    fn take_text(&mut self, text: &str, index: u32, out: &mut Pieces) {
        match &mut self.arguments {
            Arguments::Waiting(waiting) => waiting.push_str(text),
            Arguments::Shown | Arguments::None => out.arguments(index, text),
        }
    }
}

impl ValueScan {
    fn step(&mut self, c: char) -> ValueStep {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    if self.depth == 0 {
                        return ValueStep::Last;
                    }
                }
                _ => {}
            }
            return ValueStep::More;
        }
        if self.is_scalar {
            let ends = matches!(c, ',' | '}' | ']') || is_space(c);
            return if ends { ValueStep::Past } else { ValueStep::More };
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    return ValueStep::Last;
                }
            }
            _ if self.depth == 0 => self.is_scalar = true,
            _ => {}
        }
        ValueStep::More
    }
}

/// The JSON object in a JSON string; empty if the string stands for no arguments.
fn decoded_object(quoted: &str) -> Option<String> {
    let text = serde_json::from_str::<String>(quoted).ok()?;
    if matches!(text.trim(), "" | "null") {
        return Some(String::new());
    }
    let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text);
    object.is_ok().then_some(text)
}

/// Keys of calls.
const KEYS: [&str; 5] = ["name", "arguments", "parameters", "type", "id"];

/// White space of JSON.
pub(crate) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
