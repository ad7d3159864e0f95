//! [7] Arguments in the syntax of a Python call: `key=value, ..`.

use serde_json::Value;

use super::json_text::quoted;
use super::python;

/// Where the next argument ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeywordScan {
    depth: u32,
    quote: Option<char>,
    escaped: bool,
}

impl KeywordScan {
    /// Looks at what lies behind the first `seen` bytes. The end of an argument, and whether it is the
    /// last one; `None` if it has not come, and then all of the text has been seen.
    pub(crate) fn next(&mut self, text: &str, seen: &mut usize) -> Option<(usize, bool)> {
        for (at, c) in text[*seen..].char_indices() {
            let at = *seen + at;
            match (self.quote, c) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), '\\') => self.escaped = true,
                (Some(quote), c) if c == quote => self.quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => self.quote = Some(c),
                (None, '[' | '{' | '(') => self.depth += 1,
                (None, ',' | ')') if self.depth == 0 => {
                    *self = Self::default();
                    return Some((at, c == ')'));
                }
                (None, ']' | '}' | ')') => self.depth = self.depth.saturating_sub(1),
                (None, _) => {}
            }
        }
        *seen = text.len();
        None
    }
}

/// Name and JSON value of one argument. One without a name, of which there were `before` others, has
/// the name that the parameters have at its place; `None` if they have none, or there is no argument.
pub(crate) fn keyword(
    text: &str,
    parameters: Option<&Value>,
    before: usize,
) -> Option<(String, String)> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
    };
    let named = text.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
    let (name, value) = match named {
        Some((name, value)) if is_name(name) => (name, value),
        _ => {
            let properties = parameters?.get("properties")?.as_object()?;
            (properties.keys().nth(before)?.as_str(), text)
        }
    };
    let json = python::to_json(value).unwrap_or_else(|| quoted(value));
    Some((name.to_owned(), json))
}
