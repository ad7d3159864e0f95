//! Pieces of grammars in llguidance's Lark dialect.

use std::fmt::Write as _;

/// A Lark string literal that matches exactly `text`.
pub(crate) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a String cannot fail.
            '\0'..='\x1f' | '\x7f' => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The regex between slashes; `/` and line feeds in it are escaped. `\d`, `\w` and `\s` mean ASCII,
/// as whoever asks for digits expects.
pub(crate) fn regex(pattern: &str) -> String {
    format!("/{}/", llguidance::regex_to_lark(pattern, "dws"))
}

/// A regex, for use between slashes, that matches exactly `text`.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        // Not every mark: `\<` and `\>` are word boundaries.
        if "\\.+*?()|[]{}^$#&-~/".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
