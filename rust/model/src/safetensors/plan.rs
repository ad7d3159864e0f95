//! Finds a model's parts among tensors with Hugging Face names.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::ops::Range;

use crate::catalogue::{Catalogue, Entry, Stored};
use crate::config::{Class, Facts, FeedForward, Norms, Wrapper};
use crate::error::ModelError;
use crate::source::{FileSource, same_bytes};
use crate::{
    DeltaNetSpec, FeedForwardSpec, HeadSizes, LatentSpec, LayerSpec, LayerWeight, ModelSpec,
    MoeSpec, QkNorm, WeightRole,
};

/// How the tensors are named, and what of the config they overrule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// In front of all names but the head's.
    prefix: &'static str,
    /// The head's name.
    head_name: &'static str,
    /// The head that the file holds.
    pub(crate) head: Head,
}

impl Found {
    /// Name of a tensor of a layer.
    pub(crate) fn layer_name(self, layer: usize, part: &str) -> String {
        format!("{}layers.{layer}.{part}", self.prefix)
    }

    /// As the config says, where there are no files.
    pub(crate) fn by_config(class: Class, spec: &ModelSpec) -> Self {
        let Names { prefix, head: head_name, .. } = NAMES[0];
        let head = match class {
            Class::Base => Head::Absent,
            Class::CausalLm if spec.tie_word_embeddings => Head::Tied,
            Class::CausalLm => Head::Own,
        };
        Self { prefix, head_name, head }
    }
}

/// The output layer as the files hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A matrix of its own.
    Own,
    /// The embedding, whether the files hold it once or twice.
    Tied,
    /// There is none.
    Absent,
}

/// Looks which tensors there are, and compares those that should be equal.
pub(crate) fn find(
    class: Class,
    spec: &ModelSpec,
    catalogue: &Catalogue,
    source: &FileSource,
) -> Result<Found, ModelError> {
    let names =
        NAMES.iter().find(|names| catalogue.contains(&format!("{}norm.weight", names.prefix)));
    let Names { prefix, head: head_name, is_bare } = *names.unwrap_or(&NAMES[0]);
    let embedding = catalogue.entry(&format!("{prefix}{EMBEDDING}"));
    let head = match catalogue.entry(head_name) {
        _ if class == Class::Base => Head::Absent,
        None if spec.tie_word_embeddings && !is_bare => Head::Tied,
        None if is_bare => Head::Absent,
        None => Head::Own,
        Some(_) if !spec.tie_word_embeddings => Head::Own,
        Some(head) => match embedding {
            // Some writers keep only the other name of the tied matrix.
            None => Head::Tied,
            Some(embedding) if is_equal(catalogue, source, head, embedding)? => Head::Tied,
            // As transformers 5 does; its older versions dropped the head.
            Some(_) => Head::Own,
        },
    };
    Ok(Found { prefix, head_name, head })
}

fn is_equal(
    catalogue: &Catalogue,
    source: &FileSource,
    a: &Entry,
    b: &Entry,
) -> Result<bool, ModelError> {
    if (&a.stored, &a.shape, a.byte_len) != (&b.stored, &b.shape, b.byte_len) {
        return Ok(false);
    }
    same_bytes(source, (a.file, a.offset), (b.file, b.offset), a.byte_len)
        .map_err(|cause| ModelError::io(catalogue.file(a.file), "read", cause))
}

