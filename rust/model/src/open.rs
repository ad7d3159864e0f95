//! Opens a checkpoint: a Hugging Face folder or a GGUF file. Reads headers and small files only, and
//! checks them completely before memory for weights is allocated.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::chat_templates::ChatTemplates;
use crate::checkpoint::{Checkpoint, TokenizerFiles, VocabularyFile};
use crate::config::{self, Described, Family};
use crate::error::{ModelError, shown};
use crate::gguf::open_gguf;
use crate::json_file::{Json, missing, read};
use crate::made::{MadeTensors, tokenizer_json};
use crate::packed::is_zero_bias;
use crate::quantisation::Quantisation;
use crate::safetensors::{Found, Head};
use crate::source::FileSource;
use crate::{
    EmbedsOnly, ModelSpec, WeightSource, generation, pooling, quantisation, safetensors, scales,
};

/// Opens a Hugging Face folder or a `.gguf` file and checks all of it but the weights' values.
///
/// # Errors
/// `ModelError`, one line that names file and field or tensor.
pub fn open(path: &Path) -> Result<Checkpoint, ModelError> {
    let name = path.display().to_string();
    if name.is_empty() {
        let reason = "the path is empty: a folder or a .gguf file is needed".to_owned();
        return Err(ModelError::Layout { path: "model".to_owned(), reason });
    }
    let metadata = std::fs::metadata(path).map_err(|cause| ModelError::io(&name, "open", cause))?;
    if metadata.is_dir() {
        return match only_gguf(path)? {
            Some(file) => open_gguf(&file),
            None => open_folder(path, Weights::Files),
        };
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return open_gguf(path);
    }
    let reason = "neither a folder nor a .gguf file".to_owned();
    Err(ModelError::Layout { path: name, reason })
}

/// The GGUF file of a folder that holds one and no other weights.
fn only_gguf(folder: &Path) -> Result<Option<PathBuf>, ModelError> {
    if safetensors::has_weights(folder)? {
        return Ok(None);
    }
    let mut names = safetensors::names_with(folder, ".gguf")?;
    match (names.pop(), names.pop()) {
        (None, _) => Ok(None),
        (Some(name), None) => Ok(Some(folder.join(name))),
        (Some(b), Some(a)) => {
            let count = names.len().saturating_add(2);
            let (a, b) = (shown(&a), shown(&b));
            let reason = format!("{count} .gguf files ({a}, {b}, ...): name one of them");
            Err(ModelError::Layout { path: folder.display().to_string(), reason })
        }
    }
}

/// Opens a folder with a config.json as if it had weights: every number is a pseudo-random one that depends on
/// its tensor's name and place in it. No weight file is read. Without a tokenizer the vocabulary is made up too.
///
/// # Errors
/// As `open`, apart from what concerns weights.
pub fn open_without_weights(path: &Path) -> Result<Checkpoint, ModelError> {
    let name = path.display().to_string();
    let metadata = std::fs::metadata(path).map_err(|cause| ModelError::io(&name, "open", cause))?;
    if !metadata.is_dir() {
        let reason = "without weights only a folder with a config.json can be opened".to_owned();
        return Err(ModelError::Layout { path: name, reason });
    }
    open_folder(path, Weights::Made)
}

/// Where the weights of a folder are from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    Files,
    Made,
}

fn open_folder(folder: &Path, weights: Weights) -> Result<Checkpoint, ModelError> {
    let Some(config) = Json::optional(folder, "config.json", MAX_CONFIG_BYTES)? else {
        return Err(without_config(folder));
    };
    let config = config.fields()?;
    let Described { family, mut spec, later_layers } = config::model_spec(&config)?;
    let generation = Json::optional(folder, "generation_config.json", MAX_CONFIG_BYTES)?;
    let generation = generation.as_ref().map(Json::fields).transpose()?;
    let generation = generation::from_config(&config, generation.as_ref())?;
    let made_vocabulary = (weights == Weights::Made).then_some(spec.vocab_size);
    let tokenizer = tokenizer_files(folder, made_vocabulary)?;
    let embedding = pooling::read(folder, spec.hidden_size)?;
    let exported = Json::optional(folder, "hf_quant_config.json", MAX_CONFIG_BYTES)?;
    let exported = exported.as_ref().map(Json::fields).transpose()?;
    let quantised = quantisation::read(&config, exported.as_ref())?;
    let is_quantised = quantised.is_some();
    let is_gptq = quantised.as_ref().is_some_and(Quantisation::is_gptq);
    let (source, mut catalogue) = match weights {
        Weights::Files => {
            let (files, catalogue) = safetensors::open_folder(folder)?;
            (Some(FileSource::new(files)), catalogue)
        }
        Weights::Made => {
            let made = MadeTensors::new(config::plain_type(&config)?, spec.norm.plus_one);
            (None, Catalogue::without_files(folder.display().to_string(), made))
        }
    };
    catalogue.set_quantisation(quantised);
    let found = match &source {
        Some(files) => safetensors::find(family.class, &spec, &catalogue, files)?,
        None => Found::by_config(family.class, &spec),
    };
    safetensors::take_tensors(family.facts, &spec, found, &mut catalogue)?;
    let source: Arc<dyn WeightSource> = match (source, &catalogue.made) {
        (Some(files), _) => Arc::new(files),
        (None, made) => Arc::new(made.clone().unwrap_or_default()),
    };
    catalogue.check_packed(source.as_ref())?;
    let notes = notes(folder, weights, family, &spec, found.head)?;
    spec.tie_word_embeddings = found.head != Head::Own;
    spec.embeds_only = match (spec.embeds_only, embedding, found.head) {
        (Some(reason), _, _) => Some(reason),
        (None, Some(_), _) => Some(EmbedsOnly::SentenceTransformers),
        (None, None, Head::Absent) => Some(EmbedsOnly::NoOutputLayer),
        (None, None, Head::Own | Head::Tied) => None,
    };
    spec.weight_type = catalogue.main_type();
    let kv_scales = safetensors::kv_scales(found, &catalogue, spec.layers.len())?;
    let later_layers = usize::try_from(later_layers).unwrap_or(usize::MAX);
    let later_layers = spec.layers.len()..spec.layers.len().saturating_add(later_layers);
    let plan = catalogue.finish(|name, entry| {
        safetensors::is_harmless(name, entry)
            || safetensors::is_of_layers(name, found, &later_layers)
            || safetensors::is_of_shared_keys(name, found, &spec)
            || family.wrapper.is_some_and(|wrapper| safetensors::is_of_towers(name, wrapper))
            || is_quantised && quantisation::is_without_effect(name, &entry.shape)
            || is_gptq && is_zero_bias(source.as_ref(), name, entry)
    })?;
    scales::check(&plan, source.as_ref())?;
    Ok(Checkpoint {
        spec,
        plan,
        source,
        tokenizer,
        generation,
        embedding: embedding.unwrap_or_default(),
        has_weights: weights == Weights::Files,
        notes,
        path: folder.to_owned(),
        kv_scales,
    })
}

