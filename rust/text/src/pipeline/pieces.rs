//! [2] The parts of a text that a pre-tokeniser finds, and what it does with them. Any thread.

use serde_json::Value;

use crate::TextError;
use crate::hf::TOKENIZER_JSON;
use crate::pattern::Pattern;
use crate::words::splitter::Splitter;

/// What is looked for.
#[derive(Debug)]
pub(super) enum Find {
    Pattern(Box<Pattern>),
    /// A text, never empty.
    Text(String),
    /// Single characters.
    Char(fn(char) -> bool),
    /// The words of GPT-2.
    Words,
}

/// What becomes of the parts that are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// A part of a text: where it begins and ends, and whether it was found.
type Part = (usize, usize, bool);

impl Behavior {
    pub(super) fn parse(section: &Value, key: &str) -> Result<Self, TextError> {
        match section[key].as_str() {
            Some("Removed") => Ok(Self::Removed),
            Some("Isolated") => Ok(Self::Isolated),
            Some("MergedWithPrevious") => Ok(Self::MergedWithPrevious),
            Some("MergedWithNext") => Ok(Self::MergedWithNext),
            Some("Contiguous") => Ok(Self::Contiguous),
            _ => {
                let value = section[key].to_string();
                Err(TextError::unsupported(TOKENIZER_JSON, "pre_tokenizer: behavior", value))
            }
        }
    }
}

impl Find {
    /// Calls `piece` for each piece of a text that is not empty, with the place where it begins.
    ///
    /// # Errors
    /// Those of the pattern and of `piece`.
    pub(super) fn split(
        &self,
        text: &str,
        behavior: Behavior,
        invert: bool,
        piece: &mut impl FnMut(usize, &str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut last: Option<Part> = None;
        self.parts(text, &mut |part| {
            let part = (part.0, part.1, part.2 != invert);
            match last {
                Some(before) if behavior.joins(before.2, part.2) => {
                    last = Some((before.0, part.1, part.2));
                    Ok(())
                }
                before => {
                    last = Some(part);
                    before.map_or(Ok(()), |part| behavior.pass(text, part, piece))
                }
            }
        })?;
        last.map_or(Ok(()), |part| behavior.pass(text, part, piece))
    }

    /// Every part of a text in order, found or not; together they are the text.
    fn parts(
        &self,
        text: &str,
        each: &mut impl FnMut(Part) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut at = 0;
        let mut found = |start: usize, end: usize| {
            if at < start {
                each((at, start, false))?;
            }
            at = end;
            each((start, end, true))
        };
        match self {
            Self::Pattern(pattern) => pattern.matches(text, &mut |m| found(m.start, m.end))?,
            Self::Text(wanted) => {
                text.match_indices(wanted)
                    .try_for_each(|(start, m)| found(start, start + m.len()))?;
            }
            Self::Char(is) => {
                let chars = text.char_indices().filter(|(_, c)| is(*c));
                chars.clone().try_for_each(|(start, c)| found(start, start + c.len_utf8()))?;
            }
            Self::Words => {
                let (mut start, mut done) = (0, Ok(()));
                Splitter::Gpt2.split(text, |word: &str| {
                    if done.is_ok() {
                        done = found(start, start + word.len());
                    }
                    start += word.len();
                })?;
                done?;
            }
        }
        if at < text.len() { each((at, text.len(), false)) } else { Ok(()) }
    }
}

impl Behavior {
    /// Whether two neighbours become one piece, which counts as found if its last part was; `left`,
    /// `right`: whether they were found.
    fn joins(self, left: bool, right: bool) -> bool {
        match self {
            Self::Removed | Self::Isolated => false,
            Self::Contiguous => left == right,
            Self::MergedWithPrevious => right && !left,
            Self::MergedWithNext => left && !right,
        }
    }

    fn pass(
        self,
        text: &str,
        (start, end, found): Part,
        piece: &mut impl FnMut(usize, &str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        if found && self == Self::Removed { Ok(()) } else { piece(start, &text[start..end]) }
    }
}
