//! Where attention_prefill.cu runs, and how it is launched. Plain data.

use crate::contract::{PROMPT_ROWS, PROMPT_THREADS, prompt_shared_bytes, prompt_tile};
use crate::dtypes::KvDtype;
use crate::limits::DeviceLimits;
use crate::module::Launch;

/// How prompt attention is launched on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptLaunch {
    /// Tokens a tile.
    pub(crate) kv_tile: u32,
    /// Blocks: one an SM.
    grid: u32,
    shared_bytes: u32,
}

impl PromptLaunch {
    /// `None` where attention.cu computes prompts too: on other cards, with other head sizes, or with blocks
    /// shorter than the 8 rows of a swizzle.
    pub(crate) fn on(
        limits: &DeviceLimits,
        head_dim: u32,
        block_size: u32,
        kv: KvDtype,
    ) -> Option<Self> {
        let fits = is_built(limits, head_dim) && block_size >= 8;
        fits.then(|| Self {
            kv_tile: prompt_tile(head_dim),
            grid: limits.num_sms,
            shared_bytes: prompt_shared_bytes(head_dim, kv.bytes()),
        })
    }

    /// Grid, block and shared memory.
    pub(crate) fn launch(&self) -> Launch {
        Launch::linear(self.grid, PROMPT_THREADS).shared(self.shared_bytes)
    }
}

/// Whether there is a build for heads of this width on a card: Hopper alone has the instructions.
pub(crate) fn is_built(limits: &DeviceLimits, head_dim: u32) -> bool {
    limits.compute_capability == (9, 0) && PROMPT_HEAD_DIMS.contains(&head_dim)
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
