//! The builds of rope_kv.cu: what happens to queries, keys and values between their projection and attention. At load
//! only.

use ingle_model::{LayerSpec, ModelSpec, QkNorm, RopeKind};

use crate::contract::Dims;
use crate::rope::{rotary_dim, table_pairs};

/// A build of rope_kv.cu. Sizes that belong to a launch come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RopeBuild {
    pub(crate) head_dim: u32,
    pub(crate) rules: RopeRules,
    pub(crate) num_kv_heads: u32,
    pub(crate) rotary_dim: u32,
    /// Of a rotation of the first pairs alone.
    pub(crate) rotary_pairs: u32,
}

/// What some layers have that others have not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RopeRules {
    /// One norm over all heads.
    pub(crate) full_norm: bool,
    /// Norms of heads of q and k have no weights.
    pub(crate) unweighted_norm: bool,
    /// Values have norms without weights.
    pub(crate) value_norm: bool,
    pub(crate) output_gate: bool,
    pub(crate) query_scale: QueryScaling,
    pub(crate) keys: KeyParts,
    /// The first pairs of a head rotate.
    pub(crate) rotary_part: bool,
}

/// Whose queries grow with their position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueryScaling {
    #[default]
    None,
    All,
    /// Those of layers that do not rotate.
    WithoutRope,
}

/// What a row of the projection has behind its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyParts {
    #[default]
    KeysAndValues,
    /// Keys, which are the values too.
    Keys,
    /// Nothing: the layer reads another's.
    Nothing,
}

impl KeyParts {
    /// Those of a layer.
    pub(crate) fn of(layer: &LayerSpec) -> Self {
        match (layer.keys_of, layer.values_are_keys) {
            (Some(_), _) => Self::Nothing,
            (None, true) => Self::Keys,
            (None, false) => Self::KeysAndValues,
        }
    }

    /// How many parts of the width of its keys.
    pub(crate) fn count(self) -> u32 {
        match self {
            Self::KeysAndValues => 2,
            Self::Keys => 1,
            Self::Nothing => 0,
        }
    }
}

impl RopeBuild {
    /// That of a layer with attention.
    pub(crate) fn of(spec: &ModelSpec, layer: &LayerSpec) -> Self {
        let (heads, attention) = (spec.heads(layer), &spec.attention);
        // A layer that does not rotate is built as if it did: it has no table.
        let rope = layer.rope.map_or(spec.ropes.first(), |rope| spec.ropes.get(rope));
        let keys = KeyParts::of(layer);
        let rotary_part =
            rope.is_some_and(|rope| matches!(rope.kind, RopeKind::Proportional { .. }));
        Self {
            head_dim: heads.head_dim,
            rules: RopeRules {
                full_norm: attention.qk_norm == QkNorm::Full,
                unweighted_norm: attention.qk_norm == QkNorm::Unweighted,
                value_norm: attention.value_norm && keys != KeyParts::Nothing,
                output_gate: attention.output_gate,
                query_scale: match attention.query_scale {
                    None => QueryScaling::None,
                    Some(scale) if scale.without_rope => QueryScaling::WithoutRope,
                    Some(_) => QueryScaling::All,
                },
                keys,
                rotary_part,
            },
            num_kv_heads: heads.num_kv_heads,
            rotary_dim: rope.map_or(0, rotary_dim),
            rotary_pairs: rope.filter(|_| rotary_part).map_or(0, table_pairs),
        }
    }

    pub(crate) fn dims(self, shared: Dims) -> Dims {
        let Self { num_kv_heads, rotary_dim, rotary_pairs, .. } = self;
        Dims { num_kv_heads, rotary_dim, rotary_pairs, ..shared }
    }

    pub(crate) fn macros(self) -> Vec<String> {
        let rules = self.rules;
        let scale = match rules.query_scale {
            QueryScaling::None => 0,
            QueryScaling::All => 1,
            QueryScaling::WithoutRope => 2,
        };
        vec![
            format!("-DHEAD_DIM={}", self.head_dim),
            format!("-DFULL_NORM={}", u32::from(rules.full_norm)),
            format!("-DQUERY_SCALE={scale}"),
            format!("-DOUTPUT_GATE={}", u32::from(rules.output_gate)),
            format!("-DKEY_PARTS={}", rules.keys.count()),
            format!("-DVALUE_NORM={}", u32::from(rules.value_norm)),
            format!("-DUNWEIGHTED_NORM={}", u32::from(rules.unweighted_norm)),
            format!("-DROTARY_PART={}", u32::from(rules.rotary_part)),
        ]
    }

    pub(crate) fn suffix(self) -> String {
        let rules = self.rules;
        let scaled = match rules.query_scale {
            QueryScaling::None => "",
            QueryScaling::All => "-scaled",
            QueryScaling::WithoutRope => "-scaled-without",
        };
        let keys = match rules.keys {
            KeyParts::KeysAndValues => "",
            KeyParts::Keys => "-keys",
            KeyParts::Nothing => "-queries",
        };
        let parts = [
            (rules.full_norm, "-full"),
            (rules.unweighted_norm, "-unweighted"),
            (rules.value_norm, "-values"),
            (rules.output_gate, "-gated"),
            (rules.rotary_part, "-part"),
        ];
        let parts = parts.into_iter().filter(|(is_there, _)| *is_there).map(|(_, part)| part);
        format!("-hd{}{}{keys}{scaled}", self.head_dim, parts.collect::<String>())
    }
}
