// What host and kernels agree on: structures, their sizes and offsets, constants.
// Written from rust/cuda/src/contract/mod.rs by `cargo run -p ingle-cuda --example write_contract`;
// ptx.cuh includes it.
#pragma once

// offsetof as cuda's own headers write it; NVRTC has no other name for it.
#define FIELD_AT(type, field, bytes) static_assert(__INTADDR__(&((type*)0)->field) == bytes, #type "::" #field)

// Number formats: WEIGHT_DTYPE, ACT_DTYPE, KV_DTYPE.
#define DTYPE_BF16 0u
#define DTYPE_F16 1u

// Bytes of an activation, in every format that it has.
#define ACT_BYTES 2u

// No slot, no token, no limit.
#define NONE 0xffffffffu

// Most rows (requests) of a step.
#define MAX_STEP_ROWS 1024u

// What a StepRow's flags ask of its pooling: the mean of all tokens, or the last one; the prompt ends here.
#define POOL_MEAN 1u
#define POOL_LAST 2u
#define POOL_ENDS 4u

// Another flag of a StepRow: its attention is attention_prefill.cu's.
#define PROMPT_ROW 8u

// Flags of a StepSample: its slot's mask applies, whatever Slot::flags says; the step's own
// sampler skips it.
#define SAMPLE_MASKED 2u
#define SAMPLE_LATE 4u

// Packed query rows of one attention entry; a row of queries is packed as token * group + head in its group.
#define QUERY_ROWS 64u

// An entry of at most this many packed rows is a decode: its warps share a tile's tokens.
#define DECODE_ROWS 16u

// KV tokens of one tile, and where a head is wider than 128.
#define KV_TILE 64u
#define KV_TILE_WIDE 32u

// Flags of a plan: no pair is cut and no entry is a decode; there is so little work that short pairs are
// not cut; a token sees all of its sequence, not only what comes before it.
#define PLAN_WHOLE 1u
#define PLAN_FEW 2u
#define PLAN_NOT_CAUSAL 4u

// The plan has no prompt rows: attention_prefill.cu runs after attention.cu and overlaps with its end.
#define PLAN_PROMPT_FOLLOWS 8u

// Flags of a PlanKind: its window's length is that of chunks; prompts have attention_prefill.cu.
#define KIND_CHUNKS 1u
#define KIND_PROMPTS 2u

// The list of first entries after a plan's header is padded to a multiple of this.
#define PLAN_GRID_STEP 8u

// Lengths on a plan's line: of a tile, and what a pair adds for its start and end. Times of one H200: a
// decode tile 2.0 us, a prefill tile 2 to 4.
#define DECODE_TILE_LENGTH 2u
#define DECODE_PAIR_LENGTH 0u
#define PREFILL_TILE_LENGTH 4u
#define PREFILL_PAIR_LENGTH 4u

// Threads of an attention block, and where a head is wider than 256; elements that pad a row in its shared memory; rows of q copied ahead in
// each stage; bytes behind all of them.
#define ATTENTION_THREADS 128u
#define ATTENTION_THREADS_WIDE 256u
#define ATTENTION_ROW_PAD 8u
#define ATTENTION_SMALL_ROWS 8u
#define ATTENTION_TAIL_BYTES 1024u

// Of attention_prefill.cu: packed query rows of an entry; KV tokens of a tile, and where a head is wider than
// 128; threads of a block; tiles in flight. In shared memory, bytes of a swizzled row, bytes lost to its
// alignment, and bytes for barriers behind the tiles.
#define PROMPT_ROWS 128u
#define PROMPT_TILE 128u
#define PROMPT_TILE_WIDE 64u
#define PROMPT_THREADS 384u
#define PROMPT_STAGES 2u
#define PROMPT_ROW_BYTES 128u
#define PROMPT_ALIGN_BYTES 1024u
#define PROMPT_TAIL_BYTES 256u