/// Takes every tensor that the model needs.
pub(crate) fn take_tensors(
    facts: &Facts,
    spec: &ModelSpec,
    found: Found,
    catalogue: &mut Catalogue,
) -> Result<(), ModelError> {
    let (vocabulary, hidden) = (u64::from(spec.vocab_size), u64::from(spec.hidden_size));
    let Found { prefix, head_name, .. } = found;
    let embedding = format!("{prefix}{EMBEDDING}");
    let only_head = found.head == Head::Tied && !catalogue.contains(&embedding);
    if only_head && catalogue.contains(head_name) {
        catalogue.matrix(WeightRole::Embedding, head_name, vocabulary, hidden)?;
    } else {
        catalogue.matrix(WeightRole::Embedding, &embedding, vocabulary, hidden)?;
    }
    catalogue.vector(WeightRole::FinalNorm, &format!("{prefix}norm.weight"), hidden)?;
    if let Some(input) = spec.token_input {
        let size = u64::from(input.size);
        let all = size.saturating_mul(u64::try_from(spec.layers.len()).unwrap_or(u64::MAX));
        let name = |part: &str| format!("{prefix}{part}.weight");
        let role = WeightRole::TokenInputEmbedding;
        catalogue.matrix(role, &name("embed_tokens_per_layer"), vocabulary, all)?;
        let role = WeightRole::TokenInputProjection;
        catalogue.matrix(role, &name("per_layer_model_projection"), all, hidden)?;
        let role = WeightRole::TokenInputNorm;
        catalogue.vector(role, &name("per_layer_projection_norm"), size)?;
    }
    if found.head == Head::Own {
        catalogue.matrix(WeightRole::LmHead, head_name, vocabulary, hidden)?;
    } else if catalogue.contains(head_name) && !only_head {
        // The embedding once more, or the head of a class that has none.
        catalogue.take(head_name, &[vocabulary, hidden])?;
    }
    for (number, layer) in (0..).zip(&spec.layers) {
        let mut layer_tensors = Layer { catalogue, spec, layer, prefix, number };
        layer_tensors.norms(facts.norms)?;
        match (layer.delta_net, spec.attention.latent) {
            (Some(net), _) => layer_tensors.delta_net(facts, net)?,
            (None, Some(latent)) => layer_tensors.latent(&latent)?,
            (None, None) => layer_tensors.attention(facts)?,
        }
        layer_tensors.feed_forward(facts, layer.feed_forward)?;
        layer_tensors.token_input()?;
        if spec.scales_layers {
            layer_tensors.vector(LayerWeight::Scale, "layer_scalar", 1)?;
        }
    }
    Ok(())
}

/// Tensors that some exporters add and that change nothing.
pub(crate) fn is_harmless(name: &str, entry: &Entry) -> bool {
    let is_mask = matches!(&entry.stored, Stored::Other(kind) if kind == "BOOL" || kind == "U8");
    name == "rope_freqs.weight"
        || name.ends_with(".rotary_emb.inv_freq")
        || name.ends_with(".masked_bias")
        || (name.ends_with("attn.bias") && is_mask)
        // Layers of Qwen3.5 that predict several tokens; they are not used.
        || name.starts_with("mtp.")
}

const EMBEDDING: &str = "embed_tokens.weight";

/// How the tensors of a checkpoint are named.
#[derive(Clone, Copy)]
struct Names {
    prefix: &'static str,
    head: &'static str,
    /// Saved without the output layer.
    is_bare: bool,
}

/// Text models, then the text half of multimodal ones as older and newer releases of transformers save it.
const NAMES: [Names; 5] = [
    Names { prefix: "model.", head: "lm_head.weight", is_bare: false },
    Names { prefix: "", head: "lm_head.weight", is_bare: true },
    Names {
        prefix: "language_model.model.",
        head: "language_model.lm_head.weight",
        is_bare: false,
    },
    Names { prefix: "model.language_model.", head: "lm_head.weight", is_bare: false },
    Names { prefix: "language_model.", head: "lm_head.weight", is_bare: true },
];

/// Whether a tensor belongs to one of these layers.
pub(crate) fn is_of_layers(name: &str, found: Found, layers: &Range<usize>) -> bool {
    let layer = name.strip_prefix(found.prefix).and_then(|name| name.strip_prefix("layers."));
    let number = layer.and_then(|layer| layer.split_once('.')).map(|(number, _)| number.parse());
    matches!(number, Some(Ok(number)) if layers.contains(&number))
}

/// Tensors of the half of a multimodal model that sees images or hears.
pub(crate) fn is_of_towers(name: &str, wrapper: &Wrapper) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    wrapper.towers.iter().any(|part| name.starts_with(part))
}

