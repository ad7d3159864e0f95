//! Prints values as Python's `str` and `repr` do.

use std::fmt::Write;

use crate::error::{Fault, Res};
use crate::floats;
use crate::interp::Interp;
use crate::text::{Source, Text, TextBuf};
use crate::value::{ListKind, Value};

/// Appends `str(value)`; pays for it.
pub(crate) fn str_into(value: &Value, out: &mut TextBuf, interp: &Interp) -> Res<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Str(text) => {
            interp.budget.pay(text.cost())?;
            out.push_text(text);
            Ok(())
        }
        other => repr_at(other, out, interp, 0),
    }
}

/// `str(value)`, which is the text itself if it is one.
pub(crate) fn text_of(value: &Value, interp: &Interp) -> Res<Text> {
    if let Value::Str(text) = value {
        return Ok(text.clone());
    }
    let mut out = TextBuf::default();
    str_into(value, &mut out, interp)?;
    Ok(out.finish())
}

/// Appends `repr(value)`; pays for it.
pub(crate) fn repr_into(value: &Value, out: &mut TextBuf, interp: &Interp) -> Res<()> {
    repr_at(value, out, interp, 0)
}

fn repr_at(value: &Value, out: &mut TextBuf, interp: &Interp, depth: usize) -> Res<()> {
    interp.budget.step()?;
    if depth > MAX_PRINTED_DEPTH {
        return Err(Fault::failed("maximum recursion depth exceeded while printing a value"));
    }
    let plain = |out: &mut TextBuf, text: &str| out.push(text, Source::Template);
    match value {
        Value::Undefined(_) => plain(out, "Undefined"),
        Value::None => plain(out, "None"),
        Value::Bool(value) => plain(out, if *value { "True" } else { "False" }),
        Value::Int(value) => plain(out, &value.to_string()),
        Value::Float(value) => plain(out, &floats::repr(*value)),
        Value::Str(text) => quoted(text, out, interp)?,
        Value::List(list) => {
            let (open, close) = match list.kind {
                ListKind::List => ("[", "]"),
                ListKind::Tuple | ListKind::Group if list.items.len() == 1 => ("(", ",)"),
                ListKind::Tuple | ListKind::Group => ("(", ")"),
                ListKind::Keys => ("dict_keys([", "])"),
                ListKind::Values => ("dict_values([", "])"),
                ListKind::Items => ("dict_items([", "])"),
            };
            plain(out, open);
            for (at, item) in list.items.iter().enumerate() {
                plain(out, if at == 0 { "" } else { ", " });
                repr_at(item, out, interp, depth + 1)?;
            }
            plain(out, close);
        }
        Value::Map(map) => {
            plain(out, "{");
            for (at, (key, value)) in map.entries.iter().enumerate() {
                plain(out, if at == 0 { "" } else { ", " });
                repr_at(key, out, interp, depth + 1)?;
                plain(out, ": ");
                repr_at(value, out, interp, depth + 1)?;
            }
            plain(out, "}");
        }
        Value::Range(range) => plain(
            out,
            &match range.step {
                1 => format!("range({}, {})", range.start, range.stop),
                step => format!("range({}, {}, {step})", range.start, range.stop),
            },
        ),
        Value::Namespace(index) => namespace(*index, out, interp, depth)?,
        Value::Iter(iter) => plain(out, &format!("<generator object {}>", iter.name)),
        Value::Macro(reference) => {
            let name = interp.program.macros.get(reference.index).map_or("", |found| &found.name);
            interp.budget.pay(name.len())?;
            let shown = if name.is_empty() { "anonymous".into() } else { format!("'{name}'") };
            plain(out, &format!("<Macro {shown}>"));
        }
        Value::Loop(state) => {
            plain(out, &state.repr());
        }
        Value::Method(bound) => {
            let text =
                format!("<built-in method {} of {} object>", bound.1.name(), bound.0.type_name());
            plain(out, &text);
        }
        Value::Function(function) => plain(out, function.repr()),
        Value::Cycler(_) => plain(out, "<jinja2.utils.Cycler object>"),
        Value::Joiner(_) => plain(out, "<jinja2.utils.Joiner object>"),
    }
    Ok(())
}

fn namespace(index: usize, out: &mut TextBuf, interp: &Interp, depth: usize) -> Res<()> {
    out.push("<Namespace {", Source::Template);
    let entries = interp.namespaces.get(index).map_or(&[][..], Vec::as_slice);
    for (at, (key, value)) in entries.iter().enumerate() {
        out.push(if at == 0 { "" } else { ", " }, Source::Template);
        quoted(&Text::new(key.clone(), Source::Template), out, interp)?;
        out.push(": ", Source::Template);
        repr_at(value, out, interp, depth + 1)?;
    }
    out.push("}>", Source::Template);
    Ok(())
}

/// Appends a text in quotes, its special characters escaped.
fn quoted(text: &Text, out: &mut TextBuf, interp: &Interp) -> Res<()> {
    // A byte becomes four at most, as in '\x00'.
    let rate = if text.is_ascii() { 2 } else { NOT_ASCII_COST };
    interp.budget.pay(text.cost().saturating_mul(rate))?;
    let is_markup = text.markup;
    if is_markup {
        out.push("Markup(", Source::Template);
    }
    let whole = text.as_str();
    let quote = if whole.contains('\'') && !whole.contains('"') { '"' } else { '\'' };
    out.push_char(quote, Source::Template);
    let mut buffer = String::new();
    for (piece, source) in text.all_pieces() {
        buffer.clear();
        piece.chars().for_each(|c| escape(c, quote, &mut buffer));
        interp.budget.pay(buffer.len() - piece.len())?;
        out.push(&buffer, source);
    }
    out.push_char(quote, Source::Template);
    if is_markup {
        out.push(")", Source::Template);
    }
    Ok(())
}

fn escape(c: char, quote: char, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = match c {
        '\\' => out.write_str("\\\\"),
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        c if c == quote => write!(out, "\\{c}"),
        c if is_printable(c) => out.write_char(c),
        c => match u32::from(c) {
            code @ 0..=0xFF => write!(out, "\\x{code:02x}"),
            code @ 0..=0xFFFF => write!(out, "\\u{code:04x}"),
            code => write!(out, "\\U{code:08x}"),
        },
    };
}

/// Python's `str.isprintable`.
pub(crate) fn is_printable(c: char) -> bool {
    if matches!(c, ' '..='~') || c.is_alphanumeric() {
        return true;
    }
    if c.is_whitespace() || c.is_control() {
        return false;
    }
    // A combining mark is printable after a letter.
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().count() == 2
}

/// Units for each byte of a text in which Unicode is looked up.
const NOT_ASCII_COST: usize = 16;
/// Deeper than any value; only namespaces can hold each other.
const MAX_PRINTED_DEPTH: usize = crate::value::MAX_DEPTH + 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_characters_are_escaped_as_python_escapes_them() {
        let cases = [
            ("it's", "it\\'s"),
            ("\0\x1b\u{a0}\n\\", "\\x00\\x1b\\xa0\\n\\\\"),
            ("e\u{301}日🔥\u{200b}\u{e0001}", "e\u{301}日🔥\\u200b\\U000e0001"),
        ];
        for (text, wanted) in cases {
            let mut out = String::new();
            text.chars().for_each(|c| escape(c, '\'', &mut out));
            assert_eq!(out, wanted);
        }
    }
}
