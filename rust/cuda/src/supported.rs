//! Which models and settings the kernels take. Pure, at load.

use ingle_model::{
    Activation, DeltaNetSpec, FeedForwardSpec, LayerSpec, ModelSpec, RopeKind, RopeSpec,
};

use crate::CudaError;
use crate::builds::{HEAD_DIMS, SINK_HEAD_DIM, WIDE_HEAD_DIM};
use crate::config::CudaConfig;
use crate::contract::{MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN, MAX_STEP_ROWS};
use crate::missing_parts::missing_part;
use crate::rope::table_pairs;

/// Refuses nets that delta_net.cu cannot be built for.
fn check_net(net: &DeltaNetSpec) -> Result<(), CudaError> {
    let widths = [("linear_key_head_dim", net.key_dim), ("linear_value_head_dim", net.value_dim)];
    match widths.iter().find(|(_, width)| !NET_HEAD_DIMS.contains(width)) {
        Some((name, width)) => Err(CudaError::Unsupported(format!(
            "{name} {width}: want 32, 64, 128 or 256 (the cpu device takes others)"
        ))),
        None => Ok(()),
    }
}

/// Widths of heads of gated delta nets.
const NET_HEAD_DIMS: [u32; 4] = [32, 64, 128, 256];

/// Refuses heads and rotations that attention.cu and rope_kv.cu cannot be built for.
fn check_heads(spec: &ModelSpec) -> Result<(), CudaError> {
    let refuse = |text: String| Err(CudaError::Unsupported(text));
    let widths = spec.layers.iter().filter(|layer| layer.delta_net.is_none());
    for head_dim in widths.map(|layer: &LayerSpec| spec.heads(layer).head_dim) {
        let is_wide = head_dim == WIDE_HEAD_DIM && spec.attention.causal;
        if !HEAD_DIMS.contains(&head_dim) && !is_wide {
            return refuse(format!(
                "head_dim {head_dim}: want 16, 32, 64, 96, 128, 256 or, if causal, {WIDE_HEAD_DIM}"
            ));
        }
        if spec.attention.sinks && head_dim != SINK_HEAD_DIM {
            return refuse(format!("head_dim {head_dim} with sinks: want {SINK_HEAD_DIM}"));
        }
    }
    let is_whole =
        |rope: &&RopeSpec| rope.rotary_dim.is_multiple_of(4) && table_pairs(rope).is_multiple_of(2);
    if let Some(rope) = spec.ropes.iter().find(|rope| !is_whole(rope)) {
        return refuse(format!(
            "rotary_dim {} of which {} pairs rotate: want multiples of 4 and 2",
            rope.rotary_dim,
            table_pairs(rope)
        ));
    }
    let style = spec.ropes.first().map(|rope| rope.style);
    if spec.ropes.iter().any(|rope| Some(rope.style) != style) {
        return refuse("layers that pair different elements of a head".to_owned());
    }
    let is_part = |rope: &RopeSpec| matches!(rope.kind, RopeKind::Proportional { .. });
    let interleaved = |rope: &RopeSpec| rope.style == ingle_model::RopeStyle::Interleaved;
    if spec.ropes.iter().any(|rope| is_part(rope) && interleaved(rope)) {
        return refuse("a rotation of some pairs of neighbours".to_owned());
    }
    Ok(())
}

/// Refuses what the kernels cannot do, before anything is opened.
pub(crate) fn check_supported(spec: &ModelSpec, config: &CudaConfig) -> Result<(), CudaError> {
    let refuse = |text: String| Err(CudaError::Unsupported(text));
    if let Some(part) = missing_part(spec) {
        return refuse(format!("{part} have no kernels"));
    }
    spec.layers.iter().filter_map(|layer| layer.delta_net.as_ref()).try_for_each(check_net)?;
    check_heads(spec)?;
    let token_size = spec.token_input.map_or(0, |input| input.size);
    if !spec.hidden_size.is_multiple_of(8) || !token_size.is_multiple_of(8) {
        return refuse(format!(
            "hidden_size {} and hidden_size_per_layer_input {token_size}: want multiples of 8",
            spec.hidden_size
        ));
    }
    let is_clamped = matches!(spec.activation, Activation::ClampedSwiglu { .. });
    for layer in &spec.layers {
        let width = match layer.feed_forward {
            FeedForwardSpec::Dense { .. } if is_clamped => {
                return refuse("a clamped gate outside experts".to_owned());
            }
            FeedForwardSpec::Dense { intermediate_size, .. } => intermediate_size,
            FeedForwardSpec::Moe(moe) => {
                if moe.num_experts > MAX_EXPERTS || moe.experts_per_token > MAX_EXPERTS_PER_TOKEN {
                    return refuse(format!(
                        "{} experts, {} a token: at most {MAX_EXPERTS}, {MAX_EXPERTS_PER_TOKEN}",
                        moe.num_experts, moe.experts_per_token
                    ));
                }
                let shared = moe.shared_size.filter(|size| is_clamped || !size.is_multiple_of(8));
                if let Some(size) = shared {
                    return refuse(format!(
                        "shared experts {size} wide, clamped gate {is_clamped}: want a multiple of 8, none"
                    ));
                }
                moe.intermediate_size
            }
        };
        if !width.is_multiple_of(8) {
            return refuse(format!("intermediate_size {width}: want a multiple of 8"));
        }
    }
    let block = config.block_size;
    if !block.is_power_of_two() || !(4..=256).contains(&block) {
        return refuse(format!("block_size {block}: want a power of two from 4 to 256"));
    }
    if !(1..=MAX_STEP_ROWS).contains(&config.max_num_seqs) {
        let rows = config.max_num_seqs;
        return refuse(format!("max_num_seqs {rows}: want 1 to {MAX_STEP_ROWS}"));
    }
    if !(1..=65536).contains(&config.max_num_batched_tokens) {
        let tokens = config.max_num_batched_tokens;
        return refuse(format!("max_num_batched_tokens {tokens}: want 1 to 65536"));
    }
    if !(1..=1 << 22).contains(&config.max_model_len) {
        return refuse(format!("max_model_len {}: want 1 to 4194304", config.max_model_len));
    }
    Ok(())
}
