//! GLM-4.7-Flash: the layers of `deepseek_v3` in other sizes.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::Facts;

use super::deepseek_v3;

pub(super) const FACTS: Facts =
    Facts { model_type: "glm4_moe_lite", class: "Glm4MoeLite", ..deepseek_v3::FACTS };
