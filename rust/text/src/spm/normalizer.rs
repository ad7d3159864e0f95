//! [2] SentencePiece's normalisation: rules by longest match, spaces as `▁`. Any thread.

use super::proto::{FILE, NormalizerSpec};
use super::user_defined::UserDefined;
use crate::TextError;
use crate::pipeline::CharsMap;

const SPACE: char = '▁';

/// How text becomes what the model sees.
#[derive(Debug)]
pub(super) struct Normalizer {
    rules: Option<CharsMap>,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_spaces: bool,
}

impl Normalizer {
    /// # Errors
    /// `TextError` for unsupported options.
    pub(super) fn new(spec: &NormalizerSpec) -> Result<Self, TextError> {
        if !spec.escape_whitespaces {
            let what = "normalizer_spec.escape_whitespaces";
            return Err(TextError::unsupported(FILE, what, "false"));
        }
        let rules = match spec.charsmap.as_slice() {
            [] => None,
            bytes => Some(CharsMap::new(bytes).map_err(|reason| {
                let message = format!("normalizer_spec.precompiled_charsmap: {reason}");
                TextError::load(FILE, message)
            })?),
        };
        Ok(Self {
            rules,
            add_dummy_prefix: spec.add_dummy_prefix,
            remove_extra_spaces: spec.remove_extra_whitespaces,
        })
    }

    /// The text as the model sees it; `prefix`: it gets the space that words begin with.
    ///
    /// # Errors
    /// `TextError::Encode` if rules make it much longer.
    pub(super) fn apply(
        &self,
        text: &str,
        prefix: bool,
        symbols: &UserDefined,
    ) -> Result<String, TextError> {
        let mut out = String::with_capacity(text.len() + text.len() / 4 + 3);
        let mut rest = text;
        if self.remove_extra_spaces {
            while let Some((" ", len)) = self.first(rest, symbols) {
                rest = &rest[len..];
            }
        }
        if rest.is_empty() {
            return Ok(out);
        }
        if prefix && self.add_dummy_prefix {
            out.push(SPACE);
        }
        let max_len = text.len().saturating_mul(MAX_GROWTH).saturating_add(FREE_GROWTH);
        let mut after_space = self.remove_extra_spaces;
        while let Some((piece, len)) = self.first(rest, symbols) {
            let piece = if after_space { piece.trim_start_matches(' ') } else { piece };
            out.extend(piece.chars().map(|c| if c == ' ' { SPACE } else { c }));
            if !piece.is_empty() {
                after_space = self.remove_extra_spaces && piece.ends_with(' ');
            }
            rest = &rest[len..];
            if out.len() > max_len {
                let message = format!("the normaliser made the text {MAX_GROWTH} times as long");
                return Err(TextError::Encode(message));
            }
        }
        if self.remove_extra_spaces {
            out.truncate(out.trim_end_matches(SPACE).len());
        }
        Ok(out)
    }

    /// What the beginning of a text becomes, and how long that beginning is.
    fn first<'t>(&'t self, text: &'t str, symbols: &UserDefined) -> Option<(&'t str, usize)> {
        let c = text.chars().next()?;
        if let Some((_, len)) = symbols.first(text) {
            return Some((&text[..len], len));
        }
        let rule = self.rules.as_ref().and_then(|rules| rules.longest(text));
        match rule.filter(|(len, _)| text.is_char_boundary(*len)) {
            Some((len, replacement)) => Some((replacement, len)),
            None => Some((&text[..c.len_utf8()], c.len_utf8())),
        }
    }
}

/// Rules are compatibility decompositions, which make a text at most 11 times as long.
const MAX_GROWTH: usize = 16;
const FREE_GROWTH: usize = 4096;