// How rope_kv_paged rotates: i with i + rotary_dim / 2, or 2i with 2i + 1; heads of one of its blocks.
#define ROPE_HALF_SPLIT 0u
#define ROPE_INTERLEAVED 1u
#define ROPE_HEADS 8u

// Of ranks.cu: flags that a block of a rank has for each other rank; most blocks, most rows of an exchange; columns
// that a block of ranks_gather moves at once; seconds until a wait is given up.
#define EXCHANGE_FLAGS 3u
#define EXCHANGE_GRID 256u
#define EXCHANGE_ROWS 512u
#define EXCHANGE_SECONDS 10u
#define GATHER_COLUMNS 2048u

// Words of a rank's control block: the number of the last exchange (two words), blocks that have finished the
// current one, whether the rank is alone. Words of the fault block: waits are to end, who was waited for.
#define CONTROL_NUMBER 0u
#define CONTROL_BLOCKS 2u
#define CONTROL_ALONE 3u
#define FAULT_ABORT 0u
#define FAULT_RANK 1u

// The gate of a feed-forward part, and columns of one block of act_mul_rows.
#define GATE_SILU 0u
#define GATE_GELU_TANH 1u
#define GATE_COLUMNS 2048u

// Columns of a gated delta net's state that one block of delta_rule computes.
#define DELTA_COLUMNS 32u

// Tokens of a chunk of delta_chunks; numbers behind a row of keys, of the state, of scores in shared memory.
#define DELTA_CHUNK 64u
#define DELTA_KEY_PAD 8u
#define DELTA_STATE_PAD 8u
#define DELTA_SCORE_PAD 4u

// What gemm_stream does with a product: GEMM_EPI.
#define GEMM_OUT_ACT 0u
#define GEMM_OUT_ADD_F32 1u
#define GEMM_OUT_GATED 2u
#define GEMM_OUT_F32 3u

// Threads of a gemm_stream block; bytes of shared memory that one step of a stage takes, a tile of W; the
// same of a row of x for the warps' sums; a row of x in shared memory is padded to ROUND and PAD bytes.
#define GEMM_THREADS 256u
#define GEMM_STEP_BYTES 8192u
#define GEMM_SUM_BYTES 512u
#define GEMM_X_ROUND_BYTES 128u
#define GEMM_X_PAD_BYTES 64u

// Of four_bit.cuh: FB_CODES, FB_SCALE; threads of a block; bytes of shared memory for the warps' sums, a row of x
// and tile of W; bytes behind a row of x in shared memory; bytes of a column of codes in a record of 16 rows.
#define FB_INT4 0u
#define FB_E2M1 1u
#define FB_SCALE_F16 0u
#define FB_SCALE_BF16 1u
#define FB_SCALE_E8M0 2u
#define FB_THREADS 256u
#define FB_SUM_BYTES 512u
#define FB_X_PAD_BYTES 16u
#define FB_COLUMN_BYTES 8u

// Of four_bit_wgmma.cuh, bytes of shared memory: what a block may take at most (static memory of experts aside), what
// the alignment of the stages may cost, where a warp turns its sums, barriers. Most stages.
#define FW_ROOM_BYTES 229376u
#define FW_ALIGN_BYTES 1024u
#define FW_STAGING_BYTES 1280u
#define FW_TAIL_BYTES 256u
#define FW_STAGES 8u

// Most experts, most that a token takes; tokens of one block of moe_route; rows and columns of a tile of
// moe_gemm.
#define MAX_EXPERTS 512u
#define MAX_EXPERTS_PER_TOKEN 16u
#define MOE_ROUTE_TOKENS 4u
#define MOE_TILE 64u

// Vocabulary entries that one block of the sampler scans.
#define SAMPLE_CHUNK 4096u

// Entries of a slot's logit bias, and ids that its min_tokens can hold back.
#define MAX_LOGIT_BIAS 1024u
#define MAX_BANNED 128u

// Most alternatives that come back with a log-probability.
#define MAX_BEST 20u