/// Keys and values of layers that read those of others: some files hold them.
pub(crate) fn is_of_shared_keys(name: &str, found: Found, spec: &ModelSpec) -> bool {
    const PARTS: [&str; 4] = ["k_proj.", "v_proj.", "k_norm.", "v_norm."];
    let layer = name.strip_prefix(found.prefix).and_then(|name| name.strip_prefix("layers."));
    let Some((number, part)) = layer.and_then(|layer| layer.split_once(".self_attn.")) else {
        return false;
    };
    let layer = number.parse().ok().and_then(|number: usize| spec.layers.get(number));
    layer.is_some_and(|layer| layer.keys_of.is_some())
        && PARTS.iter().any(|name| part.starts_with(name))
}

/// Parts of an expert.
const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

struct Layer<'a> {
    catalogue: &'a mut Catalogue,
    spec: &'a ModelSpec,
    layer: &'a LayerSpec,
    prefix: &'static str,
    number: u32,
}

impl Layer<'_> {
    fn name(&self, part: &str) -> String {
        format!("{}layers.{}.{part}", self.prefix, self.number)
    }

    fn role(&self, weight: LayerWeight) -> WeightRole {
        WeightRole::Layer(self.number, weight)
    }

    fn vector(&mut self, weight: LayerWeight, part: &str, len: u64) -> Result<(), ModelError> {
        let name = self.name(part);
        self.catalogue.vector(self.role(weight), &name, len)
    }

    fn matrix(
        &mut self,
        weight: LayerWeight,
        part: &str,
        rows: u64,
        cols: u64,
    ) -> Result<(), ModelError> {
        let name = self.name(part);
        self.catalogue.matrix(self.role(weight), &name, rows, cols)
    }

    /// One tensor that holds several parts one below the other.
    fn fused(
        &mut self,
        part: &str,
        parts: &[(LayerWeight, u64)],
        cols: u64,
    ) -> Result<(), ModelError> {
        let name = self.name(part);
        let rows = parts.iter().fold(0_u64, |sum, (_, rows)| sum.saturating_add(*rows));
        let parts: Vec<_> =
            parts.iter().map(|(weight, rows)| (self.role(*weight), *rows)).collect();
        self.catalogue.rows(&name, &[rows, cols], &parts)
    }

    /// One tensor in which parts alternate: a band of each, `bands` times. `parts`: rows in all bands.
    fn banded(
        &mut self,
        part: &str,
        parts: &[(LayerWeight, u64)],
        bands: u64,
    ) -> Result<(), ModelError> {
        let (name, hidden) = (self.name(part), u64::from(self.spec.hidden_size));
        let parts: Vec<_> =
            parts.iter().map(|(weight, rows)| (self.role(*weight), *rows)).collect();
        self.catalogue.bands(&name, hidden, &parts, bands)
    }

    fn norms(&mut self, names: Norms) -> Result<(), ModelError> {
        let hidden = u64::from(self.spec.hidden_size);
        let before = [LayerWeight::InputNorm, LayerWeight::FeedForwardNorm];
        let after = [LayerWeight::PostAttentionNorm, LayerWeight::PostFeedForwardNorm];
        for (weights, names) in [(before, names.before), (after, names.after)] {
            for (weight, name) in weights.into_iter().zip(names.into_iter().flatten()) {
                self.vector(weight, &format!("{name}.weight"), hidden)?;
            }
        }
        Ok(())
    }

    fn attention(&mut self, facts: &Facts) -> Result<(), ModelError> {
        let Widths { hidden, query, kv } = Widths::of_layer(self.spec, self.layer);
        let has_keys = self.layer.keys_of.is_none();
        if facts.is_fused {
            let parts =
                [(LayerWeight::Query, query), (LayerWeight::Key, kv), (LayerWeight::Value, kv)];
            self.fused("self_attn.qkv_proj.weight", &parts, hidden)?;
        } else {
            let gates = if self.spec.attention.output_gate { query } else { 0 };
            let query = query.saturating_add(gates);
            self.matrix(LayerWeight::Query, "self_attn.q_proj.weight", query, hidden)?;
            if has_keys {
                self.matrix(LayerWeight::Key, "self_attn.k_proj.weight", kv, hidden)?;
            }
            if has_keys && !self.layer.values_are_keys {
                self.matrix(LayerWeight::Value, "self_attn.v_proj.weight", kv, hidden)?;
            }
        }
        self.matrix(LayerWeight::Output, "self_attn.o_proj.weight", hidden, query)?;
        if self.spec.attention.qkv_bias {
            self.vector(LayerWeight::QueryBias, "self_attn.q_proj.bias", query)?;
            if has_keys {
                self.vector(LayerWeight::KeyBias, "self_attn.k_proj.bias", kv)?;
            }
            if has_keys && !self.layer.values_are_keys {
                self.vector(LayerWeight::ValueBias, "self_attn.v_proj.bias", kv)?;
            }
        }
        if self.layer.values_are_keys {
            let (key, value) = (LayerWeight::KeyBias, LayerWeight::ValueBias);
            self.catalogue.plan_again(self.role(key), self.role(value));
        }
        if self.spec.attention.o_bias {
            self.vector(LayerWeight::OutputBias, "self_attn.o_proj.bias", hidden)?;
        }
        if self.spec.attention.sinks {
            let heads = u64::from(self.spec.num_attention_heads);
            self.vector(LayerWeight::Sinks, "self_attn.sinks", heads)?;
        }
        let head_dim = u64::from(self.spec.heads(self.layer).head_dim);
        let widths = match self.spec.attention.qk_norm {
            QkNorm::None | QkNorm::Unweighted => return Ok(()),
            QkNorm::Head => [head_dim, head_dim],
            QkNorm::Full => [query, kv],
        };
        self.vector(LayerWeight::QueryNorm, "self_attn.q_norm.weight", widths[0])?;
        if has_keys {
            self.vector(LayerWeight::KeyNorm, "self_attn.k_norm.weight", widths[1])?;
        }
        Ok(())
    }

    fn latent(&mut self, latent: &LatentSpec) -> Result<(), ModelError> {
        use LayerWeight as W;
        let hidden = u64::from(self.spec.hidden_size);
        let heads = u64::from(self.spec.num_attention_heads);
        let of_heads = |width: u32| heads.saturating_mul(u64::from(width));
        let (rank, kept) = (u64::from(latent.rank), u64::from(latent.kept_dim()));
        let queries = of_heads(latent.query_dim());
        let has_biases = self.spec.attention.qkv_bias;
        match latent.query_rank.map(u64::from) {
            None => self.matrix(W::Query, "self_attn.q_proj.weight", queries, hidden)?,
            Some(width) => {
                self.matrix(W::QueryDown, "self_attn.q_a_proj.weight", width, hidden)?;
                if has_biases {
                    self.vector(W::QueryDownBias, "self_attn.q_a_proj.bias", width)?;
                }
                self.vector(W::QueryDownNorm, "self_attn.q_a_layernorm.weight", width)?;
                self.matrix(W::Query, "self_attn.q_b_proj.weight", queries, width)?;
            }
        }
        self.matrix(W::LatentDown, "self_attn.kv_a_proj_with_mqa.weight", kept, hidden)?;
        if has_biases {
            self.vector(W::LatentDownBias, "self_attn.kv_a_proj_with_mqa.bias", kept)?;
        }
        self.vector(W::LatentNorm, "self_attn.kv_a_layernorm.weight", rank)?;
        let up = of_heads(latent.up_rows());
        self.matrix(W::LatentUp, "self_attn.kv_b_proj.weight", up, rank)?;
        self.matrix(W::Output, "self_attn.o_proj.weight", hidden, of_heads(latent.value_dim))?;
        if self.spec.attention.o_bias {
            self.vector(W::OutputBias, "self_attn.o_proj.bias", hidden)?;
        }
        Ok(())
    }

    fn token_input(&mut self) -> Result<(), ModelError> {
        let Some(input) = self.spec.token_input else { return Ok(()) };
        let (hidden, size) = (u64::from(self.spec.hidden_size), u64::from(input.size));
        self.matrix(LayerWeight::TokenGate, "per_layer_input_gate.weight", size, hidden)?;
        self.matrix(LayerWeight::TokenOutput, "per_layer_projection.weight", hidden, size)?;
        self.vector(LayerWeight::TokenNorm, "post_per_layer_input_norm.weight", hidden)
    }

    fn delta_net(&mut self, facts: &Facts, net: DeltaNetSpec) -> Result<(), ModelError> {
        use LayerWeight as W;
        let hidden = u64::from(self.spec.hidden_size);
        let (key, value) = (u64::from(net.key_width()), u64::from(net.value_width()));
        let heads = u64::from(net.num_value_heads);
        let qkv = [(W::DeltaQuery, key), (W::DeltaKey, key), (W::DeltaValue, value)];
        if facts.fuses_delta_nets {
            let bands = u64::from(net.num_key_heads);
            let [query, key, value_part] = qkv;
            let parts = [query, key, value_part, (W::DeltaGate, value)];
            self.banded("linear_attn.in_proj_qkvz.weight", &parts, bands)?;
            let parts = [(W::DeltaBeta, heads), (W::DeltaDecay, heads)];
            self.banded("linear_attn.in_proj_ba.weight", &parts, bands)?;
        } else {
            self.fused("linear_attn.in_proj_qkv.weight", &qkv, hidden)?;
            self.matrix(W::DeltaGate, "linear_attn.in_proj_z.weight", value, hidden)?;
            self.matrix(W::DeltaBeta, "linear_attn.in_proj_b.weight", heads, hidden)?;
            self.matrix(W::DeltaDecay, "linear_attn.in_proj_a.weight", heads, hidden)?;
        }
        let name = self.name("linear_attn.conv1d.weight");
        let (channels, kernel) = (u64::from(net.channels()), u64::from(net.conv_kernel));
        let conv = [(self.role(W::DeltaConv), channels)];
        self.catalogue.rows(&name, &[channels, 1, kernel], &conv)?;
        self.vector(W::DeltaLogRate, "linear_attn.A_log", heads)?;
        self.vector(W::DeltaBias, "linear_attn.dt_bias", heads)?;
        self.vector(W::DeltaNorm, "linear_attn.norm.weight", u64::from(net.value_dim))?;
        self.matrix(W::DeltaOutput, "linear_attn.out_proj.weight", hidden, value)
    }

    fn feed_forward(&mut self, facts: &Facts, part: FeedForwardSpec) -> Result<(), ModelError> {
        let hidden = u64::from(self.spec.hidden_size);
        let (size, bias) = match part {
            FeedForwardSpec::Moe(moe) => return self.experts(facts, moe),
            FeedForwardSpec::Dense { intermediate_size, bias } => {
                (u64::from(intermediate_size), bias)
            }
        };
        let name = |part: &str| format!("{}.{part}", facts.network);
        if facts.is_fused {
            let parts = [(LayerWeight::Gate, size), (LayerWeight::Up, size)];
            self.fused(&name("gate_up_proj.weight"), &parts, hidden)?;
        } else {
            self.matrix(LayerWeight::Gate, &name("gate_proj.weight"), size, hidden)?;
            self.matrix(LayerWeight::Up, &name("up_proj.weight"), size, hidden)?;
        }
        self.matrix(LayerWeight::Down, &name("down_proj.weight"), hidden, size)?;
        if bias {
            self.vector(LayerWeight::GateBias, &name("gate_proj.bias"), size)?;
            self.vector(LayerWeight::UpBias, &name("up_proj.bias"), size)?;
            self.vector(LayerWeight::DownBias, &name("down_proj.bias"), hidden)?;
        }
        Ok(())
    }

    /// Five layouts: Mixtral's `block_sparse_moe.experts.0.w1`, `mlp.experts.0.gate_proj`, the stacked
    /// `mlp.experts.gate_up_proj` of transformers 5, the same transposed (Llama 4), and that with biases.
    fn experts(&mut self, facts: &Facts, moe: MoeSpec) -> Result<(), ModelError> {
        let FeedForward::Experts(names) = facts.feed_forward else { return Ok(()) };
        let hidden = u64::from(self.spec.hidden_size);
        let num_experts = u64::from(moe.num_experts);
        if moe.own_norms {
            return self.experts_beside(moe, names.router);
        }
        let mixtral = self.catalogue.contains(&self.name("block_sparse_moe.gate.weight"));
        let block = if mixtral { "block_sparse_moe" } else { facts.network };
        let router = format!("{block}.{}", names.router);
        self.matrix(LayerWeight::Router, &format!("{router}.weight"), num_experts, hidden)?;
        if moe.router.bias {
            self.vector(LayerWeight::RouterBias, &format!("{router}.bias"), num_experts)?;
        }
        if let Some(correction) = names.correction {
            let name = format!("{block}.{correction}");
            self.vector(LayerWeight::RouterCorrection, &name, num_experts)?;
        }
        if let Some(shared) = moe.shared_size.map(u64::from) {
            let name = |part: &str| format!("{block}.{}.{part}.weight", names.shared.tensors());
            self.matrix(LayerWeight::SharedGate, &name("gate_proj"), shared, hidden)?;
            self.matrix(LayerWeight::SharedUp, &name("up_proj"), shared, hidden)?;
            self.matrix(LayerWeight::SharedDown, &name("down_proj"), hidden, shared)?;
        }
        if moe.shared_score {
            let name = format!("{block}.shared_expert_gate.weight");
            self.matrix(LayerWeight::SharedScore, &name, 1, hidden)?;
        }
        let stacked = format!("{block}.experts.gate_up_proj");
        let is_transposed = moe.scales_input && self.catalogue.contains(&self.name(&stacked));
        if moe.bias || is_transposed {
            return self.transposed_experts(moe, block);
        }
        let parts = if mixtral { ["w1", "w3", "w2"] } else { PARTS };
        self.stacked_or_single(moe, &format!("{block}.experts"), parts)
    }

    /// Experts beside the usual network, with norms of their own.
    fn experts_beside(&mut self, moe: MoeSpec, router: &str) -> Result<(), ModelError> {
        use LayerWeight as W;
        let (hidden, num_experts) = (u64::from(self.spec.hidden_size), u64::from(moe.num_experts));
        let size = moe.shared_size.map_or(0, u64::from);
        for (weight, part) in [(W::SharedGate, "gate_proj"), (W::SharedUp, "up_proj")] {
            self.matrix(weight, &format!("mlp.{part}.weight"), size, hidden)?;
        }
        self.matrix(W::SharedDown, "mlp.down_proj.weight", hidden, size)?;
        self.matrix(W::Router, &format!("{router}.proj.weight"), num_experts, hidden)?;
        self.vector(W::RouterNorm, &format!("{router}.scale"), hidden)?;
        self.vector(W::RouterScale, &format!("{router}.per_expert_scale"), num_experts)?;
        self.vector(W::ExpertNorm, "pre_feedforward_layernorm_2.weight", hidden)?;
        self.vector(W::SharedPostNorm, "post_feedforward_layernorm_1.weight", hidden)?;
        self.vector(W::ExpertPostNorm, "post_feedforward_layernorm_2.weight", hidden)?;
        self.stacked_or_single(moe, "experts", PARTS)
    }

    /// `experts` is in front of the names; `parts` are those of gate, up and down.
    fn stacked_or_single(
        &mut self,
        moe: MoeSpec,
        experts: &str,
        [gate, up, down]: [&str; 3],
    ) -> Result<(), ModelError> {
        let (hidden, size) = (u64::from(self.spec.hidden_size), u64::from(moe.intermediate_size));
        if self.catalogue.contains(&self.name(&format!("{experts}.gate_up_proj"))) {
            return self.stacked_experts(moe, experts);
        }
        for expert in 0..moe.num_experts {
            let name = |part: &str| format!("{experts}.{expert}.{part}.weight");
            self.matrix(LayerWeight::ExpertGate(expert), &name(gate), size, hidden)?;
            self.matrix(LayerWeight::ExpertUp(expert), &name(up), size, hidden)?;
            self.matrix(LayerWeight::ExpertDown(expert), &name(down), hidden, size)?;
        }
        Ok(())
    }

    /// `gate_up_proj` is `[num_experts, hidden_size, 2 * intermediate_size]`, columns of gate and up in
    /// turn where there are biases, and those of gate first elsewhere; `down_proj` is
    /// `[num_experts, intermediate_size, hidden_size]`.
    fn transposed_experts(&mut self, moe: MoeSpec, block: &str) -> Result<(), ModelError> {
        use LayerWeight as W;
        let hidden = u64::from(self.spec.hidden_size);
        let size = u64::from(moe.intermediate_size);
        let both = size.saturating_mul(2);
        let experts = u64::from(moe.num_experts);
        let parts = |roles: fn(u32) -> Vec<LayerWeight>| -> Vec<Vec<WeightRole>> {
            let of_expert =
                |expert| roles(expert).into_iter().map(|role| self.role(role)).collect();
            (0..moe.num_experts).map(of_expert).collect()
        };
        for (part, shape, roles) in [
            (
                "gate_up_proj",
                &[experts, hidden, both][..],
                parts(|e| vec![W::ExpertGate(e), W::ExpertUp(e)]),
            ),
            (
                "gate_up_proj_bias",
                &[experts, both],
                parts(|e| vec![W::ExpertGateBias(e), W::ExpertUpBias(e)]),
            ),
            ("down_proj", &[experts, size, hidden], parts(|e| vec![W::ExpertDown(e)])),
            ("down_proj_bias", &[experts, hidden], parts(|e| vec![W::ExpertDownBias(e)])),
        ] {
            let is_bias = part.ends_with("_bias");
            let name = self.name(&format!("{block}.experts.{part}"));
            match moe.bias {
                true => self.catalogue.alternating(&name, shape, &roles)?,
                false if is_bias => {}
                false => self.catalogue.side_by_side(&name, shape, &roles)?,
            }
        }
        Ok(())
    }

    /// `gate_up_proj` is `[num_experts, 2 * intermediate_size, hidden_size]`, gate first; `down_proj`
    /// is `[num_experts, hidden_size, intermediate_size]`.
    fn stacked_experts(&mut self, moe: MoeSpec, prefix: &str) -> Result<(), ModelError> {
        let hidden = u64::from(self.spec.hidden_size);
        let size = u64::from(moe.intermediate_size);
        let mut gates = Vec::new();
        let mut downs = Vec::new();
        for expert in 0..moe.num_experts {
            gates.push((self.role(LayerWeight::ExpertGate(expert)), size));
            gates.push((self.role(LayerWeight::ExpertUp(expert)), size));
            downs.push((self.role(LayerWeight::ExpertDown(expert)), hidden));
        }
        let experts = u64::from(moe.num_experts);
        let name = self.name(&format!("{prefix}.gate_up_proj"));
        self.catalogue.rows(&name, &[experts, size.saturating_mul(2), hidden], &gates)?;
        let name = self.name(&format!("{prefix}.down_proj"));
        self.catalogue.rows(&name, &[experts, hidden, size], &downs)
    }
}

/// Rows and columns that several tensors share.
pub(crate) struct Widths {
    pub(crate) hidden: u64,
    pub(crate) query: u64,
    pub(crate) kv: u64,
}

impl Widths {
    pub(crate) fn of(spec: &ModelSpec) -> Self {
        Self::with(spec, HeadSizes { num_kv_heads: spec.num_kv_heads, head_dim: spec.head_dim })
    }

    pub(crate) fn of_layer(spec: &ModelSpec, layer: &LayerSpec) -> Self {
        Self::with(spec, spec.heads(layer))
    }

    fn with(spec: &ModelSpec, heads: HeadSizes) -> Self {
        let head_dim = u64::from(heads.head_dim);
        Self {
            hidden: u64::from(spec.hidden_size),
            query: u64::from(spec.num_attention_heads).saturating_mul(head_dim),
            kv: u64::from(heads.num_kv_heads).saturating_mul(head_dim),
        }
    }
}
