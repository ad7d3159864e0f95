//! Parts of models that no kernel computes. Pure, at load.

use ingle_model::{FeedForwardSpec, KvFormat, LayerSpec, ModelSpec};

/// The first part of a model that has no kernels here, as a plural noun; `None` if all have some. What sizes the
/// kernels take is checked later.
#[must_use]
pub fn missing_part(spec: &ModelSpec) -> Option<&'static str> {
    let has = |part: fn(&LayerSpec) -> bool| spec.layers.iter().any(part);
    let attention = &spec.attention;
    let is_moe = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Moe(_));
    let has_own_norms = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Moe(moe) if moe.own_norms);
    let is_plain_moe = |layer: &LayerSpec| is_moe(layer) && !has_own_norms(layer);
    let has_groups = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Moe(moe) if moe.router.groups.is_some());
    let differ = has(|layer| layer.heads.is_some() || layer.keys_of.is_some());
    let parts = [
        (spec.kv_format != KvFormat::Device, "keys and values in fp8"),
        (attention.latent.is_some(), "latents in place of keys and values"),
        (
            spec.scales_layers && !spec.post_norms,
            "scales of layers without norms behind their parts",
        ),
        (
            spec.token_input.is_some() && !spec.post_norms,
            "embeddings of layers without norms behind their parts",
        ),
        (
            spec.layers.iter().any(has_own_norms) && !(spec.pre_norms && spec.post_norms),
            "experts with norms of their own without those of the layer",
        ),
        (spec.layers.iter().any(is_plain_moe) && spec.post_norms, "norms behind experts"),
        (attention.qkv_bias && has(|layer| layer.values_are_keys), "biases where values are keys"),
        (differ && attention.output_gate, "output gates of heads that differ"),
        (spec.layers.iter().any(has_groups), "groups of experts"),
    ];
    parts.into_iter().find(|(is_there, _)| *is_there).map(|(_, part)| part)
}
