//! `tojson` as transformers defines it: Python's `json.dumps` without escapes for HTML. Every space
//! of its output matters: the prompt, the prefix cache and the model's answer depend on it.

use crate::args::{Args, count};
use crate::error::{Res, fail};
use crate::floats;
use crate::interp::Interp;
use crate::ops;
use crate::text::{Source, Text, TextBuf};
use crate::value::{ListKind, Value};

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(value: &Value, mut args: Args, interp: &Interp) -> Res<Value> {
    let ensure_ascii = args.flag("ensure_ascii", false);
    let indent = match args.next("indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text),
        Some(other) => match other.as_int() {
            Some(spaces) => {
                interp.budget.pay(count(spaces))?;
                Some(Text::new(" ".repeat(count(spaces)), Source::Template))
            }
            None => fail!("can't multiply sequence by non-int of type '{}'", other.type_name()),
        },
    };
    let template = |text: &str| Text::new(text, Source::Template);
    let mut separators = [template(if indent.is_some() { "," } else { ", " }), template(": ")];
    match args.next("separators") {
        None | Some(Value::None) => {}
        Some(given) => {
            let given = given.items(&interp.budget)?;
            let [Value::Str(item), Value::Str(key)] = given.as_slice() else {
                fail!("tojson: separators must be two strings");
            };
            separators = [item.clone(), key.clone()];
        }
    }
    let sort_keys = args.flag("sort_keys", false);
    args.end()?;
    let mut writer = Writer {
        out: TextBuf::default(),
        interp,
        ensure_ascii,
        indent,
        separators,
        sort_keys,
        depth: 0,
    };
    writer.value(value)?;
    interp.budget.pay(writer.out.len())?;
    Ok(Value::Str(writer.out.finish()))
}

struct Writer<'i, 't> {
    out: TextBuf,
    interp: &'i Interp<'t>,
    ensure_ascii: bool,
    indent: Option<Text>,
    /// Between items, and between key and value.
    separators: [Text; 2],
    sort_keys: bool,
    depth: usize,
}

impl Writer<'_, '_> {
    fn plain(&mut self, text: &str) -> Res<()> {
        self.interp.budget.pay(text.len())?;
        self.out.push(text, Source::Template);
        Ok(())
    }

    fn text(&mut self, text: &Text) -> Res<()> {
        self.interp.budget.pay(text.cost())?;
        self.out.push_text(text);
        Ok(())
    }

    fn value(&mut self, value: &Value) -> Res<()> {
        self.interp.budget.step()?;
        match value {
            Value::None => self.plain("null"),
            Value::Bool(value) => self.plain(if *value { "true" } else { "false" }),
            Value::Int(value) => self.plain(&value.to_string()),
            Value::Float(value) => self.plain(&float(*value)),
            Value::Str(text) => self.string(text),
            Value::List(list)
                if matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group) =>
            {
                self.depth += 1;
                self.plain("[")?;
                for (at, item) in list.items.iter().enumerate() {
                    self.before_item(at)?;
                    self.value(item)?;
                }
                self.close("]", list.items.is_empty())
            }
            Value::Map(map) => {
                self.depth += 1;
                self.plain("{")?;
                let sorted;
                let mut entries = &map.entries;
                if self.sort_keys {
                    sorted = self.sorted(&map.entries)?;
                    entries = &sorted;
                }
                for (at, (key, value)) in entries.iter().enumerate() {
                    self.before_item(at)?;
                    self.key(key)?;
                    let separator = self.separators[1].clone();
                    self.text(&separator)?;
                    self.value(value)?;
                }
                self.close("}", entries.is_empty())
            }
            other => fail!("Object of type {} is not JSON serializable", other.type_name()),
        }
    }

    /// Insertion sort: objects are small, and every comparison is paid for.
    fn sorted(&self, entries: &[(Value, Value)]) -> Res<Vec<(Value, Value)>> {
        self.interp.budget.items(entries.len() * 2)?;
        let mut sorted: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (mut low, mut high) = (0, sorted.len());
            while low < high {
                let middle = usize::midpoint(low, high);
                let Some((known, _)) = sorted.get(middle) else { break };
                let order = ops::order(key, known, "<", &self.interp.budget)?;
                match order.is_some_and(std::cmp::Ordering::is_lt) {
                    true => high = middle,
                    false => low = middle + 1,
                }
            }
            self.interp.budget.pay(sorted.len() - low)?;
            sorted.insert(low, (key.clone(), value.clone()));
        }
        Ok(sorted)
    }

    fn key(&mut self, key: &Value) -> Res<()> {
        match key {
            Value::Str(text) => self.string(text),
            // Python turns numbers, booleans and None into strings here.
            Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::None => {
                self.plain("\"")?;
                self.value(key)?;
                self.plain("\"")
            }
            other => {
                fail!("keys must be str, int, float, bool or None, not {}", other.type_name())
            }
        }
    }

    fn string(&mut self, text: &Text) -> Res<()> {
        self.interp.budget.pay(text.cost())?;
        self.plain("\"")?;
        let escapes = |c: char| {
            matches!(c, '"' | '\\' | '\0'..='\u{1F}') || (self.ensure_ascii && c > '\u{7E}')
        };
        let mut buffer = String::new();
        let budget = &self.interp.budget;
        for (piece, source) in text.all_pieces() {
            let mut rest = piece;
            while let Some(at) = rest.find(escapes) {
                let (before, after) = rest.split_at(at);
                self.out.push(before, source);
                let Some(c) = after.chars().next() else { break };
                buffer.clear();
                escape(c, &mut buffer);
                budget.pay(buffer.len())?;
                self.out.push(&buffer, source);
                rest = after.get(c.len_utf8()..).unwrap_or("");
            }
            self.out.push(rest, source);
        }
        self.plain("\"")
    }

    fn before_item(&mut self, at: usize) -> Res<()> {
        if at > 0 {
            let separator = self.separators[0].clone();
            self.text(&separator)?;
        }
        self.new_line()
    }

    fn close(&mut self, bracket: &str, empty: bool) -> Res<()> {
        self.depth -= 1;
        if !empty {
            self.new_line()?;
        }
        self.plain(bracket)
    }

    fn new_line(&mut self) -> Res<()> {
        let Some(indent) = self.indent.clone() else { return Ok(()) };
        self.plain("\n")?;
        for _ in 0..self.depth {
            self.text(&indent)?;
        }
        Ok(())
    }
}

fn escape(c: char, out: &mut String) {
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
}

/// Python's JSON has names for numbers that JSON lacks.
fn float(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        value => floats::repr(value),
    }
}
