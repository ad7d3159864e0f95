//! [2] The normaliser section of tokenizer.json. Any thread. The growth of a text is bounded.

use std::borrow::Cow;

use serde_json::Value;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;

use super::CharsMap;
use crate::TextError;
use crate::byte_level::char_of_byte;
use crate::hf::TOKENIZER_JSON;
use crate::pattern::Pattern;

/// What is done to a text before it is cut: the steps in order.
#[derive(Debug, Default)]
pub(crate) struct Normalizer {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    Nmt,
    ByteLevel,
    Strip { left: bool, right: bool },
    Prepend(String),
    ReplaceText { wanted: String, content: String },
    ReplacePattern { wanted: Box<Pattern>, content: String },
    Precompiled(CharsMap),
}

impl Normalizer {
    /// Reads the section.
    ///
    /// # Errors
    /// `TextError` that names a step that is not supported, or that could make a text grow too much.
    pub(crate) fn parse(section: Option<&Value>) -> Result<Self, TextError> {
        let mut normalizer = Self::default();
        if let Some(section) = section.filter(|section| !section.is_null()) {
            normalizer.add(section)?;
        }
        let growth = normalizer.steps.iter().map(Step::growth).fold(1, usize::saturating_mul);
        if growth > MAX_GROWTH {
            let message = format!(
                "normalizer: its replacements can make a text {growth} times as long; at most \
                 {MAX_GROWTH} times is allowed"
            );
            return Err(TextError::load(TOKENIZER_JSON, message));
        }
        Ok(normalizer)
    }

    fn add(&mut self, section: &Value) -> Result<(), TextError> {
        if section["type"] == "Sequence" {
            let inner = section["normalizers"].as_array();
            let inner = inner.ok_or_else(|| missing("Sequence", "normalizers"))?;
            return inner.iter().try_for_each(|section| self.add(section));
        }
        if self.steps.len() == MAX_STEPS {
            let message = format!("normalizer: more than {MAX_STEPS} steps");
            return Err(TextError::load(TOKENIZER_JSON, message));
        }
        self.steps.push(Step::parse(section)?);
        Ok(())
    }

    /// The text as the model sees it.
    ///
    /// # Errors
    /// `TextError::Encode` if it grows too much.
    pub(crate) fn apply<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, TextError> {
        let max_len = text.len().saturating_mul(MAX_GROWTH).saturating_add(FREE_GROWTH);
        let mut text = Cow::Borrowed(text);
        for step in &self.steps {
            if let Some(changed) = step.apply(&text)? {
                text = Cow::Owned(changed);
            }
            if text.len() > max_len {
                let message = format!("the normaliser made the text {MAX_GROWTH} times as long");
                return Err(TextError::Encode(message));
            }
        }
        Ok(text)
    }
}

impl Step {
    fn parse(section: &Value) -> Result<Self, TextError> {
        let flag = |key: &'static str| section[key].as_bool().ok_or_else(|| missing("Strip", key));
        match section["type"].as_str().unwrap_or("none") {
            "NFC" => Ok(Self::Nfc),
            "NFD" => Ok(Self::Nfd),
            "NFKC" => Ok(Self::Nfkc),
            "NFKD" => Ok(Self::Nfkd),
            "Lowercase" => Ok(Self::Lowercase),
            "StripAccents" => Ok(Self::StripAccents),
            "Nmt" => Ok(Self::Nmt),
            "ByteLevel" => Ok(Self::ByteLevel),
            "Strip" => Ok(Self::Strip { left: flag("strip_left")?, right: flag("strip_right")? }),
            "Prepend" => match section["prepend"].as_str() {
                Some(text) if text.len() <= MAX_CONTENT_BYTES => Ok(Self::Prepend(text.into())),
                _ => Err(missing("Prepend", "prepend")),
            },
            "Replace" => Self::parse_replace(section),
            "Precompiled" => {
                let map = section["precompiled_charsmap"].as_str();
                let map = map.ok_or_else(|| missing("Precompiled", "precompiled_charsmap"))?;
                let map = CharsMap::from_base64(map).map_err(|reason| {
                    let message = format!("normalizer: precompiled_charsmap: {reason}");
                    TextError::load(TOKENIZER_JSON, message)
                })?;
                Ok(Self::Precompiled(map))
            }
            other => Err(TextError::unsupported(TOKENIZER_JSON, "normalizer type", other)),
        }
    }

