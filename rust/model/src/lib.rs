//! Reads a checkpoint on disk and produces a checked description of it: config, tensors, and the
//! position of each tensor.
//!
//! Only headers are read here; executors read the weights through `WeightSource`. Nothing is
//! guessed: anything that a checkpoint needs and this engine lacks is an error that names file and
//! field.
#![forbid(unsafe_code)]

mod catalogue;
mod chat_templates;
mod checkpoint;
mod config;
mod dequantise;
mod entry;
mod error;
mod fp8;
mod generation;
mod gguf;
mod grouped;
mod json_file;
mod kv_format;
mod kv_layout;
mod links;
mod made;
mod open;
mod packed;
mod partition;
mod pooling;
mod quantisation;
mod roles;
mod rope;
mod safetensors;
mod scales;
mod source;
mod spec;
mod strict_json;
mod timeline;
mod weights;

pub use chat_templates::ChatTemplates;
pub use checkpoint::{Checkpoint, TokenizerFiles, VocabularyFile};
pub use dequantise::dequantise;
pub use error::ModelError;
pub use fp8::{NotFinite, all_numbers, e4m3_from_f32, e4m3_to_f32, quantise_rows};
pub use generation::GenerationDefaults;
pub use gguf::GgufMetadata;
pub use grouped::GroupedRows;
pub use kv_format::{KvFormat, KvScales};
pub use kv_layout::{KvLayout, KvPlace};
pub use links::may_follow;
pub use open::{open, open_without_weights};
pub use partition::{Cut, ExpertCut, Partition, PartitionError, RankModel};
pub use pooling::{EmbeddingDefaults, PoolingKind};
pub use roles::{LayerWeight, WeightRole};
pub use rope::RopeTables;
pub use spec::{
    Activation, AttentionSpec, DeltaNetSpec, EmbedsOnly, ExpertGroups, FeedForwardSpec, GroupScore,
    HeadSizes, LatentSpec, LayerSpec, ModelSpec, MoeSpec, NormSpec, QkNorm, QueryScale, RopeKind,
    RopeSpec, RopeStyle, RouterScores, RouterSpec, TokenInputSpec,
};
pub use timeline::{Phase, Timeline};
pub use weights::{
    CopyPlan, GroupTensor, GroupView, Order, Packing, ScaleType, ScaleView, TensorView,
    WeightSource, WeightType, Zero,
};
