//! [2] How values print: Python's `str` and `repr`.

use std::fmt::Write;
use std::sync::Arc;

use super::fault::Fault;
use super::value::{ListKind, Special, Value};
use super::work::Work;

/// Appends `str(value)`; pays for it.
pub(crate) fn str_into(value: &Value, out: &mut String, work: &Work) -> Result<(), Fault> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Str(text) => {
            work.spend(text.len())?;
            out.push_str(text);
            Ok(())
        }
        other => repr_into(other, out, work),
    }
}

/// `str(value)`, which is the text itself if it is one.
pub(crate) fn text_of(value: &Value, work: &Work) -> Result<Arc<str>, Fault> {
    if let Value::Str(text) = value {
        return Ok(Arc::clone(text));
    }
    let mut out = String::new();
    str_into(value, &mut out, work)?;
    Ok(out.into())
}

/// Appends `repr(value)`; pays for it.
pub(crate) fn repr_into(value: &Value, out: &mut String, work: &Work) -> Result<(), Fault> {
    // A byte becomes four at most, as in '\x00'.
    work.spend(value.shape().weight.saturating_mul(4))?;
    repr(value, out);
    Ok(())
}

/// `repr`, paid for by the caller: as deep as values may be, as long as four times the weight.
fn repr(value: &Value, out: &mut String) {
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
        Value::Int(value) => number(out, format_args!("{value}")),
        Value::Float(value) => out.push_str(&float(*value)),
        Value::Str(text) => quoted(text, out),
        Value::List(list) => {
            let (open, close) = match list.kind {
                ListKind::List => ("[", "]"),
                ListKind::Tuple | ListKind::Group => ("(", ")"),
                ListKind::View => ("dict_view([", "])"),
                ListKind::Iter => return out.push_str("<generator>"),
            };
            out.push_str(open);
            for (at, item) in list.items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                repr(item, out);
            }
            if list.is_tuple() && list.items.len() == 1 {
                out.push(',');
            }
            out.push_str(close);
        }
        Value::Map(map) => {
            out.push('{');
            for (at, (key, value)) in map.entries.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                repr(key, out);
                out.push_str(": ");
                repr(value, out);
            }
            out.push('}');
        }
        Value::Function(_) => out.push_str("<function>"),
        Value::Special(special) => out.push_str(match **special {
            Special::Namespace(_) => "<Namespace>",
            Special::Macro { .. } => "<Macro>",
            Special::Loop(_) => "<LoopContext>",
            Special::Method(..) => "<built-in method>",
        }),
    }
}

fn number(out: &mut String, digits: std::fmt::Arguments) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(digits);
}

fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ 0..=0xFF => number(out, format_args!("\\x{code:02x}")),
                code @ 0..=0xFFFF => number(out, format_args!("\\u{code:04x}")),
                code => number(out, format_args!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable`, but for the last planes, where marks of the request come from.
fn is_printable(c: char) -> bool {
    if c.is_alphanumeric() || matches!(c, ' '..='~') || c >= '\u{F0000}' {
        return true;
    }
    // A mark that combines is printable behind a letter.
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().count() == 2
}

/// `repr` of a Python float: the shortest digits that read back, with an exponent from 1e16 on and
/// below 1e-4.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
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
            assert_eq!(float(value), wanted);
        }
    }

    #[test]
    fn test_texts_are_quoted_as_python_quotes_them() {
        let cases = [
            ("it's", "\"it's\""),
            ("a\"'b", "'a\"\\'b'"),
            ("\0\x1b\u{a0}\n\\", "'\\x00\\x1b\\xa0\\n\\\\'"),
            ("e\u{301}日🔥\u{200b}\u{e0001}", "'e\u{301}日🔥\\u200b\\U000e0001'"),
        ];
        for (text, wanted) in cases {
            let mut out = String::new();
            quoted(text, &mut out);
            assert_eq!(out, wanted);
        }
    }
}
