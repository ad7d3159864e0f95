//! The contract between host and kernels, declared once: everything that a kernel reads or writes
//! and that is not an array of numbers. kernels/contract.cuh is generated from it.

mod define;

pub(crate) use define::Words;
use define::{Field, Item, contract, header_of};
use ingle_core::{NUM_SAMPLING_FIELDS, SAMPLING_FIELDS, SamplingParams};

contract! {
constants {
    /// Number formats: WEIGHT_DTYPE, ACT_DTYPE, KV_DTYPE.
    DTYPE_BF16 = 0;
    DTYPE_F16 = 1;

    /// Bytes of an activation, in every format that it has.
    ACT_BYTES = 2;

    /// No slot, no token, no limit.
    NONE = u32::MAX;
    /// Most rows (requests) of a step.
    MAX_STEP_ROWS = 1024;

    /// What a StepRow's flags ask of its pooling: the mean of all tokens, or the last one; the prompt ends here.
    POOL_MEAN = 1;
    POOL_LAST = 2;
    POOL_ENDS = 4;
    /// Another flag of a StepRow: its attention is attention_prefill.cu's.
    PROMPT_ROW = 8;
    /// Flags of a StepSample: its slot's mask applies, whatever Slot::flags says; the step's own
    /// sampler skips it.
    SAMPLE_MASKED = 2;
    SAMPLE_LATE = 4;

    /// Packed query rows of one attention entry; a row of queries is packed as token * group + head in its group.
    QUERY_ROWS = 64;
    /// An entry of at most this many packed rows is a decode: its warps share a tile's tokens.
    DECODE_ROWS = 16;
    /// KV tokens of one tile, and where a head is wider than 128.
    KV_TILE = 64;
    KV_TILE_WIDE = 32;
    /// Flags of a plan: no pair is cut and no entry is a decode; there is so little work that short pairs are
    /// not cut; a token sees all of its sequence, not only what comes before it.
    PLAN_WHOLE = 1;
    PLAN_FEW = 2;
    PLAN_NOT_CAUSAL = 4;
    /// The plan has no prompt rows: attention_prefill.cu runs after attention.cu and overlaps with its end.
    PLAN_PROMPT_FOLLOWS = 8;
    /// Flags of a PlanKind: its window's length is that of chunks; prompts have attention_prefill.cu.
    KIND_CHUNKS = 1;
    KIND_PROMPTS = 2;
    /// The list of first entries after a plan's header is padded to a multiple of this.
    PLAN_GRID_STEP = 8;
    /// Lengths on a plan's line: of a tile, and what a pair adds for its start and end. Times of one H200: a
    /// decode tile 2.0 us, a prefill tile 2 to 4.
    DECODE_TILE_LENGTH = 2;
    DECODE_PAIR_LENGTH = 0;
    PREFILL_TILE_LENGTH = 4;
    PREFILL_PAIR_LENGTH = 4;
    /// Threads of an attention block, and where a head is wider than 256; elements that pad a row in its shared memory; rows of q copied ahead in
    /// each stage; bytes behind all of them.
    ATTENTION_THREADS = 128;
    ATTENTION_THREADS_WIDE = 256;
    ATTENTION_ROW_PAD = 8;
    ATTENTION_SMALL_ROWS = 8;
    ATTENTION_TAIL_BYTES = 1024;
    /// Of attention_prefill.cu: packed query rows of an entry; KV tokens of a tile, and where a head is wider than
    /// 128; threads of a block; tiles in flight. In shared memory, bytes of a swizzled row, bytes lost to its
    /// alignment, and bytes for barriers behind the tiles.
    PROMPT_ROWS = 128;
    PROMPT_TILE = 128;
    PROMPT_TILE_WIDE = 64;
    PROMPT_THREADS = 384;
    PROMPT_STAGES = 2;
    PROMPT_ROW_BYTES = 128;
    PROMPT_ALIGN_BYTES = 1024;
    PROMPT_TAIL_BYTES = 256;
    /// How rope_kv_paged rotates: i with i + rotary_dim / 2, or 2i with 2i + 1; heads of one of its blocks.
    ROPE_HALF_SPLIT = 0;
    ROPE_INTERLEAVED = 1;
    ROPE_HEADS = 8;

    /// Of ranks.cu: flags that a block of a rank has for each other rank; most blocks, most rows of an exchange; columns
    /// that a block of ranks_gather moves at once; seconds until a wait is given up.
    EXCHANGE_FLAGS = 3;
    EXCHANGE_GRID = 256;
    EXCHANGE_ROWS = 512;
    EXCHANGE_SECONDS = 10;
    GATHER_COLUMNS = 2048;
    /// Words of a rank's control block: the number of the last exchange (two words), blocks that have finished the
    /// current one, whether the rank is alone. Words of the fault block: waits are to end, who was waited for.
    CONTROL_NUMBER = 0;
    CONTROL_BLOCKS = 2;
    CONTROL_ALONE = 3;
    FAULT_ABORT = 0;
    FAULT_RANK = 1;

    /// The gate of a feed-forward part, and columns of one block of act_mul_rows.
    GATE_SILU = 0;
    GATE_GELU_TANH = 1;
    GATE_COLUMNS = 2048;
    /// Columns of a gated delta net's state that one block of delta_rule computes.
    DELTA_COLUMNS = 32;
    /// Tokens of a chunk of delta_chunks; numbers behind a row of keys, of the state, of scores in shared memory.
    DELTA_CHUNK = 64;
    DELTA_KEY_PAD = 8;
    DELTA_STATE_PAD = 8;
    DELTA_SCORE_PAD = 4;
    /// What gemm_stream does with a product: GEMM_EPI.
    GEMM_OUT_ACT = 0;
    GEMM_OUT_ADD_F32 = 1;
    GEMM_OUT_GATED = 2;
    GEMM_OUT_F32 = 3;
    /// Threads of a gemm_stream block; bytes of shared memory that one step of a stage takes, a tile of W; the
    /// same of a row of x for the warps' sums; a row of x in shared memory is padded to ROUND and PAD bytes.
    GEMM_THREADS = 256;
    GEMM_STEP_BYTES = 8192;
    GEMM_SUM_BYTES = 512;
    GEMM_X_ROUND_BYTES = 128;
    GEMM_X_PAD_BYTES = 64;

    /// Of four_bit.cuh: FB_CODES, FB_SCALE; threads of a block; bytes of shared memory for the warps' sums, a row of x
    /// and tile of W; bytes behind a row of x in shared memory; bytes of a column of codes in a record of 16 rows.
    FB_INT4 = 0;
    FB_E2M1 = 1;
    FB_SCALE_F16 = 0;
    FB_SCALE_BF16 = 1;
    FB_SCALE_E8M0 = 2;
    FB_THREADS = 256;
    FB_SUM_BYTES = 512;
    FB_X_PAD_BYTES = 16;
    FB_COLUMN_BYTES = 8;
    /// Of four_bit_wgmma.cuh, bytes of shared memory: what a block may take at most (static memory of experts aside), what
    /// the alignment of the stages may cost, where a warp turns its sums, barriers. Most stages.
    FW_ROOM_BYTES = 229376;
    FW_ALIGN_BYTES = 1024;
    FW_STAGING_BYTES = 1280;
    FW_TAIL_BYTES = 256;
    FW_STAGES = 8;

    /// Most experts, most that a token takes; tokens of one block of moe_route; rows and columns of a tile of
    /// moe_gemm.
    MAX_EXPERTS = 512;
    MAX_EXPERTS_PER_TOKEN = 16;
    MOE_ROUTE_TOKENS = 4;
    MOE_TILE = 64;

    /// Vocabulary entries that one block of the sampler scans.
    SAMPLE_CHUNK = 4096;
    /// Entries of a slot's logit bias, and ids that its min_tokens can hold back.
    MAX_LOGIT_BIAS = 1024;
    MAX_BANNED = 128;
    /// Most alternatives that come back with a log-probability.
    MAX_BEST = 20;
    /// Flags of a Slot: its mask holds; it has penalties, so its counts are kept.
    SLOT_HAS_MASK = 1;
    SLOT_HAS_PENALTIES = 2;
    /// The bit of a count that is set if the prompt has the id; the lower bits count the output.
    COUNT_IN_PROMPT = 32768;
    /// SampleOut::status; NONE for a padded row.
    STATUS_OK = 0;
    STATUS_NOT_FINITE = 1;
}

formulas {
    /// Of attention.cu: KV tokens of a tile; threads of a block; bytes of shared memory for K and V of one stage, for
    /// rows of q, for partial scores of slices of a head, and of a block. Heads of up to 128 keep q in registers, except
    /// the rows that are copied ahead in each stage.
    attention_tile(head_dim) = when (head_dim > 128) (KV_TILE_WIDE) else (KV_TILE);
    attention_threads(head_dim) = when (head_dim > 256) (ATTENTION_THREADS_WIDE) else (ATTENTION_THREADS);
    attention_stage_bytes(head_dim, kv_bytes) =
        (2 * attention_tile(head_dim) * (head_dim + ATTENTION_ROW_PAD) * kv_bytes);
    attention_query_rows(head_dim, stages) =
        when (head_dim > 128) (QUERY_ROWS) else (stages * ATTENTION_SMALL_ROWS);
    attention_query_bytes(head_dim, stages) =
        (attention_query_rows(head_dim, stages) * (head_dim + ATTENTION_ROW_PAD) * ACT_BYTES);
    attention_sum_bytes(head_dim) =
        when (head_dim > 256) (ATTENTION_THREADS_WIDE * KV_TILE_WIDE / 8 * 16) else (0);
    attention_shared_bytes(head_dim, stages, kv_bytes) =
        (stages * attention_stage_bytes(head_dim, kv_bytes) + attention_query_bytes(head_dim, stages)
            + attention_sum_bytes(head_dim) + ATTENTION_TAIL_BYTES);

    /// Of attention_prefill.cu: KV tokens of a tile; bytes of a row of q, K or V in boxes of swizzled rows; bytes of
    /// shared memory of a block.
    prompt_tile(head_dim) = when (head_dim > 128) (PROMPT_TILE_WIDE) else (PROMPT_TILE);
    prompt_row_bytes(head_dim, kv_bytes) =
        ((head_dim * kv_bytes + PROMPT_ROW_BYTES - 1) / PROMPT_ROW_BYTES * PROMPT_ROW_BYTES);
    prompt_shared_bytes(head_dim, kv_bytes) =
        (PROMPT_ALIGN_BYTES
            + (PROMPT_ROWS + 2 * PROMPT_STAGES * prompt_tile(head_dim)) * prompt_row_bytes(head_dim, kv_bytes)
            + PROMPT_TAIL_BYTES);

    /// Of delta_chunks.cu: bytes of shared memory for k and q, the state and what tokens add, scores, numbers of tokens.
    delta_chunk_bytes(key_dim) =
        (2 * DELTA_CHUNK * (key_dim + DELTA_KEY_PAD) * ACT_BYTES
            + 4 * (key_dim + DELTA_CHUNK) * (DELTA_COLUMNS + DELTA_STATE_PAD)
            + 8 * DELTA_CHUNK * (DELTA_CHUNK + DELTA_SCORE_PAD) + 12 * DELTA_CHUNK);

    /// Of gemm_stream.cu: bytes of the ring and of the warps' sums, `tiles` of W at once; of a row of x.
    stream_ring_bytes(stages, steps, tiles) = (stages * steps * tiles * GEMM_STEP_BYTES);
    stream_sum_bytes(rows, tiles) = (tiles * rows * GEMM_SUM_BYTES);
    stream_x_stride(k) =
        ((k * ACT_BYTES + GEMM_X_ROUND_BYTES - 1) / GEMM_X_ROUND_BYTES * GEMM_X_ROUND_BYTES + GEMM_X_PAD_BYTES);

    /// Of four_bit.cuh: bytes of a group's scales and zeros in a record, and of the record.
    four_bit_group_bytes(scale_bytes, zero_bytes) = (16 * (scale_bytes + zero_bytes));
    four_bit_record_bytes(block, groups, group_bytes) = (block * FB_COLUMN_BYTES + groups * group_bytes);
    /// In shared memory: a warp's part of a stage, `tiles` of W at once, and the ring; buffers of the warps' sums (with
    /// two in turn one barrier an item is enough), and bytes of one and of all; of a row of x; of sums kept of an item
    /// whose columns of x come in parts.
    four_bit_ring_bytes(stages, tiles, record_bytes) = (stages * tiles * (FB_THREADS / 32) * record_bytes);
    four_bit_sum_buffers(rows) = when (rows <= 16) (2) else (1);
    four_bit_sum_bytes(rows, tiles) = (tiles * rows * FB_SUM_BYTES);
    four_bit_fixed_bytes(stages, rows, tiles, record_bytes) =
        (four_bit_ring_bytes(stages, tiles, record_bytes)
            + four_bit_sum_buffers(rows) * four_bit_sum_bytes(rows, tiles));
    four_bit_x_stride(columns) = (ACT_BYTES * columns + FB_X_PAD_BYTES);
    four_bit_kept_bytes(rows, tiles) = (tiles * rows * 16 * 4);

    /// Of four_bit_wgmma.cuh: threads of a block; bytes of shared memory where its warps turn their sums, of all that is no
    /// stage, of a stage; stages; all bytes.
    four_bit_wgmma_threads(groups) = (128 * (groups + 1));
    four_bit_wgmma_staging_bytes(groups) = (4 * groups * FW_STAGING_BYTES);
    four_bit_wgmma_fixed_bytes(groups) = (FW_ALIGN_BYTES + four_bit_wgmma_staging_bytes(groups) + FW_TAIL_BYTES);
    four_bit_wgmma_stage_bytes(rows, tiles, groups, block, record_bytes) =
        (rows * block * ACT_BYTES + 4 * tiles * groups * record_bytes);
    four_bit_wgmma_fitting(groups, stage_bytes) = ((FW_ROOM_BYTES - four_bit_wgmma_fixed_bytes(groups)) / stage_bytes);
    four_bit_wgmma_stages(groups, stage_bytes) =
        when (four_bit_wgmma_fitting(groups, stage_bytes) > FW_STAGES) (FW_STAGES)
        else (four_bit_wgmma_fitting(groups, stage_bytes));
    four_bit_wgmma_bytes(groups, stage_bytes) =
        (four_bit_wgmma_fixed_bytes(groups) + four_bit_wgmma_stages(groups, stage_bytes) * stage_bytes);
}

/// First argument of nearly every kernel, by value. Exact builds ignore it and read the same numbers from macros.
struct Dims = 16 {
    vocab_size: u32,
    sample_vocab: u32,
    hidden_size: u32,
    num_heads: u32,
    num_kv_heads: u32,
    rotary_dim: u32,
    block_size: u32,
    max_blocks: u32,
    num_slots: u32,
    intermediate_size: u32,
    num_experts: u32,
    experts_per_token: u32,
    gemm_n: u32,
    gemm_k: u32,
    rotary_pairs: u32,
    reserved: u32,
}

/// Header of a step's metadata. Five lists follow it; the fields give their offsets in words.
struct StepHeader = 16 {
    num_rows: u32,
    num_tokens: u32,
    num_samples: u32,
    num_updates: u32,
    rows_at: u32,
    tokens_at: u32,
    updates_at: u32,
    samples_at: u32,
    step_id: u32,
    saves_at: u32,
    reserved: [u32; 6],
}

/// One request's part of a step; rows are listed by rising first_token.
struct StepRow = 8 {
    slot: u32,
    start: u32,
    num_tokens: u32,
    first_token: u32,
    flags: u32,
    sample_index: u32,
    first_save: u32,
    num_saves: u32,
}

/// A block that joins a slot's table.
struct BlockUpdate = 3 {
    slot: u32,
    index: u32,
    block: u32,
}

/// What layers keep of a row's sequence behind the tokens of positions below `end` goes to `place` too. A row's saves
/// stand side by side, by rising end.
struct StateSave = 2 {
    end: u32,
    place: u32,
}

/// A token to be sampled: of which row, from which token's residual.
struct StepSample = 4 {
    row: u32,
    token_row: u32,
    slot: u32,
    flags: u32,
}

/// Header of an attention plan. The first entry of each CTA follows, then the entries.
struct PlanHeader = 16 {
    num_entries: u32,
    total_length: u32,
    length_per_cta: u32,
    flags: u32,
    num_tokens: u32,
    padded_tokens: u32,
    grid: u32,
    reserved: [u32; 9],
}

/// Up to QUERY_ROWS packed rows of one request and all KV heads, over KV tiles [tile_begin, tile_end).
/// `before` is the length of all entries ahead.
struct PlanEntry = 8 {
    first_token: u32,
    slot: u32,
    start: u32,
    packed_begin: u32,
    packed_end: u32,
    tile_begin: u32,
    tile_end: u32,
    before: u32,
}

/// What decides an attention plan where those of a model differ in more than their window: its window (0: none), flags,
/// KV heads; tiles and blocks of attention.cu; tiles of attention_prefill.cu.
struct PlanKind = 8 {
    window: u32,
    flags: u32,
    num_kv_heads: u32,
    kv_tile: u32,
    grid: u32,
    prompt_tile: u32,
    reserved: [u32; 2],
}

/// Header of a plan for attention_prefill.cu. Its entries follow.
struct PromptHeader = 16 {
    num_entries: u32,
    reserved: [u32; 15],
}

/// Up to PROMPT_ROWS packed rows of one prompt and all KV heads, over KV tiles [tile_begin, tile_end); the
/// prompt has KV up to `kv_end`.
struct PromptEntry = 8 {
    first_token: u32,
    slot: u32,
    start: u32,
    packed_begin: u32,
    packed_end: u32,
    tile_begin: u32,
    tile_end: u32,
    kv_end: u32,
}

/// Sampling parameters of one slot, the fields of `plain_fields!` in rust/core/src/sampling.rs first. `position`
/// counts the tokens that the output holds.
struct Slot = (NUM_SAMPLING_FIELDS + 9) {
    plain: PlainSampling,
    min_tokens: u32,
    seed_low: u32,
    seed_high: u32,
    choice: u32,
    position: u32,
    log_probs: u32,
    flags: u32,
    bias_len: u32,
    banned_len: u32,
}

/// One entry of a slot's logit bias.
struct Bias = 2 {
    id: u32,
    value: f32,
}

/// What sample_open does for one slot: its prompt's ids from `first_id` on, then the generated ones.
struct OpenJob = 4 {
    slot: u32,
    first_id: u32,
    num_prompt: u32,
    num_generated: u32,
}

/// What sample_scan finds in one chunk of the vocabulary: best score and its id, lowest logit left, 1 if a
/// logit is not finite.
struct SamplePartial = 8 {
    best: f32,
    best_id: u32,
    lowest: f32,
    not_finite: u32,
    reserved: [u32; 4],
}

/// What comes back of one sampled or scored row; `num_best` of the best tokens are there.
struct SampleOut = 48 {
    token: u32,
    status: u32,
    log_prob: f32,
    rank: u32,
    num_best: u32,
    reserved: [u32; 3],
    best_ids: [u32; 20],
    best_log_probs: [f32; 20],
}
}

