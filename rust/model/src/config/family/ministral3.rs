//! Ministral 3 and Devstral 2: YaRN, and queries that grow with their position. They, Mistral Small 3.1
//! and 3.2 are published with a vision tower around the text model.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Facts, IMAGE_TOWERS, PLAIN, Windows, Wrapper};

pub(super) const FACTS: Facts = Facts {
    model_type: "ministral3",
    class: "Ministral3",
    default_theta: 1e6,
    derives_head_dim: false,
    windows: Windows::All { by_default: None },
    scales_queries: true,
    ..PLAIN
};

pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "mistral3",
    class: "Mistral3",
    texts: &["mistral", "ministral3", "mistral4"],
    ignores: &[
        "image_token_index",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "spatial_merge_size",
        "vision_feature_layer",
    ],
    towers: IMAGE_TOWERS,
};