    fn parse_replace(section: &Value) -> Result<Self, TextError> {
        let content = section["content"].as_str().filter(|text| text.len() <= MAX_CONTENT_BYTES);
        let content = content.ok_or_else(|| missing("Replace", "content"))?.to_owned();
        let pattern = &section["pattern"];
        if let Some(wanted) = pattern["String"].as_str().filter(|text| !text.is_empty()) {
            return Ok(Self::ReplaceText { wanted: wanted.into(), content });
        }
        let pattern = pattern["Regex"].as_str().ok_or_else(|| missing("Replace", "pattern"))?;
        let wanted = Box::new(Pattern::new(TOKENIZER_JSON, "normalizer", pattern)?);
        Ok(Self::ReplacePattern { wanted, content })
    }

    /// The factor by which a text can grow, for steps whose file determines it.
    fn growth(&self) -> usize {
        match self {
            Self::ReplaceText { wanted, content } => content.len().div_ceil(wanted.len()).max(1),
            // The shortest match has one byte.
            Self::ReplacePattern { content, .. } => content.len().max(1),
            Self::ByteLevel => 2,
            _ => 1,
        }
    }

    /// The changed text; `None` if nothing changes.
    fn apply(&self, text: &str) -> Result<Option<String>, TextError> {
        Ok(Some(match self {
            Self::Nfc if text.is_ascii() => return Ok(None),
            Self::Nfc => text.nfc().map(|(c, _)| c).collect(),
            Self::Nfd => text.nfd().map(|(c, _)| c).collect(),
            Self::Nfkc => text.nfkc().map(|(c, _)| c).collect(),
            Self::Nfkd => text.nfkd().map(|(c, _)| c).collect(),
            Self::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Self::StripAccents => text.chars().filter(|c| !is_combining_mark(*c)).collect(),
            Self::Nmt => text.chars().filter_map(nmt).collect(),
            Self::ByteLevel => text.bytes().map(char_of_byte).collect(),
            Self::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                (if *right { text.trim_end() } else { text }).to_owned()
            }
            Self::Prepend(prefix) if !text.is_empty() => format!("{prefix}{text}"),
            Self::Prepend(_) => return Ok(None),
            Self::ReplaceText { wanted, content } => match text.contains(wanted.as_str()) {
                true => text.replace(wanted.as_str(), content),
                false => return Ok(None),
            },
            Self::ReplacePattern { wanted, content } => {
                let mut out = String::with_capacity(text.len());
                wanted.pieces(text, &mut |piece, found| {
                    out.push_str(if found { content } else { piece });
                    Ok(())
                })?;
                out
            }
            Self::Precompiled(map) => map.apply_to_graphemes(text),
        }))
    }
}

/// What the normaliser of Google's NMT makes of a character: controls go, kinds of space become spaces.
fn nmt(c: char) -> Option<char> {
    match u32::from(c) {
        0x01..=0x08 | 0x0B | 0x0E..=0x1F | 0x7F | 0x8F | 0x9F => None,
        0x09
        | 0x0A
        | 0x0C
        | 0x0D
        | 0x1680
        | 0x200B..=0x200F
        | 0x2028
        | 0x2029
        | 0x2581
        | 0xFEFF
        | 0xFFFD => Some(' '),
        _ => Some(c),
    }
}

fn missing(kind: &str, key: &str) -> TextError {
    TextError::load(TOKENIZER_JSON, format!("normalizer: {kind} without a usable {key:?}"))
}

/// How many times as long a text may become. Compatibility decomposition alone can reach 11.
const MAX_GROWTH: usize = 16;
/// What a short text may gain beyond that.
const FREE_GROWTH: usize = 4096;
const MAX_STEPS: usize = 32;
const MAX_CONTENT_BYTES: usize = 1024;
