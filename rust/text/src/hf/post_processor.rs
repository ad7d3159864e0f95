//! The tokens before and after a text, from the post-processor of tokenizer.json.

use serde_json::Value;

use super::files::TOKENIZER_JSON;
use crate::TextError;
use crate::token_table::TokenTable;

/// The tokens that `add_special_tokens` puts around one text.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
}

impl Framing {
    pub(crate) fn parse(section: Option<&Value>, table: &TokenTable) -> Result<Self, TextError> {
        let mut framing = Self::default();
        if let Some(section) = section.filter(|section| !section.is_null()) {
            framing.add(section, table)?;
        }
        Ok(framing)
    }

    fn add(&mut self, section: &Value, table: &TokenTable) -> Result<(), TextError> {
        match section["type"].as_str().unwrap_or("none") {
            // Only moves offsets.
            "ByteLevel" => Ok(()),
            "TemplateProcessing" => self.add_template(section, table),
            "Sequence" => {
                let inner = section["processors"].as_array();
                inner.into_iter().flatten().try_for_each(|inner| self.add(inner, table))
            }
            other => Err(TextError::unsupported(TOKENIZER_JSON, "post-processor type", other)),
        }
    }

    fn len(&self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    fn add_template(&mut self, section: &Value, table: &TokenTable) -> Result<(), TextError> {
        let broken = |message: String| TextError::load(TOKENIZER_JSON, message);
        let pieces = section["single"].as_array();
        let pieces = pieces.ok_or_else(|| broken("template without \"single\"".into()))?;
        let (mut before, mut after, mut texts) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            if piece.get("Sequence").is_some() {
                texts += 1;
                continue;
            }
            let name = piece["SpecialToken"]["id"].as_str();
            let name = name.ok_or_else(|| broken(format!("template piece {piece}")))?;
            let ids = section["special_tokens"][name]["ids"].as_array();
            let ids = ids.ok_or_else(|| broken(format!("no ids for template token {name:?}")))?;
            for id in ids {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let id = id.filter(|id| table.bytes(*id).is_some());
                let id = id.ok_or_else(|| broken(format!("bad id of template token {name:?}")))?;
                if texts == 0 {
                    before.push(id)
                } else {
                    after.push(id)
                }
                if before.len() + after.len() + self.len() > MAX_TOKENS {
                    let message = format!("post_processor: more than {MAX_TOKENS} tokens");
                    return Err(broken(message));
                }
            }
        }
        if texts != 1 {
            return Err(broken(format!("template with {texts} texts instead of 1")));
        }
        before.append(&mut self.prefix);
        self.prefix = before;
        self.suffix.append(&mut after);
        Ok(())
    }
}

/// Published models put one or two tokens around a text.
const MAX_TOKENS: usize = 64;