// Flags of a Slot: its mask holds; it has penalties, so its counts are kept.
#define SLOT_HAS_MASK 1u
#define SLOT_HAS_PENALTIES 2u

// The bit of a count that is set if the prompt has the id; the lower bits count the output.
#define COUNT_IN_PROMPT 32768u

// SampleOut::status; NONE for a padded row.
#define STATUS_OK 0u
#define STATUS_NOT_FINITE 1u

// Of attention.cu: KV tokens of a tile; threads of a block; bytes of shared memory for K and V of one stage, for
// rows of q, for partial scores of slices of a head, and of a block. Heads of up to 128 keep q in registers, except
// the rows that are copied ahead in each stage.
constexpr u32 attention_tile(u32 head_dim) {
    return head_dim > 128 ? KV_TILE_WIDE : KV_TILE;
}
constexpr u32 attention_threads(u32 head_dim) {
    return head_dim > 256 ? ATTENTION_THREADS_WIDE : ATTENTION_THREADS;
}
constexpr u32 attention_stage_bytes(u32 head_dim, u32 kv_bytes) {
    return 2 * attention_tile(head_dim) * (head_dim + ATTENTION_ROW_PAD) * kv_bytes;
}
constexpr u32 attention_query_rows(u32 head_dim, u32 stages) {
    return head_dim > 128 ? QUERY_ROWS : stages * ATTENTION_SMALL_ROWS;
}
constexpr u32 attention_query_bytes(u32 head_dim, u32 stages) {
    return attention_query_rows(head_dim, stages) * (head_dim + ATTENTION_ROW_PAD) * ACT_BYTES;
}
constexpr u32 attention_sum_bytes(u32 head_dim) {
    return head_dim > 256 ? ATTENTION_THREADS_WIDE * KV_TILE_WIDE / 8 * 16 : 0;
}
constexpr u32 attention_shared_bytes(u32 head_dim, u32 stages, u32 kv_bytes) {
    return stages * attention_stage_bytes(head_dim, kv_bytes) + attention_query_bytes(head_dim, stages) + attention_sum_bytes(head_dim) + ATTENTION_TAIL_BYTES;
}

// Of attention_prefill.cu: KV tokens of a tile; bytes of a row of q, K or V in boxes of swizzled rows; bytes of
// shared memory of a block.
constexpr u32 prompt_tile(u32 head_dim) {
    return head_dim > 128 ? PROMPT_TILE_WIDE : PROMPT_TILE;
}
constexpr u32 prompt_row_bytes(u32 head_dim, u32 kv_bytes) {
    return (head_dim * kv_bytes + PROMPT_ROW_BYTES - 1) / PROMPT_ROW_BYTES * PROMPT_ROW_BYTES;
}
constexpr u32 prompt_shared_bytes(u32 head_dim, u32 kv_bytes) {
    return PROMPT_ALIGN_BYTES + (PROMPT_ROWS + 2 * PROMPT_STAGES * prompt_tile(head_dim)) * prompt_row_bytes(head_dim, kv_bytes) + PROMPT_TAIL_BYTES;
}

// Of delta_chunks.cu: bytes of shared memory for k and q, the state and what tokens add, scores, numbers of tokens.
constexpr u32 delta_chunk_bytes(u32 key_dim) {
    return 2 * DELTA_CHUNK * (key_dim + DELTA_KEY_PAD) * ACT_BYTES + 4 * (key_dim + DELTA_CHUNK) * (DELTA_COLUMNS + DELTA_STATE_PAD) + 8 * DELTA_CHUNK * (DELTA_CHUNK + DELTA_SCORE_PAD) + 12 * DELTA_CHUNK;
}

