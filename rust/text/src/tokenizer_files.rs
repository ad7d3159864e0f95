//! Makes a tokenizer from a model's files. At model load only.

use crate::{GgufVocab, TextError, Tokenizer, gguf, hf, spm, tekken};

impl Tokenizer {
    /// Loads tokenizer.json, with tokenizer_config.json where the folder has one.
    ///
    /// # Errors
    /// A model, decoder or post-processor that is not supported is named; broken files say where.
    pub fn from_json(tokenizer_json: &[u8], config_json: Option<&[u8]>) -> Result<Self, TextError> {
        hf::tokenizer(tokenizer_json, config_json)
    }

    /// Loads tokenizer.model, a SentencePiece model, with tokenizer_config.json where the folder has one.
    ///
    /// # Errors
    /// What is not supported is named; broken files say where.
    pub fn from_sentencepiece(model: &[u8], config_json: Option<&[u8]>) -> Result<Self, TextError> {
        spm::tokenizer(model, config_json)
    }

    /// Loads tekken.json, as Mistral publishes it.
    ///
    /// # Errors
    /// What is not supported is named; broken files say where.
    pub fn from_tekken(tekken_json: &[u8]) -> Result<Self, TextError> {
        tekken::tokenizer(tekken_json)
    }

    /// Loads the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// A model or pre-tokeniser that is not supported is named; broken arrays say which.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TextError> {
        gguf::tokenizer(&vocab)
    }
}
