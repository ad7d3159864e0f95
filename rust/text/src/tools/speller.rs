//! [2] Markup in grammars: special tokens by their number, everything else as text. A marker is always a
//! lexeme of its own: the lexer does not go back, so no text may begin like a longer one and end before it.

use crate::Tokenizer;
use crate::grammar::{Marker, literal};

/// Knows a format's markers.
#[derive(Clone, Debug)]
pub(crate) struct Speller {
    markers: Vec<(&'static str, Marker)>,
}

impl Speller {
    pub(crate) fn new(markers: &'static [&'static str], tokenizer: &Tokenizer) -> Self {
        let marker = |text: &&'static str| (*text, Marker::new(text, tokenizer));
        Self { markers: markers.iter().map(marker).collect() }
    }

    /// What matches exactly `text`, in Lark; nothing for an empty text.
    pub(crate) fn spell(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found =
                self.markers.iter().filter_map(|(name, m)| Some((rest.find(name)?, name, m)));
            let Some((at, name, marker)) = found.min_by_key(|(at, ..)| *at) else {
                parts.push(literal(rest));
                break;
            };
            if at > 0 {
                parts.push(literal(&rest[..at]));
            }
            parts.push(marker.token());
            rest = &rest[at + name.len()..];
        }
        parts.join(" ")
    }

    /// Whether `text` is a marker and a special token.
    pub(crate) fn is_special(&self, text: &str) -> bool {
        self.markers.iter().any(|(name, marker)| *name == text && marker.is_special())
    }

    /// The rule `name`: any text up to the first `text`, and that.
    pub(crate) fn until(&self, text: &str, name: &str) -> String {
        match self.markers.iter().find(|(known, _)| *known == text) {
            Some((_, marker)) => marker.until(name),
            None => Marker::plain(text).until(name),
        }
    }
}