// Of gemm_stream.cu: bytes of the ring and of the warps' sums, `tiles` of W at once; of a row of x.
constexpr u32 stream_ring_bytes(u32 stages, u32 steps, u32 tiles) {
    return stages * steps * tiles * GEMM_STEP_BYTES;
}
constexpr u32 stream_sum_bytes(u32 rows, u32 tiles) {
    return tiles * rows * GEMM_SUM_BYTES;
}
constexpr u32 stream_x_stride(u32 k) {
    return (k * ACT_BYTES + GEMM_X_ROUND_BYTES - 1) / GEMM_X_ROUND_BYTES * GEMM_X_ROUND_BYTES + GEMM_X_PAD_BYTES;
}

// Of four_bit.cuh: bytes of a group's scales and zeros in a record, and of the record.
constexpr u32 four_bit_group_bytes(u32 scale_bytes, u32 zero_bytes) {
    return 16 * (scale_bytes + zero_bytes);
}
constexpr u32 four_bit_record_bytes(u32 block, u32 groups, u32 group_bytes) {
    return block * FB_COLUMN_BYTES + groups * group_bytes;
}

// In shared memory: a warp's part of a stage, `tiles` of W at once, and the ring; buffers of the warps' sums (with
// two in turn one barrier an item is enough), and bytes of one and of all; of a row of x; of sums kept of an item
// whose columns of x come in parts.
constexpr u32 four_bit_ring_bytes(u32 stages, u32 tiles, u32 record_bytes) {
    return stages * tiles * (FB_THREADS / 32) * record_bytes;
}
constexpr u32 four_bit_sum_buffers(u32 rows) {
    return rows <= 16 ? 2 : 1;
}
constexpr u32 four_bit_sum_bytes(u32 rows, u32 tiles) {
    return tiles * rows * FB_SUM_BYTES;
}
constexpr u32 four_bit_fixed_bytes(u32 stages, u32 rows, u32 tiles, u32 record_bytes) {
    return four_bit_ring_bytes(stages, tiles, record_bytes) + four_bit_sum_buffers(rows) * four_bit_sum_bytes(rows, tiles);
}
constexpr u32 four_bit_x_stride(u32 columns) {
    return ACT_BYTES * columns + FB_X_PAD_BYTES;
}
constexpr u32 four_bit_kept_bytes(u32 rows, u32 tiles) {
    return tiles * rows * 16 * 4;
}

// Of four_bit_wgmma.cuh: threads of a block; bytes of shared memory where its warps turn their sums, of all that is no
// stage, of a stage; stages; all bytes.
constexpr u32 four_bit_wgmma_threads(u32 groups) {
    return 128 * (groups + 1);
}
constexpr u32 four_bit_wgmma_staging_bytes(u32 groups) {
    return 4 * groups * FW_STAGING_BYTES;
}
constexpr u32 four_bit_wgmma_fixed_bytes(u32 groups) {
    return FW_ALIGN_BYTES + four_bit_wgmma_staging_bytes(groups) + FW_TAIL_BYTES;
}
constexpr u32 four_bit_wgmma_stage_bytes(u32 rows, u32 tiles, u32 groups, u32 block, u32 record_bytes) {
    return rows * block * ACT_BYTES + 4 * tiles * groups * record_bytes;
}
constexpr u32 four_bit_wgmma_fitting(u32 groups, u32 stage_bytes) {
    return (FW_ROOM_BYTES - four_bit_wgmma_fixed_bytes(groups)) / stage_bytes;
}
constexpr u32 four_bit_wgmma_stages(u32 groups, u32 stage_bytes) {
    return four_bit_wgmma_fitting(groups, stage_bytes) > FW_STAGES ? FW_STAGES : four_bit_wgmma_fitting(groups, stage_bytes);
}
constexpr u32 four_bit_wgmma_bytes(u32 groups, u32 stage_bytes) {
    return four_bit_wgmma_fixed_bytes(groups) + four_bit_wgmma_stages(groups, stage_bytes) * stage_bytes;
}

