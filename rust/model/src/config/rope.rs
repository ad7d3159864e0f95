//! Reads the rotary embedding of config.json: `rope_theta` and `rope_scaling`, or `rope_parameters`
//! of transformers 5. Defaults are those of Hugging Face's modeling_rope_utils.

#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::{Map, Value};

use super::{Facts, Fields, limits, to_f32};
use crate::error::{ModelError, shown};
use crate::{RopeKind, RopeSpec, RopeStyle};

/// The rope that an object describes; without one, the default.
pub(super) fn rope_spec(
    config: &Fields<'_>,
    facts: &Facts,
    rope: Option<Fields<'_>>,
    head_dim: u32,
) -> Result<RopeSpec, ModelError> {
    let key = "rope_theta";
    if let Some(rope) = &rope {
        agree(config, rope, key)?;
    }
    let inner = rope.map(|rope| rope.positive_f32(key)).transpose()?.flatten();
    let theta = match inner {
        Some(theta) => theta,
        None => config.positive_f32(key)?.unwrap_or(facts.default_theta),
    };
    rope_with_theta(config, facts, rope, (theta, head_dim))
}

/// The same with a base that is known.
pub(super) fn rope_with_theta(
    config: &Fields<'_>,
    facts: &Facts,
    rope: Option<Fields<'_>>,
    (theta, head_dim): (f32, u32),
) -> Result<RopeSpec, ModelError> {
    let empty = Map::new();
    let rope = rope.unwrap_or_else(|| config.with_map(&empty));
    refuse_unknown_keys(&rope, facts)?;
    if theta <= 1.0 {
        return Err(config.error("rope_theta", format!("{theta} is not above 1")));
    }
    let rotary_dim = rotary_dim(config, facts, &rope, head_dim)?;
    let max_position_embeddings = config.required("max_position_embeddings", limits::POSITIONS)?;
    let reader = Reader { config, rope, max_position_embeddings };
    let kind = reader.kind(facts, rotary_dim)?;
    let is_proportional = matches!(kind, RopeKind::Proportional { .. });
    let rotary_dim = if is_proportional { head_dim } else { rotary_dim };
    let style = match facts.has_latent {
        true => style_of_latent(config)?,
        false => facts.rope_style,
    };
    Ok(RopeSpec { style, rotary_dim, theta, kind })
}

/// The object that describes the rope, if there is one.
pub(super) fn source<'a>(config: &Fields<'a>) -> Result<Option<Fields<'a>>, ModelError> {
    let old = config.object("rope_scaling")?;
    let new = config.object("rope_parameters")?;
    let Some(rope) = old.or(new) else { return Ok(None) };
    if old.is_some() && new.is_some() && config.get("rope_scaling") != config.get("rope_parameters")
    {
        return Err(config.error("rope_parameters", "contradicts rope_scaling"));
    }
    // Transformers 5 can hold one object per layer type.
    let nested: Vec<&str> = rope.keys().filter(|key| key.ends_with("_attention")).collect();
    let Some((&first, others)) = nested.split_first() else { return Ok(Some(rope)) };
    if others.iter().any(|key| rope.get(key) != rope.get(first))
        || nested.len() != rope.keys().count()
    {
        let supported = "one rope for all layers";
        return Err(config.unsupported("rope_parameters", "rope that differs by layer", supported));
    }
    rope.object(first)
}

const KNOWN_KEYS: [&str; 17] = [
    "type",
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    // Says that a YaRN model was trained at its length; changes nothing.
    "finetuned",
];

/// Of families that scale queries by position.
pub(super) const QUERY_SCALE: &str = "llama_4_scaling_beta";

fn refuse_unknown_keys(rope: &Fields<'_>, facts: &Facts) -> Result<(), ModelError> {
    let is_known = |key: &str| {
        KNOWN_KEYS.contains(&key)
            || facts.ignores.contains(&key)
            || facts.scales_queries && key == QUERY_SCALE
    };
    match rope.keys().find(|key| !is_known(key)) {
        Some(key) => {
            let value = rope.get(key).map_or(String::new(), Value::to_string);
            Err(rope.unsupported(key, value, "the rope fields of transformers 5"))
        }
        None => Ok(()),
    }
}

/// A field may stand beside the rope object and in it. Releases of transformers differ in which one they
/// read, so both must say the same.
fn agree(config: &Fields<'_>, rope: &Fields<'_>, key: &str) -> Result<(), ModelError> {
    match (config.f64(key)?, rope.f64(key)?) {
        #[expect(clippy::float_cmp, reason = "two copies of one number")]
        (Some(outer), Some(inner)) if outer != inner => {
            let reason = format!("{inner} contradicts {key} outside of it, which is {outer}");
            Err(rope.error(key, reason))
        }
        _ => Ok(()),
    }
}

