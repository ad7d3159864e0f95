//! Determines what follows attention in each layer: one network, or a mixture of experts.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::{Experts, Facts, FeedForward, Fields, Shared, limits};
use crate::error::ModelError;
use crate::{ExpertGroups, FeedForwardSpec, GroupScore, MoeSpec, RouterSpec};

/// One entry per layer.
pub(super) fn layers(
    config: &Fields<'_>,
    facts: &Facts,
) -> Result<Vec<FeedForwardSpec>, ModelError> {
    let count = config.required("num_hidden_layers", limits::LAYERS)?;
    // Published files of families whose layers all have experts may leave the other width out.
    let width = match facts.feed_forward {
        FeedForward::Dense => "intermediate_size",
        FeedForward::Experts(experts) => experts.dense_width,
    };
    let dense = || {
        Ok(FeedForwardSpec::Dense {
            intermediate_size: config.required(width, limits::WIDTH)?,
            bias: facts.has("mlp_bias") && config.bool("mlp_bias")?.unwrap_or(false),
        })
    };
    match facts.feed_forward {
        FeedForward::Dense => (0..count).map(|_| dense()).collect(),
        FeedForward::Experts(Experts { switch: Some(key), .. })
            if !config.bool(key)?.unwrap_or(false) =>
        {
            (0..count).map(|_| dense()).collect()
        }
        FeedForward::Experts(experts) => {
            let moe = FeedForwardSpec::Moe(moe(config, facts, &experts)?);
            let sparse = sparse_layers(config, facts, count)?;
            sparse.into_iter().map(|sparse| if sparse { Ok(moe) } else { dense() }).collect()
        }
    }
}

/// Twice the width of the network that every token visits.
pub(super) fn double(part: &mut FeedForwardSpec) {
    match part {
        FeedForwardSpec::Dense { intermediate_size, .. } => {
            *intermediate_size = intermediate_size.saturating_mul(2);
        }
        FeedForwardSpec::Moe(moe) => {
            moe.shared_size = moe.shared_size.map(|size| size.saturating_mul(2));
        }
    }
}

fn moe(config: &Fields<'_>, facts: &Facts, experts: &Experts) -> Result<MoeSpec, ModelError> {
    let num_experts = num_experts(config, facts)?;
    let experts_per_token = config.required(experts.chosen, num_experts)?;
    let normalise_top_k = match experts.normalises {
        Some(key) => config.bool(key)?.ok_or_else(|| config.missing(key))?,
        None => !experts.scales_input,
    };
    let intermediate_size = config.required(experts.width, limits::WIDTH)?;
    let scale = experts.scale.map(|key| config.required_positive(key)).transpose()?;
    let shared = match experts.shared {
        Shared::None => 0,
        Shared::Count(key) => {
            let count = config.u32(key, limits::EXPERTS)?.ok_or_else(|| config.missing(key))?;
            intermediate_size.saturating_mul(count)
        }
        Shared::One => intermediate_size,
        Shared::Scored { width } => config.required(width, limits::WIDTH)?,
        Shared::Usual => config.required("intermediate_size", limits::WIDTH)?,
    };
    let groups = match experts.groups {
        Some(score) => groups(config, facts, (num_experts, experts_per_token), score)?,
        None => None,
    };
    Ok(MoeSpec {
        num_experts,
        experts_per_token,
        intermediate_size,
        router: RouterSpec {
            scores: experts.scores,
            bias: experts.has_biases,
            correction: experts.correction.is_some(),
            normalise_top_k,
            scale: scale.unwrap_or(1.0),
            groups,
        },
        bias: experts.has_biases,
        shared_size: (shared > 0).then_some(shared),
        scales_input: experts.scales_input,
        shared_score: matches!(experts.shared, Shared::Scored { .. }),
        own_norms: experts.shared == Shared::Usual,
    })
}

/// Groups of experts; `None` if a token may visit all of them.
fn groups(
    config: &Fields<'_>,
    facts: &Facts,
    (num_experts, experts_per_token): (u32, u32),
    score: GroupScore,
) -> Result<Option<ExpertGroups>, ModelError> {
    let key = "topk_method";
    if facts.has(key) {
        match config.string(key)? {
            None | Some("greedy") => return Ok(None),
            Some("group_limited_greedy") => {}
            Some(other) => {
                return Err(config.unsupported(key, other, "greedy, group_limited_greedy"));
            }
        }
    }
    let key = "n_group";
    let num_groups = config.positive(key, num_experts)?.unwrap_or(1);
    let chosen = config.positive("topk_group", num_groups)?.unwrap_or(num_groups);
    if chosen == num_groups {
        return Ok(None);
    }
    let size = num_experts.checked_div(num_groups).unwrap_or(0);
    let least = if score == GroupScore::BestTwo { 2 } else { 1 };
    if size.checked_mul(num_groups) != Some(num_experts) || size < least {
        let reason =
            format!("{num_groups} groups of {num_experts} experts are uneven or too small");
        return Err(config.error(key, reason));
    }
    if chosen.saturating_mul(size) < experts_per_token {
        let reason = format!("{chosen} groups of {size} experts hold fewer than a token visits");
        return Err(config.error("topk_group", reason));
    }
    Ok(Some(ExpertGroups { num_groups, chosen, score }))
}