// First argument of nearly every kernel, by value. Exact builds ignore it and read the same numbers from macros.
struct Dims {
    u32 vocab_size;
    u32 sample_vocab;
    u32 hidden_size;
    u32 num_heads;
    u32 num_kv_heads;
    u32 rotary_dim;
    u32 block_size;
    u32 max_blocks;
    u32 num_slots;
    u32 intermediate_size;
    u32 num_experts;
    u32 experts_per_token;
    u32 gemm_n;
    u32 gemm_k;
    u32 rotary_pairs;
    u32 reserved;
};
static_assert(sizeof(Dims) == 64, "Dims");
FIELD_AT(Dims, vocab_size, 0);
FIELD_AT(Dims, sample_vocab, 4);
FIELD_AT(Dims, hidden_size, 8);
FIELD_AT(Dims, num_heads, 12);
FIELD_AT(Dims, num_kv_heads, 16);
FIELD_AT(Dims, rotary_dim, 20);
FIELD_AT(Dims, block_size, 24);
FIELD_AT(Dims, max_blocks, 28);
FIELD_AT(Dims, num_slots, 32);
FIELD_AT(Dims, intermediate_size, 36);
FIELD_AT(Dims, num_experts, 40);
FIELD_AT(Dims, experts_per_token, 44);
FIELD_AT(Dims, gemm_n, 48);
FIELD_AT(Dims, gemm_k, 52);
FIELD_AT(Dims, rotary_pairs, 56);
FIELD_AT(Dims, reserved, 60);

// Header of a step's metadata. Five lists follow it; the fields give their offsets in words.
struct StepHeader {
    u32 num_rows;
    u32 num_tokens;
    u32 num_samples;
    u32 num_updates;
    u32 rows_at;
    u32 tokens_at;
    u32 updates_at;
    u32 samples_at;
    u32 step_id;
    u32 saves_at;
    u32 reserved[6];
};
static_assert(sizeof(StepHeader) == 64, "StepHeader");
FIELD_AT(StepHeader, num_rows, 0);
FIELD_AT(StepHeader, num_tokens, 4);
FIELD_AT(StepHeader, num_samples, 8);
FIELD_AT(StepHeader, num_updates, 12);
FIELD_AT(StepHeader, rows_at, 16);
FIELD_AT(StepHeader, tokens_at, 20);
FIELD_AT(StepHeader, updates_at, 24);
FIELD_AT(StepHeader, samples_at, 28);
FIELD_AT(StepHeader, step_id, 32);
FIELD_AT(StepHeader, saves_at, 36);
FIELD_AT(StepHeader, reserved, 40);

// One request's part of a step; rows are listed by rising first_token.
struct StepRow {
    u32 slot;
    u32 start;
    u32 num_tokens;
    u32 first_token;
    u32 flags;
    u32 sample_index;
    u32 first_save;
    u32 num_saves;
};
static_assert(sizeof(StepRow) == 32, "StepRow");
FIELD_AT(StepRow, slot, 0);
FIELD_AT(StepRow, start, 4);
FIELD_AT(StepRow, num_tokens, 8);
FIELD_AT(StepRow, first_token, 12);
FIELD_AT(StepRow, flags, 16);
FIELD_AT(StepRow, sample_index, 20);
FIELD_AT(StepRow, first_save, 24);
FIELD_AT(StepRow, num_saves, 28);

// A block that joins a slot's table.
struct BlockUpdate {
    u32 slot;
    u32 index;
    u32 block;
};
static_assert(sizeof(BlockUpdate) == 12, "BlockUpdate");
FIELD_AT(BlockUpdate, slot, 0);
FIELD_AT(BlockUpdate, index, 4);
FIELD_AT(BlockUpdate, block, 8);

// What layers keep of a row's sequence behind the tokens of positions below `end` goes to `place` too. A row's saves
// stand side by side, by rising end.
struct StateSave {
    u32 end;
    u32 place;
};
static_assert(sizeof(StateSave) == 8, "StateSave");
FIELD_AT(StateSave, end, 0);
FIELD_AT(StateSave, place, 4);