/// Floats of one partial result of attention: O `[QUERY_ROWS, head_dim]`, then m and l `[QUERY_ROWS]` each.
pub(crate) const fn attention_partial_floats(head_dim: u32) -> u64 {
    QUERY_ROWS as u64 * (head_dim as u64 + 2)
}

/// The header file; NVRTC gets it with every kernel.
pub(crate) const HEADER: &str = include_str!("../../../../kernels/contract.cuh");

/// The text of kernels/contract.cuh.
#[must_use]
pub fn contract_header() -> String {
    let mut items = items();
    for item in &mut items {
        if let Item::Structure { name: "Slot", fields, .. } = item {
            fields.splice(..1, PlainSampling::fields());
        }
    }
    header_of(&items)
}

/// The plain sampling fields of a request, a word each, in the order of the core's table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PlainSampling([u32; NUM_SAMPLING_FIELDS]);

impl PlainSampling {
    /// The fields of these parameters.
    pub(crate) fn of(params: &SamplingParams) -> Self {
        Self(std::array::from_fn(|index| {
            let field = &SAMPLING_FIELDS[index];
            let value = field.get(params);
            if field.is_whole { value as u32 } else { (value as f32).to_bits() }
        }))
    }

    /// As the header declares them: fields of `Slot` like its others.
    fn fields() -> impl Iterator<Item = Field> {
        SAMPLING_FIELDS.iter().enumerate().map(|(offset, field)| Field {
            name: field.name,
            c_type: if field.is_whole { u32::C_TYPE } else { f32::C_TYPE },
            offset,
            count: 1,
        })
    }
}

