//! [2] The pre-tokeniser section of tokenizer.json: splits a text into pieces. Any thread.

use std::borrow::Cow;

use serde_json::Value;

use super::pieces::{Behavior, Find};
use crate::TextError;
use crate::byte_level::char_of_byte;
use crate::hf::TOKENIZER_JSON;
use crate::pattern::Pattern;
use crate::words::is_punctuation;

/// The steps that cut a text, in order.
#[derive(Debug, Default)]
pub(super) struct PreTokenizer {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Split { find: Find, behavior: Behavior, invert: bool },
    ByteLevel { add_prefix_space: bool, use_regex: bool },
    Metaspace { replacement: char, prepend: Prepend, split: bool },
    FixedLength(usize),
}

/// When Metaspace puts its character before a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prepend {
    First,
    Never,
    Always,
}

/// Takes a piece of text.
type Sink<'s> = dyn FnMut(&str) -> Result<(), TextError> + 's;

impl PreTokenizer {
    /// Reads the section.
    ///
    /// # Errors
    /// `TextError` that names a step or a pattern that is not supported.
    pub(super) fn parse(section: Option<&Value>) -> Result<Self, TextError> {
        let mut pre_tokenizer = Self::default();
        if let Some(section) = section.filter(|section| !section.is_null()) {
            pre_tokenizer.add(section)?;
        }
        Ok(pre_tokenizer)
    }

    /// Calls `piece` for every piece of `text` in order; `first`: the text stands at the very start.
    ///
    /// # Errors
    /// Those of a pattern and of `piece`.
    pub(super) fn pieces(
        &self,
        text: &str,
        first: bool,
        piece: &mut Sink<'_>,
    ) -> Result<(), TextError> {
        run(&self.steps, text, first, piece)
    }

    fn add(&mut self, section: &Value) -> Result<(), TextError> {
        let kind = section["type"].as_str().unwrap_or("none");
        let chars = |find: fn(char) -> bool, behavior| Step::Split {
            find: Find::Char(find),
            behavior,
            invert: false,
        };
        let flag = |key: &str, default: bool| section[key].as_bool().unwrap_or(default);
        let step = match kind {
            "Sequence" => {
                let inner = section["pretokenizers"].as_array();
                let inner = inner.ok_or_else(|| unusable(kind, "pretokenizers"))?;
                return inner.iter().try_for_each(|section| self.add(section));
            }
            "BertPreTokenizer" => {
                self.push(chars(char::is_whitespace, Behavior::Removed))?;
                chars(is_punctuation, Behavior::Isolated)
            }
            "ByteLevel" => Step::ByteLevel {
                add_prefix_space: flag("add_prefix_space", true),
                use_regex: flag("use_regex", true),
            },
            "CharDelimiterSplit" => Step::Split {
                find: Find::Text(single_char(section, kind, "delimiter")?.to_string()),
                behavior: Behavior::Removed,
                invert: false,
            },
            "Digits" if flag("individual_digits", false) => {
                chars(char::is_numeric, Behavior::Isolated)
            }
            "Digits" => chars(char::is_numeric, Behavior::Contiguous),
            "FixedLength" => match section["length"].as_u64().unwrap_or(5) {
                0 => return Err(unusable(kind, "length")),
                length => Step::FixedLength(usize::try_from(length).unwrap_or(usize::MAX)),
            },
            "Metaspace" => metaspace(section)?,
            "Punctuation" if section.get("behavior").is_none() => {
                chars(is_punctuation, Behavior::Isolated)
            }
            "Punctuation" => chars(is_punctuation, Behavior::parse(section, "behavior")?),
            "Split" => Step::Split {
                find: find(section)?,
                behavior: Behavior::parse(section, "behavior")?,
                invert: flag("invert", false),
            },
            "Whitespace" => Step::Split {
                find: Find::Pattern(Box::new(Pattern::words()?)),
                behavior: Behavior::Removed,
                invert: true,
            },
            "WhitespaceSplit" => chars(char::is_whitespace, Behavior::Removed),
            _ => return Err(TextError::unsupported(TOKENIZER_JSON, "pre-tokenizer type", kind)),
        };
        self.push(step)
    }

