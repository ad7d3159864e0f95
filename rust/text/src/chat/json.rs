//! Python's `json.dumps` for template values: the prompt, and with it the prefix cache and the
//! model's answer, depend on every space of it.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The keyword arguments of `json.dumps`.
#[derive(Debug)]
pub(crate) struct Layout {
    ensure_ascii: bool,
    /// Characters that stand for ASCII ones until the text is rendered.
    marks: String,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Layout {
    pub(crate) fn new(
        ensure_ascii: &Value,
        indent: &Value,
        separators: &Value,
        sort_keys: &Value,
    ) -> Result<Self, Error> {
        let indent = match (indent.is_none(), indent.as_usize(), indent.as_str()) {
            (true, _, _) => None,
            (_, Some(spaces), _) => Some(" ".repeat(spaces.min(MAX_INDENT))),
            (_, _, Some(text)) => Some(text.to_string()),
            _ => return Err(invalid("tojson: indent must be a number or a string")),
        };
        let mut item_separator = if indent.is_some() { "," } else { ", " }.to_string();
        let mut key_separator = ": ".to_string();
        if !separators.is_none() {
            let pair: Vec<Value> = separators.try_iter()?.take(3).collect();
            let [item, key] = pair.as_slice() else {
                return Err(invalid("tojson: separators must be two strings"));
            };
            item_separator = item.to_string();
            key_separator = key.to_string();
        }
        Ok(Self {
            ensure_ascii: ensure_ascii.is_true(),
            marks: String::new(),
            indent,
            item_separator,
            key_separator,
            sort_keys: sort_keys.is_true(),
        })
    }
}

impl Layout {
    /// Lets `ensure_ascii` leave these characters alone.
    pub(crate) fn with_marks(self, marks: &str) -> Self {
        Self { marks: marks.into(), ..self }
    }

    fn escapes(&self, c: char) -> bool {
        c < ' ' || (self.ensure_ascii && !matches!(c, ' '..='~') && !self.marks.contains(c))
    }
}

/// The JSON text of `value`.
pub(crate) fn dumps(value: &Value, layout: &Layout) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), layout, depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer<'l> {
    out: String,
    layout: &'l Layout,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => return Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&python_float(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.enter()?;
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.before_item(empty);
            empty = false;
            self.value(&item)?;
        }
        self.leave(empty);
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        self.enter()?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.layout.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in keys {
            self.before_item(empty);
            empty = false;
            self.key(&key)?;
            self.out.push_str(&self.layout.key_separator);
            self.value(&value.get_item(&key)?)?;
        }
        self.leave(empty);
        self.out.push('}');
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            self.string(text);
            return Ok(());
        }
        // Python turns numbers, booleans and None into strings here.
        if matches!(key.kind(), ValueKind::Number | ValueKind::Bool | ValueKind::None) {
            self.out.push('"');
            self.value(key)?;
            self.out.push('"');
            return Ok(());
        }
        Err(invalid(format!("tojson: a key cannot be a {}", key.kind())))
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                c if self.layout.escapes(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    fn leave(&mut self, empty: bool) {
        self.depth -= 1;
        if !empty {
            self.new_line();
        }
    }

    fn before_item(&mut self, first: bool) {
        if !first {
            self.out.push_str(&self.layout.item_separator);
        }
        self.new_line();
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.layout.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(self.depth));
        }
    }
}

/// `repr` of a Python float: the shortest digits that read back, with an exponent from 1e16 on and
/// below 1e-4.
pub(crate) fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Python's own limit is its recursion limit of 1,000 frames.
const MAX_DEPTH: usize = 200;
const MAX_INDENT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_floats_are_spelled_as_python_spells_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e100, "1e+100"),
            (123456.789, "123456.789"),
        ];
        for (value, wanted) in cases {
            assert_eq!(python_float(value), wanted);
        }
    }
}
