//! The file names, for errors.

pub(crate) const TOKENIZER_JSON: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