    fn push(&mut self, step: Step) -> Result<(), TextError> {
        if self.steps.len() == MAX_STEPS {
            let message = format!("pre_tokenizer: more than {MAX_STEPS} steps");
            return Err(TextError::load(TOKENIZER_JSON, message));
        }
        self.steps.push(step);
        Ok(())
    }
}

fn find(section: &Value) -> Result<Find, TextError> {
    let pattern = &section["pattern"];
    if let Some(text) = pattern["String"].as_str().filter(|text| !text.is_empty()) {
        return Ok(Find::Text(text.into()));
    }
    let pattern = pattern["Regex"].as_str().ok_or_else(|| unusable("Split", "pattern"))?;
    Ok(Find::Pattern(Box::new(Pattern::new(TOKENIZER_JSON, "pre_tokenizer", pattern)?)))
}

fn metaspace(section: &Value) -> Result<Step, TextError> {
    let prepend = match section["prepend_scheme"].as_str() {
        None if section.get("prepend_scheme").is_none() => Prepend::Always,
        Some("always") => Prepend::Always,
        Some("first") => Prepend::First,
        Some("never") => Prepend::Never,
        _ => return Err(unusable("Metaspace", "prepend_scheme")),
    };
    // The older of two spellings must not contradict the newer one.
    let adds = section["add_prefix_space"].as_bool();
    if adds == Some(false) && prepend != Prepend::Never {
        return Err(unusable("Metaspace", "add_prefix_space"));
    }
    Ok(Step::Metaspace {
        replacement: single_char(section, "Metaspace", "replacement")?,
        prepend,
        split: section["split"].as_bool().unwrap_or(true),
    })
}

fn single_char(section: &Value, kind: &str, key: &str) -> Result<char, TextError> {
    let mut chars = section[key].as_str().unwrap_or_default().chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(unusable(kind, key)),
    }
}

fn unusable(kind: &str, key: &str) -> TextError {
    TextError::load(TOKENIZER_JSON, format!("pre_tokenizer: {kind} without a usable {key:?}"))
}

/// Passes `text` through the steps; a piece is never empty. At most `MAX_STEPS` deep.
fn run(steps: &[Step], text: &str, first: bool, piece: &mut Sink<'_>) -> Result<(), TextError> {
    let Some((step, later)) = steps.split_first() else {
        return if text.is_empty() { Ok(()) } else { piece(text) };
    };
    match step {
        Step::Split { find, behavior, invert } => {
            find.split(text, *behavior, *invert, &mut |start, part| {
                run(later, part, first && start == 0, piece)
            })
        }
        Step::ByteLevel { add_prefix_space, use_regex } => {
            let text = match *add_prefix_space && !text.is_empty() && !text.starts_with(' ') {
                true => Cow::Owned(format!(" {text}")),
                false => Cow::Borrowed(text),
            };
            let mut part = |start: usize, part: &str| {
                let part: String = part.bytes().map(char_of_byte).collect();
                run(later, &part, first && start == 0, piece)
            };
            match use_regex {
                true => Find::Words.split(&text, Behavior::Isolated, false, &mut part),
                false => part(0, &text),
            }
        }
        Step::Metaspace { replacement, prepend, split } => {
            let mut text = text.replace(' ', replacement.encode_utf8(&mut [0; 4]));
            let wanted = match prepend {
                Prepend::Always => true,
                Prepend::First => first,
                Prepend::Never => false,
            };
            if wanted && !text.is_empty() && !text.starts_with(*replacement) {
                text.insert(0, *replacement);
            }
            if !split {
                return run(later, &text, first, piece);
            }
            let find = Find::Text(replacement.to_string());
            find.split(&text, Behavior::MergedWithNext, false, &mut |start, part| {
                run(later, part, first && start == 0, piece)
            })
        }
        Step::FixedLength(length) => {
            let starts = text.char_indices().step_by(*length).map(|(start, _)| start);
            let ends = starts.clone().skip(1).chain([text.len()]);
            starts.zip(ends).try_for_each(|(start, end)| {
                run(later, &text[start..end], first && start == 0, piece)
            })
        }
    }
}

const MAX_STEPS: usize = 32;