// A token to be sampled: of which row, from which token's residual.
struct StepSample {
    u32 row;
    u32 token_row;
    u32 slot;
    u32 flags;
};
static_assert(sizeof(StepSample) == 16, "StepSample");
FIELD_AT(StepSample, row, 0);
FIELD_AT(StepSample, token_row, 4);
FIELD_AT(StepSample, slot, 8);
FIELD_AT(StepSample, flags, 12);

// Header of an attention plan. The first entry of each CTA follows, then the entries.
struct PlanHeader {
    u32 num_entries;
    u32 total_length;
    u32 length_per_cta;
    u32 flags;
    u32 num_tokens;
    u32 padded_tokens;
    u32 grid;
    u32 reserved[9];
};
static_assert(sizeof(PlanHeader) == 64, "PlanHeader");
FIELD_AT(PlanHeader, num_entries, 0);
FIELD_AT(PlanHeader, total_length, 4);
FIELD_AT(PlanHeader, length_per_cta, 8);
FIELD_AT(PlanHeader, flags, 12);
FIELD_AT(PlanHeader, num_tokens, 16);
FIELD_AT(PlanHeader, padded_tokens, 20);
FIELD_AT(PlanHeader, grid, 24);
FIELD_AT(PlanHeader, reserved, 28);

// Up to QUERY_ROWS packed rows of one request and all KV heads, over KV tiles [tile_begin, tile_end).
// `before` is the length of all entries ahead.
struct PlanEntry {
    u32 first_token;
    u32 slot;
    u32 start;
    u32 packed_begin;
    u32 packed_end;
    u32 tile_begin;
    u32 tile_end;
    u32 before;
};
static_assert(sizeof(PlanEntry) == 32, "PlanEntry");
FIELD_AT(PlanEntry, first_token, 0);
FIELD_AT(PlanEntry, slot, 4);
FIELD_AT(PlanEntry, start, 8);
FIELD_AT(PlanEntry, packed_begin, 12);
FIELD_AT(PlanEntry, packed_end, 16);
FIELD_AT(PlanEntry, tile_begin, 20);
FIELD_AT(PlanEntry, tile_end, 24);
FIELD_AT(PlanEntry, before, 28);

// What decides an attention plan where those of a model differ in more than their window: its window (0: none), flags,
// KV heads; tiles and blocks of attention.cu; tiles of attention_prefill.cu.
struct PlanKind {
    u32 window;
    u32 flags;
    u32 num_kv_heads;
    u32 kv_tile;
    u32 grid;
    u32 prompt_tile;
    u32 reserved[2];
};
static_assert(sizeof(PlanKind) == 32, "PlanKind");
FIELD_AT(PlanKind, window, 0);
FIELD_AT(PlanKind, flags, 4);
FIELD_AT(PlanKind, num_kv_heads, 8);
FIELD_AT(PlanKind, kv_tile, 12);
FIELD_AT(PlanKind, grid, 16);
FIELD_AT(PlanKind, prompt_tile, 20);
FIELD_AT(PlanKind, reserved, 24);

// Header of a plan for attention_prefill.cu. Its entries follow.
struct PromptHeader {
    u32 num_entries;
    u32 reserved[15];
};
static_assert(sizeof(PromptHeader) == 64, "PromptHeader");
FIELD_AT(PromptHeader, num_entries, 0);
FIELD_AT(PromptHeader, reserved, 4);

// Up to PROMPT_ROWS packed rows of one prompt and all KV heads, over KV tiles [tile_begin, tile_end); the
// prompt has KV up to `kv_end`.
struct PromptEntry {
    u32 first_token;
    u32 slot;
    u32 start;
    u32 packed_begin;
    u32 packed_end;
    u32 tile_begin;
    u32 tile_end;
    u32 kv_end;
};
static_assert(sizeof(PromptEntry) == 32, "PromptEntry");
FIELD_AT(PromptEntry, first_token, 0);
FIELD_AT(PromptEntry, slot, 4);
FIELD_AT(PromptEntry, start, 8);
FIELD_AT(PromptEntry, packed_begin, 12);
FIELD_AT(PromptEntry, packed_end, 16);
FIELD_AT(PromptEntry, tile_begin, 20);
FIELD_AT(PromptEntry, tile_end, 24);
FIELD_AT(PromptEntry, kv_end, 28);

