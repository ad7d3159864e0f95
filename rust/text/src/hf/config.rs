//! The parts of tokenizer_config.json that change ids or text.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::files::{TOKENIZER_CONFIG, TOKENIZER_JSON};
use super::parts::TokenFlags;
use super::post_processor::Framing;
use crate::TextError;
use crate::token_table::TokenTable;

/// What the tokenizer and the chat template need of tokenizer_config.json.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TokenizerConfig {
    #[serde(default, deserialize_with = "name")]
    pub(crate) bos_token: Option<String>,
    #[serde(default, deserialize_with = "name")]
    pub(crate) eos_token: Option<String>,
    #[serde(default, deserialize_with = "name")]
    unk_token: Option<String>,
    #[serde(default, deserialize_with = "name")]
    pad_token: Option<String>,
    #[serde(default, deserialize_with = "name")]
    sep_token: Option<String>,
    #[serde(default, deserialize_with = "name")]
    cls_token: Option<String>,
    #[serde(default, deserialize_with = "names")]
    additional_special_tokens: Vec<String>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    /// For tokenizer.model alone: false if only the first text gets a space before it.
    pub(crate) legacy: Option<bool>,
    #[serde(default, deserialize_with = "by_id")]
    pub(crate) added_tokens_decoder: BTreeMap<u32, TokenFlags>,
}

/// A token name is a string or an object with its content.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenName {
    Text(String),
    Object { content: String },
}

impl TokenName {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl TokenizerConfig {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        serde_json::from_slice(bytes)
            .map_err(|error| TextError::load(TOKENIZER_CONFIG, error.to_string()))
    }

    /// The named special tokens, as a chat template sees them.
    pub(crate) fn named_tokens(&self) -> Vec<(String, String)> {
        let named = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("pad_token", &self.pad_token),
            ("sep_token", &self.sep_token),
            ("cls_token", &self.cls_token),
        ];
        let set = |(key, token): (&str, &Option<String>)| Some((key.to_string(), token.clone()?));
        named.into_iter().filter_map(set).collect()
    }

    /// Every token that this file calls special.
    pub(crate) fn special_names(&self) -> impl Iterator<Item = &String> {
        [
            &self.bos_token,
            &self.eos_token,
            &self.unk_token,
            &self.pad_token,
            &self.sep_token,
            &self.cls_token,
        ]
        .into_iter()
        .flatten()
        .chain(&self.additional_special_tokens)
    }

    /// `add_bos_token` and `add_eos_token`, where given, replace what the post-processor does at
    /// that end of the text, as in transformers; true without such a token is off.
    pub(crate) fn apply_flags(
        &self,
        framing: &mut Framing,
        table: &TokenTable,
    ) -> Result<(), TextError> {
        let id = |name: &Option<String>| match name {
            None => Ok(None),
            Some(name) => table.id(name).map(Some).ok_or_else(|| {
                TextError::load(TOKENIZER_JSON, format!("no token {name:?} of {TOKENIZER_CONFIG}"))
            }),
        };
        match self.add_bos_token {
            Some(true) => framing.prefix = id(&self.bos_token)?.into_iter().collect(),
            Some(false) => framing.prefix.clear(),
            None => {}
        }
        match self.add_eos_token {
            Some(true) => framing.suffix = id(&self.eos_token)?.into_iter().collect(),
            Some(false) => framing.suffix.clear(),
            None => {}
        }
        Ok(())
    }
}

fn name<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<TokenName>::deserialize(input)?.map(TokenName::text))
}

fn names<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<String>, D::Error> {
    let names = Option::<Vec<TokenName>>::deserialize(input)?.unwrap_or_default();
    Ok(names.into_iter().map(TokenName::text).collect())
}

fn by_id<'de, D: serde::Deserializer<'de>>(
    input: D,
) -> Result<BTreeMap<u32, TokenFlags>, D::Error> {
    let tokens = Option::<BTreeMap<String, TokenFlags>>::deserialize(input)?.unwrap_or_default();
    let number = |(id, token): (String, TokenFlags)| match id.parse() {
        Ok(id) => Ok((id, token)),
        Err(_) => Err(serde::de::Error::custom(format!("added_tokens_decoder: {id:?} is no id"))),
    };
    tokens.into_iter().map(number).collect()
}
