//! Where attention_prefill.cu runs, and how it is launched. Plain data.

use crate::contract::{
    PROMPT_ALIGN_BYTES, PROMPT_BOX, PROMPT_ROWS, PROMPT_STAGES, PROMPT_TAIL_BYTES, PROMPT_THREADS,
    PROMPT_TILE, PROMPT_TILE_256,
};
use crate::limits::DeviceLimits;
use crate::module::Launch;

/// How prompt attention is launched on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptLaunch {
    head_dim: u32,
    /// Tokens a tile.
    pub(crate) kv_tile: u32,
    /// Blocks: one an SM.
    grid: u32,
}

impl PromptLaunch {
    /// `None` where attention.cu computes prompts too: on other cards, with other head sizes, or with blocks
    /// shorter than the 8 rows of a swizzle.
    pub(crate) fn on(limits: &DeviceLimits, head_dim: u32, block_size: u32) -> Option<Self> {
        let fits = is_built(limits, head_dim) && block_size >= 8;
        fits.then_some(Self { head_dim, kv_tile: kv_tile(head_dim), grid: limits.num_sms })
    }

    /// Grid, block and shared memory.
    pub(crate) fn launch(&self) -> Launch {
        Launch::linear(self.grid, PROMPT_THREADS).shared(shared_bytes(self.head_dim))
    }
}

/// Whether there is a build for heads of this width on a card: Hopper alone has the instructions.
pub(crate) fn is_built(limits: &DeviceLimits, head_dim: u32) -> bool {
    limits.compute_capability == (9, 0) && PROMPT_HEAD_DIMS.contains(&head_dim)
}

/// Dynamic shared memory: q, and K and V of each stage, in boxes of 128 bytes a row; barriers.
pub(crate) fn shared_bytes(head_dim: u32) -> u32 {
    let rows = PROMPT_ROWS + PROMPT_STAGES * 2 * kv_tile(head_dim);
    PROMPT_ALIGN_BYTES + rows * 128 * head_dim.div_ceil(PROMPT_BOX) + PROMPT_TAIL_BYTES
}

fn kv_tile(head_dim: u32) -> u32 {
    if head_dim == 256 { PROMPT_TILE_256 } else { PROMPT_TILE }
}

/// Whether a row of a step goes to prompt attention: it fills a tile, and its keys are few enough that
/// one block going through them all takes no longer than attention.cu cutting them over the whole card
/// (one H200, 32 heads of 128: 1.6 us a tile of 128 tokens against 200 TFLOP/s, equal at about 150 tokens).
pub(crate) fn is_prompt(start: u32, num_tokens: u32, group: u32) -> bool {
    let packed = num_tokens * group;
    packed >= PROMPT_ROWS && (start + num_tokens <= 512 || packed >= 4 * PROMPT_ROWS)
}

/// Widths of a head that it is built for.
pub(crate) const PROMPT_HEAD_DIMS: [u32; 4] = [64, 96, 128, 256];
