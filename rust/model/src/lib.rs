//! From a checkpoint on disk to a checked description of it: config, tensors, where each lies.
//!
//! Reads headers only; weights are read by the executors through `WeightSource`. Nothing is guessed:
//! whatever a checkpoint needs and this engine lacks is an error that names file and field.
#![forbid(unsafe_code)]

mod spec;
mod weights;

pub use spec::{
    Activation, AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec, NormSpec, RopeKind,
    RopeSpec, RopeStyle,
};
pub use weights::{CopyPlan, LayerWeight, TensorView, WeightRole, WeightSource, WeightType};
