//! [2] Python's `json.dumps`: the prompt, and with it the prefix cache and the model's answer, depend
//! on every space of it.

use super::args::Args;
use super::fault::Fault;
use super::print;
use super::run::Host;
use super::strings;
use super::value::{List, Map, Value};
use super::work::Work;

/// The filter `tojson` of transformers: `json.dumps(x, ensure_ascii=False, indent=None,
/// separators=None, sort_keys=False)`.
pub(crate) fn to_json(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let layout = Layout::new(&mut args, host)?;
    args.end()?;
    let mut writer = Writer { out: String::new(), layout, work: host.work, depth: 0 };
    // A byte becomes six at most, as in \u0000.
    host.work.spend(value.shape().weight)?;
    writer.value(&value)?;
    Value::text(writer.out, host.work)
}

/// The keyword arguments of `json.dumps`.
struct Layout<'r> {
    ensure_ascii: bool,
    /// Characters that stand for ASCII ones until the text is rendered.
    marks: &'r str,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl<'r> Layout<'r> {
    fn new(args: &mut Args, host: &Host<'r>) -> Result<Self, Fault> {
        let ensure_ascii = args.flag("ensure_ascii");
        let indent = match args.next("indent") {
            None | Some(Value::None) => None,
            Some(Value::Str(text)) => Some(text.to_string()),
            Some(value) => match value.as_int().and_then(|spaces| u8::try_from(spaces).ok()) {
                Some(spaces) => Some(" ".repeat(spaces.into())),
                None => return Err(Fault::failed("tojson: indent must be 0 to 255, or a text")),
            },
        };
        let mut item_separator = if indent.is_some() { "," } else { ", " }.to_string();
        let mut key_separator = ": ".to_string();
        if let Some(separators) = args.next("separators").filter(|given| given.is_true()) {
            let pair = separators.items(host.work)?;
            let [Value::Str(item), Value::Str(key)] = pair.as_slice() else {
                return Err(Fault::failed("tojson: separators must be two texts"));
            };
            (item_separator, key_separator) = (item.to_string(), key.to_string());
        }
        let sort_keys = args.flag("sort_keys");
        let marks = host.given.marks;
        Ok(Self { ensure_ascii, marks, indent, item_separator, key_separator, sort_keys })
    }

    fn escapes(&self, c: char) -> bool {
        c < ' ' || (self.ensure_ascii && !matches!(c, ' '..='~') && !self.marks.contains(c))
    }
}

struct Writer<'r> {
    out: String,
    layout: Layout<'r>,
    work: &'r Work,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Fault> {
        match value {
            Value::None => self.push("null"),
            Value::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) => self.push(&float(*value)),
            Value::Str(text) => self.string(text),
            Value::List(list) if !list.is_index_only() => self.list(list),
            Value::Map(map) => self.map(map),
            other => {
                let kind = other.type_name();
                Err(Fault::failed(format!("tojson: a {kind} is not JSON serializable")))
            }
        }
    }

    fn push(&mut self, text: &str) -> Result<(), Fault> {
        self.work.spend(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    fn list(&mut self, list: &List) -> Result<(), Fault> {
        self.push("[")?;
        self.depth += 1;
        for (at, item) in list.items.iter().enumerate() {
            self.before_item(at == 0)?;
            self.value(item)?;
        }
        self.leave(list.items.is_empty())?;
        self.push("]")
    }

    fn map(&mut self, map: &Map) -> Result<(), Fault> {
        let mut entries: Vec<&(Value, Value)> = map.entries.iter().collect();
        if self.layout.sort_keys {
            self.work.items(entries.len().saturating_mul(16))?;
            let all_texts = entries.iter().all(|(key, _)| key.as_str().is_some());
            if !all_texts {
                return Err(Fault::failed("tojson: only texts can be sorted as keys"));
            }
            entries.sort_by(|(left, _), (right, _)| left.as_str().cmp(&right.as_str()));
        }
        self.push("{")?;
        self.depth += 1;
        for (at, (key, value)) in entries.into_iter().enumerate() {
            self.before_item(at == 0)?;
            self.key(key)?;
            let separator = std::mem::take(&mut self.layout.key_separator);
            self.push(&separator)?;
            self.layout.key_separator = separator;
            self.value(value)?;
        }
        self.leave(map.entries.is_empty())?;
        self.push("}")
    }

    fn key(&mut self, key: &Value) -> Result<(), Fault> {
        match key {
            Value::Str(text) => self.string(text),
            // Python turns numbers, booleans and None into strings here.
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                self.push("\"")?;
                self.value(key)?;
                self.push("\"")
            }
            other => Err(Fault::failed(format!("tojson: a key cannot be a {}", other.type_name()))),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Fault> {
        self.work.spend(text.len().saturating_mul(2))?;
        let out = &mut self.out;
        out.push('"');
        let mut rest = text;
        // Runs without an escape are copied whole.
        while let Some((before, c, after)) =
            strings::split_at_char(rest, |c| c == '"' || c == '\\' || self.layout.escapes(c))
        {
            out.push_str(before);
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                c => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
            rest = after;
        }
        out.push_str(rest);
        out.push('"');
        Ok(())
    }

    fn leave(&mut self, empty: bool) -> Result<(), Fault> {
        self.depth -= 1;
        if empty { Ok(()) } else { self.new_line() }
    }

    fn before_item(&mut self, first: bool) -> Result<(), Fault> {
        if !first {
            let separator = std::mem::take(&mut self.layout.item_separator);
            self.push(&separator)?;
            self.layout.item_separator = separator;
        }
        self.new_line()
    }

    fn new_line(&mut self) -> Result<(), Fault> {
        let Some(indent) = &self.layout.indent else { return Ok(()) };
        self.work.spend(indent.len().saturating_mul(self.depth).saturating_add(1))?;
        self.out.push('\n');
        (0..self.depth).for_each(|_| self.out.push_str(indent));
        Ok(())
    }
}

fn float(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".into(),
        value if value.is_infinite() => if value > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        value => print::float(value),
    }
}