fn rotary_dim(
    config: &Fields<'_>,
    facts: &Facts,
    rope: &Fields<'_>,
    head_dim: u32,
) -> Result<u32, ModelError> {
    let key = "partial_rotary_factor";
    agree(config, rope, key)?;
    let factor = match rope.f64(key)? {
        Some(factor) => Some(factor),
        None => config.f64(key)?,
    };
    if facts.has_latent {
        return rotary_dim_of_latent(config, head_dim, factor);
    }
    let stated =
        if facts.has("rotary_dim") { config.positive("rotary_dim", head_dim)? } else { None };
    #[expect(clippy::float_cmp, reason = "two forms of one number")]
    let factor = match (factor, stated) {
        (Some(factor), Some(dim)) if factor * f64::from(head_dim) != f64::from(dim) => {
            let reason = format!("{dim} contradicts {key}, which is {factor} of {head_dim}");
            return Err(config.error("rotary_dim", reason));
        }
        (Some(factor), _) => factor,
        (None, Some(dim)) => f64::from(dim) / f64::from(head_dim),
        (None, None) => facts.default_rotary,
    };
    if !(factor > 0.0 && factor <= 1.0) {
        return Err(config.error(key, format!("{factor} is outside 0 to 1")));
    }
    // Cut, not rounded, as Hugging Face does.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and head_dim"
    )]
    let dim = (f64::from(head_dim) * factor) as u32;
    if dim < 2 || !dim.is_multiple_of(2) {
        let reason = format!("{factor} of {head_dim} is {dim}, not a positive even number");
        return Err(config.error(key, reason));
    }
    Ok(dim)
}

/// Which elements rotate together, in latent attention.
fn style_of_latent(config: &Fields<'_>) -> Result<RopeStyle, ModelError> {
    Ok(match config.bool("rope_interleave")?.unwrap_or(true) {
        true => RopeStyle::Interleaved,
        false => RopeStyle::HalfSplit,
    })
}

/// The elements that rotate, in latent attention. Files state a share of them, or of a whole query head.
fn rotary_dim_of_latent(
    config: &Fields<'_>,
    rope_dim: u32,
    share: Option<f64>,
) -> Result<u32, ModelError> {
    let plain_dim = config.required("qk_nope_head_dim", limits::HEAD_DIM)?;
    let is_all = |of: u32| {
        let dim = share.unwrap_or(1.0) * f64::from(of);
        dim >= f64::from(rope_dim) && dim < f64::from(rope_dim) + 1.0
    };
    if is_all(rope_dim) || is_all(plain_dim.saturating_add(rope_dim)) {
        return Ok(rope_dim);
    }
    let supported = format!("all {rope_dim} elements of qk_rope_head_dim");
    let found = share.unwrap_or(1.0).to_string();
    Err(config.unsupported("partial_rotary_factor", found, supported))
}

struct Reader<'a> {
    config: &'a Fields<'a>,
    rope: Fields<'a>,
    max_position_embeddings: u32,
}

