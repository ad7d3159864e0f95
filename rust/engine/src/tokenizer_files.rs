//! Connects the files that `ingle_model` found to the tokenizer that `ingle_text` builds from them. At
//! start, caller's thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingle_core::TokenId;
use ingle_model::{ChatTemplates, Checkpoint, GgufMetadata, TokenizerFiles, VocabularyFile};
use ingle_text::{ChatTemplate, GgufVocab, Tokenizer, turn_ends};

use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::served::AnswerFormat;

/// Tokenizer, chat template and end tokens of a checkpoint.
pub(crate) struct TextParts {
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// By name; `default` is used where the request names none.
    pub(crate) templates: BTreeMap<String, ChatTemplate>,
    /// What `default` was compiled from.
    pub(crate) template_source: Option<String>,
    /// What the template says about tool calls and reasoning.
    pub(crate) answer_format: AnswerFormat,
    pub(crate) eos_token_ids: Arc<[TokenId]>,
    /// Ids below this have both a row in the model and an entry in the tokenizer.
    pub(crate) vocab_size: u32,
}

/// Builds them; the settings' chat template replaces the checkpoint's own.
///
/// # Errors
/// `EngineError::Model` if a file is broken, or if the tokenizer has an id that the model has no row
/// for. Rows without an entry are fine: they are never sampled.
pub(crate) fn text_parts(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<TextParts, EngineError> {
    let template_text = options.chat_template.as_deref();
    let path = checkpoint.path.display();
    let fail = |error: &dyn std::fmt::Display| EngineError::Model(format!("{path}: {error}"));
    let (tokenizer, own) = match &checkpoint.tokenizer {
        TokenizerFiles::HuggingFace { vocabulary, tokenizer_config, chat_templates } => {
            let config = tokenizer_config.as_deref();
            let tokenizer = match vocabulary {
                VocabularyFile::TokenizerJson(bytes) => Tokenizer::from_json(bytes, config),
                VocabularyFile::SentencePiece(bytes) => {
                    Tokenizer::from_sentencepiece(bytes, config)
                }
                VocabularyFile::Tekken(bytes) => Tokenizer::from_tekken(bytes),
            };
            (tokenizer.map_err(|error| fail(&error))?, chat_templates)
        }
        TokenizerFiles::Gguf { metadata, chat_templates } => {
            let vocab = gguf_vocab(metadata).map_err(|error| fail(&error))?;
            (Tokenizer::from_gguf(vocab).map_err(|error| fail(&error))?, chat_templates)
        }
    };
    let rows = checkpoint.spec.vocab_size;
    let entries = tokenizer.vocab_size();
    if entries > rows {
        return Err(fail(&format!(
            "the tokenizer has ids up to {}, the model has rows for ids up to {}",
            entries - 1,
            rows.saturating_sub(1)
        )));
    }
    let given = template_text.map(|text| ChatTemplates::only(Some(text.to_owned())));
    let sources = &given.as_ref().unwrap_or(own).named;
    let eos = eos_union(checkpoint, &tokenizer, sources);
    if let Some(id) = eos.iter().find(|id| id.0 >= rows) {
        return Err(fail(&format!("end token id {id} is beyond the model's {rows} rows")));
    }
    let parsers = (options.tool_call_parser.as_deref(), options.reasoning_parser.as_deref());
    let answer_format = AnswerFormat::new(sources, parsers.0, parsers.1)?;
    let mut templates = BTreeMap::new();
    for (name, source) in sources {
        let template = ChatTemplate::for_tokenizer(source, &tokenizer);
        let template = template.map_err(|error| match template_text {
            Some(_) => EngineError::Model(format!("chat_template: {error}")),
            None if name == "default" => fail(&error),
            None => fail(&format!("chat template {name:?}: {error}")),
        })?;
        templates.insert(name.clone(), template);
    }
    let template_source = sources.get("default").cloned();
    let tokenizer = Arc::new(tokenizer);
    let eos_token_ids = eos.into();
    Ok(TextParts {
        tokenizer,
        templates,
        template_source,
        answer_format,
        eos_token_ids,
        vocab_size: entries,
    })
}

/// Ids that end an answer, whichever file says so, without doubles: those of the end of a text, and those
/// by which a chat template ends a turn.
fn eos_union(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    templates: &BTreeMap<String, String>,
) -> Vec<TokenId> {
    let turns: Vec<u32> = templates.values().flat_map(|t| turn_ends(tokenizer, t)).collect();
    let files = checkpoint.generation.eos_token_ids.iter();
    let mut ids: Vec<TokenId> =
        files.chain(tokenizer.eos_token_ids()).chain(&turns).copied().map(TokenId).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn gguf_vocab(metadata: &GgufMetadata) -> Result<GgufVocab, ingle_model::ModelError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let string = |name: &str| Ok(metadata.string(&key(name))?.map(str::to_owned));
    let strings = |name: &str| Ok(metadata.strings(&key(name))?.unwrap_or_default().to_vec());
    let id = |name: &str| metadata.u32(&key(name));
    let flag = |name: &str| metadata.bool(&key(name));
    Ok(GgufVocab {
        model: string("model")?.unwrap_or_default(),
        pre: string("pre")?,
        tokens: strings("tokens")?,
        token_types: metadata.i32s(&key("token_type"))?.unwrap_or_default(),
        scores: metadata.f32s(&key("scores"))?.unwrap_or_default().to_vec(),
        merges: strings("merges")?,
        bos_token_id: id("bos_token_id")?,
        eos_token_id: id("eos_token_id")?,
        eot_token_id: id("eot_token_id")?,
        unk_token_id: id("unknown_token_id")?,
        pad_token_id: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
    })
}
