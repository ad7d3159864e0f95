//! The bytes of a token, from the decoder section of tokenizer.json. At load only.

use serde_json::Value;

use super::files::TOKENIZER_JSON;
use crate::TextError;
use crate::byte_level::bytes_of_token;

/// The decoder section, reduced to what it does to one token.
#[derive(Debug, Default)]
pub(crate) struct TokenDecoder {
    byte_level: bool,
    /// Text replacements, in order.
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    strip_leading_space: bool,
}

impl TokenDecoder {
    pub(crate) fn parse(section: Option<&Value>) -> Result<Self, TextError> {
        let mut decoder = Self::default();
        match section {
            None | Some(Value::Null) => {
                return Err(TextError::unsupported(TOKENIZER_JSON, "decoder type", "none"));
            }
            Some(section) => decoder.add(section)?,
        }
        Ok(decoder)
    }

    fn add(&mut self, section: &Value) -> Result<(), TextError> {
        match section["type"].as_str().unwrap_or("none") {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            // Tokens are joined anyway.
            "Fuse" => {}
            "Replace" => match (section["pattern"]["String"].as_str(), section["content"].as_str())
            {
                (Some(pattern), Some(content)) if !pattern.is_empty() => {
                    self.push_replace(pattern, content)?;
                }
                _ => {
                    let pattern = section["pattern"].to_string();
                    let what = "decoder replacement";
                    return Err(TextError::unsupported(TOKENIZER_JSON, what, pattern));
                }
            },
            "Strip" => {
                let (start, stop) = (section["start"].as_u64(), section["stop"].as_u64());
                if section["content"] != " " || start != Some(1) || stop != Some(0) {
                    let value = section.to_string();
                    return Err(TextError::unsupported(TOKENIZER_JSON, "decoder strip", value));
                }
                self.strip_leading_space = true;
            }
            "Metaspace" => {
                let replacement = section["replacement"].as_str().unwrap_or("▁");
                if replacement.is_empty() {
                    let what = "decoder replacement";
                    return Err(TextError::unsupported(TOKENIZER_JSON, what, replacement));
                }
                self.push_replace(replacement, " ")?;
                self.strip_leading_space = section["prepend_scheme"] != "never"
                    && section["add_prefix_space"] != Value::Bool(false);
            }
            "Sequence" => {
                for inner in section["decoders"].as_array().into_iter().flatten() {
                    self.add(inner)?;
                }
            }
            other => return Err(TextError::unsupported(TOKENIZER_JSON, "decoder type", other)),
        }
        Ok(())
    }

    /// Each replacement is done for each token, so there may not be many, nor may they multiply.
    fn push_replace(&mut self, pattern: &str, content: &str) -> Result<(), TextError> {
        self.replace.push((pattern.into(), content.into()));
        let growth =
            |(pattern, content): &(String, String)| content.len().div_ceil(pattern.len()).max(1);
        let growth = self.replace.iter().map(growth).fold(1, usize::saturating_mul);
        if self.replace.len() > MAX_REPLACEMENTS || growth > MAX_GROWTH {
            let message = format!(
                "decoder: {} replacements that can make a token {growth} times as long; at most \
                 {MAX_REPLACEMENTS} and {MAX_GROWTH} times are allowed",
                self.replace.len()
            );
            return Err(TextError::load(TOKENIZER_JSON, message));
        }
        Ok(())
    }

    /// Whether the text of a whole sequence begins without the space that SentencePiece put there.
    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strip_leading_space
    }

    /// The bytes of a token of the model's vocabulary.
    pub(crate) fn bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_string();
        for (pattern, content) in &self.replace {
            text = text.replace(pattern, content);
        }
        if self.byte_fallback
            && let Some(byte) = fallback_byte(&text)
        {
            return vec![byte];
        }
        if self.byte_level
            && let Some(bytes) = bytes_of_token(&text)
        {
            return bytes;
        }
        text.into_bytes()
    }

    /// The bytes of an added token, which is spelled as text and never in the byte-level alphabet.
    pub(crate) fn bytes_of_added(&self, token: &str) -> Vec<u8> {
        if self.byte_level { token.as_bytes().to_vec() } else { self.bytes(token) }
    }
}

const MAX_REPLACEMENTS: usize = 16;
/// How many times as long replacements may make a token.
const MAX_GROWTH: usize = 16;

/// The byte of a token such as `<0x0A>`.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