impl Reader<'_> {
    fn kind(&self, facts: &Facts, rotary_dim: u32) -> Result<RopeKind, ModelError> {
        // Also where the type does without it.
        self.rope.positive_f32("factor")?;
        let old = self.rope.string("type")?;
        let new = self.rope.string("rope_type")?;
        if let (Some(old), Some(new)) = (old, new)
            && old != new
        {
            let (old, new) = (shown(old), shown(new));
            let reason = format!("{new} contradicts type, which is {old}");
            return Err(self.rope.error("rope_type", reason));
        }
        let name = match new.or(old) {
            Some(name) => name,
            // transformers 5 writes rope_parameters with a type; old files may have {}.
            None if self.rope.get("factor").is_none() => "default",
            None => return Err(self.rope.missing("rope_type")),
        };
        // The first Phi-3 files name LongRoPE by other names.
        let name = if facts.long_rope_names.contains(&name) { "longrope" } else { name };
        match name {
            "default" => Ok(RopeKind::Default),
            "linear" => Ok(RopeKind::Linear { factor: self.factor()? }),
            "proportional" => {
                let factor = self.rope.positive_f32("factor")?.unwrap_or(1.0);
                Ok(RopeKind::Proportional { pairs: rotary_dim / 2, factor })
            }
            "dynamic" => self.dynamic(rotary_dim),
            "llama3" => self.llama3(),
            "yarn" => self.yarn(),
            "longrope" => self.long_rope(rotary_dim),
            other => {
                let supported = "default, linear, proportional, dynamic, llama3, yarn, longrope";
                Err(self.rope.unsupported("rope_type", other, supported))
            }
        }
    }

    fn required(&self, key: &str) -> Result<f32, ModelError> {
        self.rope.positive_f32(key)?.ok_or_else(|| self.rope.missing(key))
    }

    fn factor(&self) -> Result<f32, ModelError> {
        let factor = self.required("factor")?;
        if factor < 1.0 {
            return Err(self.rope.error("factor", format!("{factor} is below 1")));
        }
        Ok(factor)
    }

    /// Length of training, from beside the rope object or from in it; without one, the declared context.
    fn original(&self) -> Result<u32, ModelError> {
        let key = "original_max_position_embeddings";
        agree(self.config, &self.rope, key)?;
        let outer = self.config.positive(key, limits::POSITIONS)?;
        let inner = self.rope.positive(key, limits::POSITIONS)?;
        Ok(outer.or(inner).unwrap_or(self.max_position_embeddings))
    }

    fn dynamic(&self, rotary_dim: u32) -> Result<RopeKind, ModelError> {
        if rotary_dim <= 2 {
            let reason = format!("dynamic needs more than {rotary_dim} rotating elements");
            return Err(self.rope.error("rope_type", reason));
        }
        Ok(RopeKind::Dynamic {
            factor: self.factor()?,
            original_max_position_embeddings: self.max_position_embeddings,
        })
    }

    fn llama3(&self) -> Result<RopeKind, ModelError> {
        let low_freq_factor = self.required("low_freq_factor")?;
        let high_freq_factor = self.required("high_freq_factor")?;
        if high_freq_factor < low_freq_factor {
            let reason = format!("{high_freq_factor} is below {low_freq_factor}, the low one");
            return Err(self.rope.error("high_freq_factor", reason));
        }
        Ok(RopeKind::Llama3 {
            factor: self.factor()?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: self.original()?,
        })
    }

    fn yarn(&self) -> Result<RopeKind, ModelError> {
        let original = self.original()?;
        let factor = match self.rope.get("factor") {
            Some(_) => self.factor()?,
            None => self.stretch(original)?,
        };
        let attention_factor = match self.rope.positive_f32("attention_factor")? {
            Some(explicit) => explicit,
            None => {
                let mscale = self.rope.f64("mscale")?.filter(|value| *value != 0.0);
                let all = self.rope.f64("mscale_all_dim")?.filter(|value| *value != 0.0);
                yarn_attention_factor(f64::from(factor), mscale.zip(all))
                    .ok_or_else(|| self.rope.error("mscale", "gives no positive factor"))?
            }
        };
        Ok(RopeKind::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast: self.rope.positive_f32("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.rope.positive_f32("beta_slow")?.unwrap_or(1.0),
            attention_factor,
            truncate: self.rope.bool("truncate")?.unwrap_or(true),
        })
    }

    fn long_rope(&self, rotary_dim: u32) -> Result<RopeKind, ModelError> {
        // Without it, it is unknown where the long factors begin.
        let key = "original_max_position_embeddings";
        if self.config.get(key).or(self.rope.get(key)).is_none() {
            return Err(self.config.missing(key));
        }
        let original = self.original()?;
        let factors = |key| {
            let list = self.rope.positive_f32s(key)?.ok_or_else(|| self.rope.missing(key))?;
            if u32::try_from(list.len()) != Ok(rotary_dim / 2) {
                let reason = format!("has {} entries, not {}", list.len(), rotary_dim / 2);
                return Err(self.rope.error(key, reason));
            }
            Ok(list)
        };
        let attention_factor = match self.rope.positive_f32("attention_factor")? {
            Some(explicit) => explicit,
            None => {
                let factor = match self.rope.positive_f32("factor")? {
                    Some(factor) => factor,
                    None => self.stretch(original)?,
                };
                long_rope_attention_factor(f64::from(factor), f64::from(original))
                    .ok_or_else(|| self.rope.error("factor", "gives no attention_factor"))?
            }
        };
        Ok(RopeKind::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original_max_position_embeddings: original,
            attention_factor,
        })
    }

    /// Declared context over length of training.
    fn stretch(&self, original: u32) -> Result<f32, ModelError> {
        to_f32(f64::from(self.max_position_embeddings) / f64::from(original))
            .ok_or_else(|| self.rope.missing("factor"))
    }
}

/// YaRN's multiplier of cos and sin; `mscale` holds the pair (mscale, mscale_all_dim) where both are
/// given. `None` if the numbers give nothing usable.
pub(crate) fn yarn_attention_factor(factor: f64, mscale: Option<(f64, f64)>) -> Option<f32> {
    let term = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let value = match mscale {
        Some((mscale, all)) => term(mscale) / term(all),
        None => term(1.0),
    };
    to_f32(value).filter(|value| *value > 0.0)
}

fn long_rope_attention_factor(factor: f64, original: f64) -> Option<f32> {
    if factor <= 1.0 {
        return Some(1.0);
    }
    to_f32((1.0 + factor.ln() / original.ln()).sqrt())
}
