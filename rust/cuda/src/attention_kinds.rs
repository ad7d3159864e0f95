//! Which layers' attention is planned and launched alike. Pure, at load.

use ingle_model::{HeadSizes, LayerSpec, ModelSpec};

use crate::attention_launch::AttentionLaunch;
use crate::builds;
use crate::contract::{KIND_CHUNKS, KIND_PROMPTS, PlanKind, Words, attention_partial_floats};
use crate::dtypes::KvDtype;
use crate::limits::DeviceLimits;
use crate::prompt_launch::PromptLaunch;
use crate::variant::Variant;

/// Layers with the same window and heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttentionKind {
    /// Their window or chunk; 0 is none.
    pub(crate) window: u32,
    pub(crate) heads: HeadSizes,
    pub(crate) launch: AttentionLaunch,
    /// Where prompts have a kernel of their own.
    pub(crate) prompt: Option<PromptLaunch>,
    /// Of attention.cu.
    pub(crate) build: Variant,
    /// Of attention_prefill.cu.
    pub(crate) prompt_build: Variant,
}

/// All kinds of a model, by rising window.
#[derive(Clone, Debug)]
pub(crate) struct AttentionKinds {
    pub(crate) kinds: Vec<AttentionKind>,
    /// The kind of each layer.
    of_layer: Vec<usize>,
    num_heads: u32,
    chunks: bool,
}

impl AttentionKinds {
    /// Those of a model on a card.
    pub(crate) fn of(
        spec: &ModelSpec,
        limits: &DeviceLimits,
        block_size: u32,
        kv: KvDtype,
    ) -> Self {
        let key = |layer: &LayerSpec| {
            let HeadSizes { num_kv_heads, head_dim } = spec.heads(layer);
            (layer.window.unwrap_or(0), head_dim, num_kv_heads)
        };
        let mut keys: Vec<_> = spec.layers.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let place = |layer| keys.binary_search(&key(layer)).unwrap_or_default();
        let of_layer = spec.layers.iter().map(place).collect();
        let kind = |&(window, head_dim, num_kv_heads): &(u32, u32, u32)| {
            let prompt = PromptLaunch::on(limits, head_dim, block_size, kv);
            let heads = HeadSizes { num_kv_heads, head_dim };
            AttentionKind {
                window,
                heads,
                launch: AttentionLaunch::on(limits, head_dim, kv),
                prompt: prompt.filter(|_| spec.attention.causal),
                build: builds::attention(spec, heads, limits),
                prompt_build: builds::prompt(spec, heads),
            }
        };
        let kinds = keys.iter().map(kind).collect();
        let (num_heads, chunks) = (spec.num_attention_heads, builds::has_chunks(spec));
        Self { kinds, of_layer, num_heads, chunks }
    }

    /// Kinds of which each is one layer's, with one number of query heads a KV head and no chunks.
    #[cfg(test)]
    pub(crate) fn alike(kinds: Vec<AttentionKind>) -> Self {
        let num_heads = kinds[0].heads.num_kv_heads;
        Self { of_layer: (0..kinds.len()).collect(), kinds, num_heads, chunks: false }
    }

    /// The number of a layer's plan, and its kind.
    pub(crate) fn of_layer(&self, layer: usize) -> (u64, &AttentionKind) {
        let plan = self.of_layer[layer];
        (plan as u64, &self.kinds[plan])
    }

    /// Number of plans.
    pub(crate) fn len(&self) -> u32 {
        self.kinds.len() as u32
    }

    /// Whether kinds differ in more than their windows, for which step_prepare.cu has a build of its own.
    pub(crate) fn differ(&self) -> bool {
        self.chunks || self.kinds.iter().any(|kind| kind.heads != self.kinds[0].heads)
    }

    /// What step_prepare reads of them: windows, or a `PlanKind` each.
    pub(crate) fn words(&self) -> Vec<u32> {
        if !self.differ() {
            return self.kinds.iter().map(|kind| kind.window).collect();
        }
        let mut words = vec![0; self.num_words() as usize];
        for (kind, words) in self.kinds.iter().zip(words.chunks_exact_mut(PlanKind::COUNT)) {
            let chunks = if self.chunks { KIND_CHUNKS } else { 0 };
            let prompts = if kind.prompt.is_some() { KIND_PROMPTS } else { 0 };
            let plan = PlanKind {
                window: kind.window,
                flags: chunks | prompts,
                num_kv_heads: kind.heads.num_kv_heads,
                kv_tile: kind.launch.kv_tile,
                grid: kind.launch.grid,
                prompt_tile: kind.prompt.as_ref().map_or(0, |prompt| prompt.kv_tile),
                reserved: [0; 2],
            };
            plan.write(words);
        }
        words
    }

    /// How many words those are.
    pub(crate) fn num_words(&self) -> u64 {
        let each = if self.differ() { PlanKind::COUNT as u64 } else { 1 };
        self.kinds.len() as u64 * each
    }

    /// The most blocks of a launch.
    pub(crate) fn most_blocks(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.launch.grid).max().unwrap_or(0)
    }

    /// The most floats of partial results of a launch.
    pub(crate) fn partial_floats(&self) -> u64 {
        let floats = |kind: &AttentionKind| {
            2 * u64::from(kind.launch.grid) * attention_partial_floats(kind.heads.head_dim)
        };
        self.kinds.iter().map(floats).max().unwrap_or(0)
    }

    /// The most query heads a KV head.
    pub(crate) fn most_group(&self) -> u32 {
        self.kinds.iter().map(|kind| self.group(kind)).max().unwrap_or(1)
    }

    /// The fewest query heads a KV head where prompts have a kernel of their own: a row that fills a tile there fills
    /// one everywhere. `None` if they have none.
    pub(crate) fn prompt_group(&self) -> Option<u32> {
        let with_prompts = self.kinds.iter().filter(|kind| kind.prompt.is_some());
        with_prompts.map(|kind| self.group(kind)).min()
    }

    /// Tokens of the widest tile.
    pub(crate) fn widest_tile(&self) -> u32 {
        let tile = |kind: &AttentionKind| {
            kind.launch.kv_tile.max(kind.prompt.as_ref().map_or(0, |prompt| prompt.kv_tile))
        };
        self.kinds.iter().map(tile).max().unwrap_or(1)
    }

    /// Whether windows are chunks.
    pub(crate) fn are_chunks(&self) -> bool {
        self.chunks
    }

    /// The kind of which a block takes more shared memory than the card has.
    pub(crate) fn too_wide(&self, limits: &DeviceLimits) -> Option<&AttentionKind> {
        self.kinds.iter().find(|kind| kind.launch.shared_bytes > limits.shared_bytes_per_block)
    }

    fn group(&self, kind: &AttentionKind) -> u32 {
        self.num_heads / kind.heads.num_kv_heads
    }
}