// Sampling parameters of one slot, the fields of `plain_fields!` in rust/core/src/sampling.rs first. `position`
// counts the tokens that the output holds.
struct Slot {
    float temperature;
    u32 top_k;
    float top_p;
    float min_p;
    float top_n_sigma;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    u32 min_tokens;
    u32 seed_low;
    u32 seed_high;
    u32 choice;
    u32 position;
    u32 log_probs;
    u32 flags;
    u32 bias_len;
    u32 banned_len;
};
static_assert(sizeof(Slot) == 68, "Slot");
FIELD_AT(Slot, temperature, 0);
FIELD_AT(Slot, top_k, 4);
FIELD_AT(Slot, top_p, 8);
FIELD_AT(Slot, min_p, 12);
FIELD_AT(Slot, top_n_sigma, 16);
FIELD_AT(Slot, repetition_penalty, 20);
FIELD_AT(Slot, presence_penalty, 24);
FIELD_AT(Slot, frequency_penalty, 28);
FIELD_AT(Slot, min_tokens, 32);
FIELD_AT(Slot, seed_low, 36);
FIELD_AT(Slot, seed_high, 40);
FIELD_AT(Slot, choice, 44);
FIELD_AT(Slot, position, 48);
FIELD_AT(Slot, log_probs, 52);
FIELD_AT(Slot, flags, 56);
FIELD_AT(Slot, bias_len, 60);
FIELD_AT(Slot, banned_len, 64);

// One entry of a slot's logit bias.
struct Bias {
    u32 id;
    float value;
};
static_assert(sizeof(Bias) == 8, "Bias");
FIELD_AT(Bias, id, 0);
FIELD_AT(Bias, value, 4);

// What sample_open does for one slot: its prompt's ids from `first_id` on, then the generated ones.
struct OpenJob {
    u32 slot;
    u32 first_id;
    u32 num_prompt;
    u32 num_generated;
};
static_assert(sizeof(OpenJob) == 16, "OpenJob");
FIELD_AT(OpenJob, slot, 0);
FIELD_AT(OpenJob, first_id, 4);
FIELD_AT(OpenJob, num_prompt, 8);
FIELD_AT(OpenJob, num_generated, 12);

// What sample_scan finds in one chunk of the vocabulary: best score and its id, lowest logit left, 1 if a
// logit is not finite.
struct SamplePartial {
    float best;
    u32 best_id;
    float lowest;
    u32 not_finite;
    u32 reserved[4];
};
static_assert(sizeof(SamplePartial) == 32, "SamplePartial");
FIELD_AT(SamplePartial, best, 0);
FIELD_AT(SamplePartial, best_id, 4);
FIELD_AT(SamplePartial, lowest, 8);
FIELD_AT(SamplePartial, not_finite, 12);
FIELD_AT(SamplePartial, reserved, 16);

// What comes back of one sampled or scored row; `num_best` of the best tokens are there.
struct SampleOut {
    u32 token;
    u32 status;
    float log_prob;
    u32 rank;
    u32 num_best;
    u32 reserved[3];
    u32 best_ids[20];
    float best_log_probs[20];
};
static_assert(sizeof(SampleOut) == 192, "SampleOut");
FIELD_AT(SampleOut, token, 0);
FIELD_AT(SampleOut, status, 4);
FIELD_AT(SampleOut, log_prob, 8);
FIELD_AT(SampleOut, rank, 12);
FIELD_AT(SampleOut, num_best, 16);
FIELD_AT(SampleOut, reserved, 20);
FIELD_AT(SampleOut, best_ids, 32);
FIELD_AT(SampleOut, best_log_probs, 112);
