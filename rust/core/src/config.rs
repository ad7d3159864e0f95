//! Sizes and switches of a scheduler. Plain data.

use crate::ExecutorShape;

/// What a scheduler is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sizes of the executor.
    pub shape: ExecutorShape,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// Most requests that wait.
    pub max_queue: u32,
    /// Context tokens whose keys and values take as long to read as the weights: reading less hardly
    /// lengthens a step.
    pub weight_tokens: u32,
    /// Whether requests share computed prefixes; choices of one prompt do in any case.
    pub enable_prefix_caching: bool,
    /// A prompt is computed in one step and shares nothing with others: what a model needs whose tokens
    /// see the whole prompt. All requests are embeddings then: a next token would change the ones before.
    pub whole_prompts: bool,
    /// Random for each process, so the cache's hashes cannot be predicted.
    pub cache_secret: u64,
}

impl SchedulerConfig {
    /// # Panics
    /// If a size is zero, there are fewer slots than `max_num_seqs`, or a step does not hold the longest of
    /// prompts that are computed whole.
    pub(crate) fn check(&self) {
        let shape = &self.shape;
        assert!(
            shape.num_blocks > 0
                && shape.block_size > 0
                && shape.max_num_seqs > 0
                && shape.max_num_batched_tokens > 0
                && shape.max_steps_in_flight > 0
                && shape.row_tile > 0
                && shape.tenant_rows > 0
                && shape.num_slots >= shape.max_num_seqs,
            "sizes that nothing can run with: {shape:?}"
        );
        assert!(
            !shape.keeps_state || shape.kv_groups.is_plain(),
            "states beside windows: {shape:?}"
        );
        assert!(
            !self.whole_prompts || self.max_model_len <= shape.max_num_batched_tokens,
            "prompts of {} tokens in steps of {}",
            self.max_model_len,
            shape.max_num_batched_tokens
        );
    }
}
