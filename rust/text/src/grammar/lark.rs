//! Helpers for grammars in llguidance's Lark dialect.

use std::fmt::Write as _;

use crate::Tokenizer;

/// A marker (`<think>`, `[TOOL_CALLS]`, …) in a grammar. A special token is known by its number: its
/// text matches nothing, as text of the request that looks like it is no marker either.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    text: String,
    special: Option<u32>,
}

impl Marker {
    pub(crate) fn new(text: &str, tokenizer: &Tokenizer) -> Self {
        let special = tokenizer.token_to_id(text).filter(|&id| tokenizer.is_special(id));
        Self { text: text.to_owned(), special }
    }

    /// One that is text.
    pub(crate) fn plain(text: &str) -> Self {
        Self { text: text.to_owned(), special: None }
    }

    pub(crate) fn is_special(&self) -> bool {
        self.special.is_some()
    }

    /// The marker itself.
    pub(crate) fn token(&self) -> String {
        self.special.map_or_else(|| literal(&self.text), |id| format!("<[{id}]>"))
    }

    /// The rule `name`: any text up to the first marker, and the marker.
    pub(crate) fn until(&self, name: &str) -> String {
        match self.special {
            Some(id) => format!("{name}: /(.|\\n)*/ <[{id}]>\n"),
            // A lazy rule ends at the first match.
            None => format!("{name}[lazy]: /(.|\\n)*{}/\n", escaped(&self.text)),
        }
    }

    /// The rule `name`: any text without the marker.
    pub(crate) fn without(&self, name: &str) -> String {
        let upper = name.to_uppercase();
        match self.special {
            Some(_) => format!("{name}: {upper}?\n{upper}: /(.|\\n)+/\n"),
            None => {
                let marker = escaped(&self.text);
                let rule = format!("/(.|\\n)+/ & ~/(.|\\n)*{marker}(.|\\n)*/");
                format!("{name}: {upper}?\n{upper}: {rule}\n")
            }
        }
    }
}

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
fn escaped(text: &str) -> String {
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