impl Words for PlainSampling {
    const COUNT: usize = NUM_SAMPLING_FIELDS;
    const C_TYPE: &'static str = "PlainSampling";

    fn write(&self, words: &mut [u32]) {
        self.0.write(words);
    }

    fn read(words: &[u32]) -> Self {
        Self(Words::read(words))
    }
}

impl Dims {
    /// Names and values of all fields.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let mut words = [0; Self::COUNT];
        self.write(&mut words);
        let fields = items().into_iter().find_map(|item| match item {
            Item::Structure { name: "Dims", fields, .. } => Some(fields),
            _ => None,
        });
        fields.unwrap_or_default().into_iter().map(move |field| (field.name, words[field.offset]))
    }
}

const _: () = assert!(MAX_BEST as usize == 20 && DECODE_ROWS <= QUERY_ROWS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_in_the_tree_is_current() {
        assert!(
            HEADER == contract_header(),
            "kernels/contract.cuh: run `cargo run -p ingle-cuda --example write_contract`"
        );
    }

    #[test]
    fn words_go_out_and_come_back_as_they_were() {
        let mut out = SampleOut { token: 7, log_prob: -0.5, num_best: 2, ..SampleOut::default() };
        (out.best_ids[1], out.best_log_probs[19]) = (9, 2.5);
        let mut words = [0; SampleOut::COUNT];
        out.write(&mut words);
        assert_eq!((words[0], words[2], words[9]), (7, (-0.5f32).to_bits(), 9));
        assert_eq!(words[47], 2.5f32.to_bits());
        assert_eq!(SampleOut::read(&words), out);
    }

    #[test]
    fn every_dimension_is_named() {
        let dims = Dims { gemm_k: 7, ..Dims::default() };
        let named: Vec<_> = dims.named().collect();
        assert_eq!((named.len(), named[0], named[13]), (16, ("vocab_size", 0), ("gemm_k", 7)));
    }
}