/// What the operator should know; `spec` is the config's.
fn notes(
    folder: &Path,
    weights: Weights,
    family: Family,
    spec: &ModelSpec,
    head: Head,
) -> Result<Vec<String>, ModelError> {
    let mut notes = prompt_note(folder)?;
    if weights == Weights::Made {
        notes.push(NOTE_OF_MADE.to_owned());
    }
    if let Some(wrapper) = family.wrapper {
        notes.push(format!("{}: its text model is served; images are refused", wrapper.model_type));
    }
    if head == Head::Own && spec.tie_word_embeddings {
        notes.push(
            "lm_head.weight: differs from the embedding, so that it is used, although config.json says \
             tie_word_embeddings"
                .to_owned(),
        );
    }
    Ok(notes)
}

/// sentence-transformers puts a default prompt in front of every text; here the client does.
fn prompt_note(folder: &Path) -> Result<Vec<String>, ModelError> {
    let file = "config_sentence_transformers.json";
    let Some(config) = Json::optional(folder, file, MAX_CONFIG_BYTES)? else {
        return Ok(Vec::new());
    };
    let name = config.fields()?.string("default_prompt_name")?;
    let note = name.map(|name| {
        format!(
            "{file}: default_prompt_name is {}; prompts are not added, clients send them as part of \
             the input",
            shown(name)
        )
    });
    Ok(note.into_iter().collect())
}

/// `made`: how many entries a vocabulary gets that no file has.
fn tokenizer_files(folder: &Path, made: Option<u32>) -> Result<TokenizerFiles, ModelError> {
    let vocabulary = match (vocabulary(folder), made) {
        (Err(ModelError::Layout { .. }), Some(vocab_size)) => {
            VocabularyFile::TokenizerJson(tokenizer_json(vocab_size))
        }
        (vocabulary, _) => vocabulary?,
    };
    let tokenizer_config = read(folder, "tokenizer_config.json", MAX_TOKENIZER_BYTES)?;
    let parsed = tokenizer_config.as_ref().map(|(name, bytes)| Json::parse(name.clone(), bytes));
    let chat_templates = ChatTemplates::of_folder(folder, parsed.transpose()?.as_ref())?;
    let tokenizer_config = tokenizer_config.map(|(_, bytes)| bytes);
    Ok(TokenizerFiles::HuggingFace { vocabulary, tokenizer_config, chat_templates })
}

fn vocabulary(folder: &Path) -> Result<VocabularyFile, ModelError> {
    let bytes = |file| Ok(read(folder, file, MAX_TOKENIZER_BYTES)?.map(|(_, bytes)| bytes));
    if let Some(bytes) = bytes("tokenizer.json")? {
        return Ok(VocabularyFile::TokenizerJson(bytes));
    }
    if let Some(bytes) = bytes("tekken.json")? {
        return Ok(VocabularyFile::Tekken(bytes));
    }
    if let Some(bytes) = bytes("tokenizer.model")? {
        return Ok(VocabularyFile::SentencePiece(bytes));
    }
    let path = folder.display().to_string();
    let reason = "tokenizer.json is missing, and so are tekken.json and tokenizer.model";
    Err(ModelError::Layout { path, reason: reason.to_owned() })
}

/// What a folder without config.json is, if that can be seen.
fn without_config(folder: &Path) -> ModelError {
    let path = folder.display().to_string();
    let reason = if folder.join("adapter_config.json").exists() {
        "is a LoRA adapter, not a model: merge it into its base model first"
    } else if folder.join("snapshots").is_dir() {
        "is a model's folder in a Hugging Face cache: give the one below snapshots/"
    } else if folder.join("params.json").exists() {
        "config.json is missing; params.json is of Meta's or Mistral's own format, which is not read"
    } else {
        return missing(folder, "config.json");
    };
    ModelError::Layout { path, reason: reason.to_owned() }
}

const NOTE_OF_MADE: &str = "load_format dummy: all weights are pseudo-random numbers, so that what the model writes means nothing";

const MAX_CONFIG_BYTES: u64 = 1 << 20;
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
