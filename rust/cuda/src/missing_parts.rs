//! Parts of models that no kernel computes. Pure, at load.

use ingle_model::{FeedForwardSpec, KvFormat, LayerSpec, ModelSpec, QkNorm};

/// The first part of a model that has no kernels here, as a plural noun; `None` if all have some. What sizes the
/// kernels take is checked later.
#[must_use]
pub fn missing_part(spec: &ModelSpec) -> Option<&'static str> {
    let has = |part: fn(&LayerSpec) -> bool| spec.layers.iter().any(part);
    let attention = &spec.attention;
    let scales_input = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Moe(moe) if moe.scales_input);
    let parts = [
        (spec.kv_format != KvFormat::Device, "keys and values in fp8"),
        (has(|layer| layer.heads.is_some()), "layers that differ in the size of their heads"),
        (has(|layer| layer.keys_of.is_some()), "layers that read the keys of others"),
        (attention.value_norm, "norms of values"),
        (spec.token_input.is_some(), "embeddings of layers"),
        (attention.chunks && has(|layer| layer.window.is_some()), "chunks of attention"),
        (
            attention.qk_norm == QkNorm::Unweighted && has(|layer| layer.rope.is_some()),
            "norms of heads without weights",
        ),
        (
            attention.query_scale.is_some_and(|scale| scale.without_rope),
            "queries that grow in layers without rope",
        ),
        (spec.layers.iter().any(scales_input), "experts whose score scales what they get"),
        (spec.scales_layers, "scales of layers"),
    ];
    parts.into_iter().find(|(is_there, _)| *is_there).map(|(_, part)| part)
}
