//! A checkpoint that has been opened and checked.

use std::path::PathBuf;
use std::sync::Arc;

use crate::chat_templates::ChatTemplates;
use crate::error::ModelError;
use crate::gguf::GgufMetadata;
use crate::kv_format::{LayerScales, ScaleTensor};
use crate::{
    CopyPlan, EmbeddingDefaults, GenerationDefaults, KvFormat, KvScales, ModelSpec, WeightSource,
    dequantise,
};

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
    /// By layer; may be shorter than the model is deep.
    pub(crate) kv_scales: Vec<LayerScales>,
}

impl Checkpoint {
    /// Makes executors keep keys and values in fp8, with the scales of the checkpoint, or 1 where it has none.
    /// Returns whether it has any.
    ///
    /// # Errors
    /// A file that cannot be read, or a scale that is not above 0.
    pub fn keep_kv_in_fp8(&mut self) -> Result<bool, ModelError> {
        let mut scales = vec![KvScales::default(); self.spec.layers.len()];
        for (scales, tensors) in scales.iter_mut().zip(&self.kv_scales) {
            let of = |tensor: &Option<ScaleTensor>| {
                tensor.as_ref().map_or(Ok(1.0), |tensor| self.read_scale(tensor))
            };
            *scales = KvScales { key: of(&tensors.key)?, value: of(&tensors.value)? };
        }
        self.spec.kv_format = KvFormat::Fp8(scales);
        Ok(self.kv_scales.iter().any(|scales| scales.key.is_some() || scales.value.is_some()))
    }

    fn read_scale(&self, tensor: &ScaleTensor) -> Result<f32, ModelError> {
        let file = self.plan.files.get(tensor.file).map_or("", String::as_str);
        let mut stored = vec![0; tensor.weight_type.block_bytes()];
        self.source
            .read_at(tensor.file, tensor.offset, &mut stored)
            .map_err(|cause| ModelError::io(file, "read", cause))?;
        let mut value = [0.0];
        dequantise(tensor.weight_type, &stored, &mut value);
        let [scale] = value;
        if (f32::MIN_POSITIVE..=LARGEST_SCALE).contains(&scale) {
            return Ok(scale);
        }
        let reason = format!(
            "holds {scale}; a scale of the KV cache is a number above 0, at most {LARGEST_SCALE:e}"
        );
        Err(ModelError::tensor(file, &tensor.name, reason))
    }
}

/// Of a scale; leaves room for products with elements.
const LARGEST_SCALE: f32 = 1e30;

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
