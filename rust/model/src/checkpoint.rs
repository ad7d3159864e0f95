//! A checkpoint that has been opened and checked.

use std::path::PathBuf;
use std::sync::Arc;

use crate::chat_templates::ChatTemplates;
use crate::gguf::GgufMetadata;
use crate::{CopyPlan, EmbeddingDefaults, GenerationDefaults, ModelSpec, WeightSource};

/// A checked checkpoint with its files open.
pub struct Checkpoint {
    /// What the model computes.
    pub spec: ModelSpec,
    /// The positions of its weights.
    pub plan: CopyPlan,
    /// Reads them.
    pub source: Arc<dyn WeightSource>,
    /// What the tokenizer is built from.
    pub tokenizer: TokenizerFiles,
    /// End tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// How embeddings are made.
    pub embedding: EmbeddingDefaults,
    /// Whether weights come from files; else they are pseudo-random numbers.
    pub has_weights: bool,
    /// What the operator should know of the files, one line each.
    pub notes: Vec<String>,
    /// As given to `open`.
    pub path: PathBuf,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("architecture", &self.spec.architecture)
            .field("tensors", &self.plan.tensors.len())
            .finish_non_exhaustive()
    }
}

/// The tokenizer as the checkpoint holds it.
#[derive(Clone, Debug)]
pub enum TokenizerFiles {
    /// Files of a Hugging Face folder, unparsed.
    HuggingFace {
        /// The file that holds the vocabulary.
        vocabulary: VocabularyFile,
        /// tokenizer_config.json
        tokenizer_config: Option<Vec<u8>>,
        /// From every file of the folder that can hold one.
        chat_templates: ChatTemplates,
    },
    /// The metadata of a GGUF file.
    Gguf {
        /// Holds `tokenizer.ggml.*`.
        metadata: GgufMetadata,
        /// tokenizer.chat_template and tokenizer.chat_template.NAME
        chat_templates: ChatTemplates,
    },
}

/// The vocabulary of a folder: the first of these files that is there.
#[derive(Clone, Debug)]
pub enum VocabularyFile {
    /// tokenizer.json
    TokenizerJson(Vec<u8>),
    /// tekken.json, as Mistral publishes it.
    Tekken(Vec<u8>),
    /// tokenizer.model, a SentencePiece model.
    SentencePiece(Vec<u8>),
}
