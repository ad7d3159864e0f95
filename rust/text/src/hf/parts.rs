//! The structure of tokenizer.json. Only the large parts are typed; the small ones stay JSON until
//! they are used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde::Deserialize;
use serde_json::Value;

use super::files::TOKENIZER_JSON;
use crate::TextError;
use crate::error::excerpt;
use crate::merge::{Merge, MergeTable};

/// tokenizer.json.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizerJson {
    #[serde(default)]
    pub(crate) added_tokens: Vec<ListedToken>,
    pub(crate) normalizer: Option<Value>,
    pub(crate) pre_tokenizer: Option<Value>,
    pub(crate) post_processor: Option<Value>,
    pub(crate) decoder: Option<Value>,
    pub(crate) model: Model,
}

/// An added token with its id.
#[derive(Debug, Deserialize)]
pub(crate) struct ListedToken {
    pub(crate) id: u32,
    #[serde(flatten)]
    pub(crate) token: TokenFlags,
}

/// An added token as both files spell it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TokenFlags {
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    #[serde(default)]
    pub(crate) normalized: bool,
    #[serde(default)]
    pub(crate) special: bool,
}

/// The model section; only BPE is used, the others are named in the refusal.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    pub(crate) unk_token: Option<String>,
    pub(crate) continuing_subword_prefix: Option<String>,
    pub(crate) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(crate) fuse_unk: bool,
    #[serde(default)]
    pub(crate) byte_fallback: bool,
    #[serde(default)]
    pub(crate) ignore_merges: bool,
    #[serde(default, deserialize_with = "vocab")]
    pub(crate) vocab: HashMap<String, u32>,
    #[serde(default)]
    pub(crate) merges: Vec<MergeText>,
}

/// A merge: two tokens, or (before tokenizers 0.20) one string with a space between them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum MergeText {
    Pair(String, String),
    Joined(String),
}

impl TokenizerJson {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        serde_json::from_slice(bytes)
            .map_err(|error| TextError::load(TOKENIZER_JSON, error.to_string()))
    }
}

impl Model {
    /// A byte-level model whose parts come from elsewhere.
    pub(crate) fn byte_level(
        vocab: HashMap<String, u32>,
        merges: Vec<String>,
        ignore_merges: bool,
    ) -> Self {
        Self {
            kind: Some("BPE".into()),
            vocab,
            merges: merges.into_iter().map(MergeText::Joined).collect(),
            ignore_merges,
            ..Self::default()
        }
    }

    /// Whether tokens are spelled as they are, without a mark at the beginning or end of words.
    pub(crate) fn is_plain(&self) -> bool {
        let blank = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        blank(&self.continuing_subword_prefix) && blank(&self.end_of_word_suffix)
    }

    /// The merges by rank; `each` sees every token that a merge makes.
    ///
    /// # Errors
    /// `TextError::Load` for a merge of tokens that the vocabulary lacks, as in the library.
    pub(crate) fn merge_table(&self, mut each: impl FnMut(&str)) -> Result<MergeTable, TextError> {
        let mut table = MergeTable::with_capacity(self.merges.len());
        let prefix = self.continuing_subword_prefix.as_ref().map_or(0, String::len);
        let mut joined = String::new();
        for (rank, merge) in (0u32..).zip(&self.merges) {
            let (left, right) = merge.split()?;
            // Inside a word, tokens are spelled with the prefix.
            let tail = right.get(prefix..).ok_or_else(|| {
                let message = format!(
                    "merge {rank}: {:?} is shorter than continuing_subword_prefix",
                    excerpt(right)
                );
                TextError::load(TOKENIZER_JSON, message)
            })?;
            joined.clear();
            joined.push_str(left);
            joined.push_str(tail);
            let id = |token: &str| {
                self.vocab.get(token).copied().ok_or_else(|| {
                    let message = format!("merge {rank} needs the token {:?}", excerpt(token));
                    TextError::load(TOKENIZER_JSON, message)
                })
            };
            table.insert(id(left)?, id(right)?, Merge { rank, id: id(&joined)? });
            each(&joined);
        }
        Ok(table)
    }

    /// Refuses anything but deterministic byte-pair encoding.
    pub(crate) fn check(&self) -> Result<(), TextError> {
        match self.kind.as_deref() {
            Some("BPE") => {}
            // Files of before 2020 have no type; a list of merges says that it is BPE.
            None if !self.merges.is_empty() => {}
            other => {
                let kind = other.unwrap_or("none");
                return Err(TextError::unsupported(TOKENIZER_JSON, "model type", kind));
            }
        }
        match self.dropout {
            Some(dropout) if dropout != 0.0 => {
                let value = dropout.to_string();
                Err(TextError::unsupported(TOKENIZER_JSON, "model dropout", value))
            }
            _ if self.vocab.is_empty() => Err(TextError::load(TOKENIZER_JSON, "empty vocabulary")),
            _ => Ok(()),
        }
    }
}

impl MergeText {
    /// The two tokens.
    pub(crate) fn split(&self) -> Result<(&str, &str), TextError> {
        match self {
            Self::Pair(left, right) => Ok((left, right)),
            Self::Joined(joined) => {
                let mut parts = joined.split(' ');
                match (parts.next(), parts.next(), parts.next()) {
                    (Some(left), Some(right), None) => Ok((left, right)),
                    _ => {
                        let message = format!("merge {:?} is not two tokens", excerpt(joined));
                        Err(TextError::load(TOKENIZER_JSON, message))
                    }
                }
            }
        }
    }
}

/// Reads a vocabulary map; a list (Unigram) is passed over, its model type is refused afterwards.
fn vocab<'de, D: serde::Deserializer<'de>>(input: D) -> Result<HashMap<String, u32>, D::Error> {
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = HashMap<String, u32>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("a map of tokens to ids")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Self::Value, A::Error> {
            let mut vocab = HashMap::with_capacity(map.size_hint().unwrap_or(0).min(1 << 20));
            while let Some((token, id)) = map.next_entry::<String, u32>()? {
                match vocab.entry(token) {
                    Entry::Vacant(place) => _ = place.insert(id),
                    Entry::Occupied(first) => {
                        let (token, first) = (excerpt(first.key()), first.get());
                        let message =
                            format!("vocab: {token:?} is listed twice, as {first} and as {id}");
                        return Err(serde::de::Error::custom(message));
                    }
                }
            }
            Ok(vocab)
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(
            self,
            mut seq: A,
        ) -> Result<Self::Value, A::Error> {
            while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            Ok(HashMap::new())
        }
    }
    input.deserialize_any(Visitor)
}
