//! [2] [8] The bodies of /tokenize and /detokenize, from JSON to JSON, so no list of tokens becomes
//! Python objects. Any thread, GIL released.

use crate::body::check_ids;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::json::{integer_into, integers_into, string_into};

impl Engine {
    /// vLLM's answer to /tokenize for one prompt, given as an entry of `prompts`.
    ///
    /// # Errors
    /// `Refused`.
    pub fn tokenize_json(&self, document: &[u8], texts: bool) -> Result<Vec<u8>, EngineError> {
        self.tokens_json(&self.tokenize(document)?, texts)
    }

    /// As `tokenize_json`, for a caller that can wait for some milliseconds only. `None`: a chat takes
    /// longer.
    ///
    /// # Errors
    /// `Refused`.
    pub fn tokenize_json_if_brief(
        &self,
        document: &[u8],
        texts: bool,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let ids = self.tokenize_if_brief(document)?;
        ids.map(|ids| self.tokens_json(&ids, texts)).transpose()
    }

    fn tokens_json(&self, ids: &[u32], texts: bool) -> Result<Vec<u8>, EngineError> {
        let mut out = b"{\"count\":".to_vec();
        integer_into(&mut out, ids.len() as u64);
        out.extend_from_slice(b",\"max_model_len\":");
        integer_into(&mut out, u64::from(self.front.served.max_model_len));
        out.extend_from_slice(b",\"tokens\":");
        integers_into(&mut out, ids.iter().map(|&id| u64::from(id)));
        out.extend_from_slice(b",\"token_strs\":");
        if texts {
            for (i, text) in self.token_texts(ids)?.iter().enumerate() {
                out.push(if i == 0 { b'[' } else { b',' });
                string_into(&mut out, text);
            }
            out.push(b']');
        } else {
            out.extend_from_slice(b"null");
        }
        out.push(b'}');
        Ok(out)
    }

    /// The answer to /detokenize for a JSON list of ids, special tokens included.
    ///
    /// # Errors
    /// `Refused` for what is no list of ids and for an id that the tokenizer does not have.
    pub fn detokenize_json(&self, ids: &[u8]) -> Result<Vec<u8>, EngineError> {
        let ids: Vec<u32> = serde_json::from_slice(ids).map_err(|_| {
            let wrong = || EngineError::refused("tokens", "tokens: must be a list of token ids");
            check_ids("tokens", ids, usize::MAX).err().unwrap_or_else(wrong)
        })?;
        let mut out = b"{\"prompt\":".to_vec();
        string_into(&mut out, &self.detokenize(&ids)?);
        out.push(b'}');
        Ok(out)
    }
}