/// The count has a name in each generation of files; those that are there must agree.
fn num_experts(config: &Fields<'_>, facts: &Facts) -> Result<u32, ModelError> {
    let mut found: Option<(&str, u32)> = None;
    let names = ["num_experts", "num_local_experts", "n_routed_experts"];
    for key in names.into_iter().filter(|key| facts.has(key)) {
        let Some(count) = config.positive(key, limits::EXPERTS)? else { continue };
        match found {
            Some((other, first)) if first != count => {
                let reason = format!("{count} contradicts {other}, which is {first}");
                return Err(config.error(key, reason));
            }
            Some(_) => {}
            None => found = Some((key, count)),
        }
    }
    // The name that most files of the family have.
    let usual = ["n_routed_experts", "num_local_experts"].into_iter().find(|key| facts.has(key));
    found.map(|(_, count)| count).ok_or_else(|| config.missing(usual.unwrap_or("num_experts")))
}

/// Which layers are mixtures of experts.
fn sparse_layers(config: &Fields<'_>, facts: &Facts, count: u32) -> Result<Vec<bool>, ModelError> {
    let key = "first_k_dense_replace";
    if facts.has(key) {
        let first = config.u32(key, limits::LAYERS)?;
        let by_first = first.map(|first| (0..count).map(|layer| layer >= first).collect());
        let typed = if facts.has(LAYER_TYPES) { layer_types(config, count)? } else { None };
        return match (by_first, typed) {
            (Some(first), Some(typed)) if first != typed => {
                Err(config.error(LAYER_TYPES, format!("contradicts {key}")))
            }
            (Some(layers), _) | (None, Some(layers)) => Ok(layers),
            (None, None) => Err(config.missing(key)),
        };
    }
    if facts.has(MOE_LAYERS) {
        return listed_layers(config, count);
    }
    if !facts.has("decoder_sparse_step") {
        return Ok((0..count).map(|_| true).collect());
    }
    let step = config.positive("decoder_sparse_step", limits::LAYERS)?.unwrap_or(1);
    let dense = match config.get("mlp_only_layers") {
        None => Vec::new(),
        Some(value) => value
            .as_array()
            .and_then(|list| list.iter().map(serde_json::Value::as_u64).collect::<Option<Vec<_>>>())
            .ok_or_else(|| config.wrong("mlp_only_layers", value, "a list of layer numbers"))?,
    };
    Ok((0..count)
        .map(|layer| {
            layer.saturating_add(1).is_multiple_of(step) && !dense.contains(&u64::from(layer))
        })
        .collect())
}

/// As transformers 5 states it: `dense` or `sparse` for each layer.
fn layer_types(config: &Fields<'_>, count: u32) -> Result<Option<Vec<bool>>, ModelError> {
    let Some(value) = config.get(LAYER_TYPES) else { return Ok(None) };
    let is_sparse = |value: &serde_json::Value| match value.as_str() {
        Some("dense") => Some(false),
        Some("sparse") => Some(true),
        _ => None,
    };
    let types = value.as_array().and_then(|list| list.iter().map(is_sparse).collect());
    let types: Option<Vec<bool>> = types;
    match types {
        Some(types) if u32::try_from(types.len()) == Ok(count) => Ok(Some(types)),
        _ => {
            let wanted = format!("a list with dense or sparse for each of {count} layers");
            Err(config.wrong(LAYER_TYPES, value, &wanted))
        }
    }
}

/// As Llama 4 states it: a list, or each layer whose number is a multiple of the step.
fn listed_layers(config: &Fields<'_>, count: u32) -> Result<Vec<bool>, ModelError> {
    let Some(value) = config.get(MOE_LAYERS) else {
        let step = config.positive("interleave_moe_layer_step", limits::LAYERS)?.unwrap_or(1);
        return Ok((1..=count).map(|number| number.is_multiple_of(step)).collect());
    };
    let number =
        |value: &serde_json::Value| value.as_u64().filter(|layer| *layer < u64::from(count));
    let listed =
        value.as_array().and_then(|list| list.iter().map(number).collect::<Option<Vec<_>>>());
    let listed = listed.ok_or_else(|| {
        config.wrong(MOE_LAYERS, value, &format!("a list of layer numbers below {count}"))
    })?;
    Ok((0..count).map(|layer| listed.contains(&u64::from(layer))).collect())
}

const MOE_LAYERS: &str = "moe_layers";
const LAYER_TYPES: &str = "mlp_layer_types";
