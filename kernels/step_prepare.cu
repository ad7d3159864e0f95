// Unpacks one step's metadata on the device: per-token arrays, sample rows, block tables and the
// work list of attention. With these a captured graph can run any step of its shape.
//
// step: StepHeader and its lists (contract.cuh): rows [R] StepRow; tokens [T] u32, NONE = last_token of the
//   row's slot; updates [U] BlockUpdate; samples [S] StepSample.
// Block 0 writes block_table [num_groups, num_slots, max_blocks] (updates, whose slots count through all
//   KV groups), then token_ids, positions, slot_of_token [T_pad], kv_slot [num_groups, T_pad] and sample_rows
//   [S_pad]. Padded tokens: id 0, position 0, NONE, NONE.
// Block 1 + w writes plan w, for windows[w] (0: no window):
//   plan: PlanHeader; [G, padded to PLAN_GRID_STEP] u32 first entry of each CTA; PlanEntry. An entry holds up to
//   q_rows packed rows of all kv heads. The triples (entry, kv head, tile) form a line in this order, with the
//   lengths of the contract; CTA c takes the tiles that begin in [c * length_per_cta, (c + 1) * length_per_cta).
//   Under PLAN_NOT_CAUSAL every token sees all of its row, which is a whole sequence: entries reach to its end,
//   and their start is its last position.
// Built with -DPLAN_KINDS=1, plans differ in more than their window: `windows` is [num_plans] PlanKind, and the grid, the
//   tiles and the number of KV heads come from there, not from the arguments. A kind of chunks begins an entry's tiles
//   where the chunk of its first token begins.
// With `split`, rows whose flags have PROMPT_ROW are left out of these plans, which get PLAN_PROMPT_FOLLOWS, and
//   block 1 + num_plans + w writes prompt plan w for attention_prefill.cu: PromptHeader, then PromptEntry of up to
//   prompt_rows packed rows, tiles of prompt_tile tokens, the longest of a row first; block 0 clears
//   prompt_counters [num_layers]. A kind without KIND_PROMPTS has no such plan and leaves out nothing.
// Launch: grid 1 + number of plans (1 + 2 * plans with `split`), block 1024. R <= MAX_STEP_ROWS.
#include "ptx.cuh"

#ifndef PLAN_KINDS
#define PLAN_KINDS 0
#endif

constexpr u32 MIN_LENGTH = 4;  // per CTA; with less, merging pieces costs more than it saves
constexpr u32 FEW = 8;         // per CTA; below this, short pairs are not cut (flag bit 1, see attention.cu)

// Largest i with first[i] <= value; first[0] is 0.
DEV u32 find_row(const u32* first, u32 count, u32 value) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (first[middle] <= value) low = middle;
        else high = middle;
    }
    return low;
}

struct TokenArrays {
    u32 *token_ids, *positions, *slot_of_token, *kv_slot;
};

DEV void write_tokens(const Dims& dims, const u32* step, const u32* last_token,
                      const u32* block_table, u32 num_groups, TokenArrays out, u32 T_pad, u32* first) {
    u32 R = FIELD(step, StepHeader, num_rows), T = FIELD(step, StepHeader, num_tokens), block_size = DIM(block_size);
    const u32 *rows = rows_of(step), *tokens = tokens_of(step);
    for (u32 r = threadIdx.x; r < R; r += blockDim.x) first[r] = rows[WORD_AT(StepRow, r, first_token)];
    __syncthreads();
    for (u32 t = threadIdx.x; t < T_pad; t += blockDim.x) {
        u32 id = 0, position = 0, slot = NONE;
        if (t < T) {
            const u32* row = rows + WORDS(StepRow) * find_row(first, R, t);
            slot = FIELD(row, StepRow, slot);
            position = FIELD(row, StepRow, start) + (t - FIELD(row, StepRow, first_token));
            id = tokens[t] == NONE ? last_token[slot] : tokens[t];
            id = id < DIM(vocab_size) ? id : 0;
        }
        out.token_ids[t] = id;
        out.positions[t] = position;
        out.slot_of_token[t] = slot;
        u32 index = min(position / block_size, DIM(max_blocks) - 1);
        for (u32 g = 0; g < num_groups; g++) {
            u64 table = ((u64)g * DIM(num_slots) + slot) * DIM(max_blocks);
            out.kv_slot[g * T_pad + t] =
                t < T ? block_table[table + index] * block_size + position % block_size : NONE;
        }
    }
}

struct PlanShape {
    u32 window, entry_capacity, grid, q_rows, kv_tile, flags;
#if PLAN_KINDS
    u32 num_kv_heads, chunks;
#endif
};

#if PLAN_KINDS
#define KV_HEADS(shape) shape.num_kv_heads

// The first position that a token at `position` sees.
template <typename Shape>
DEV u32 first_seen(u32 position, const Shape& shape) {
    u32 window = shape.window;
    if (shape.chunks && window) return position - position % window;
    return window && position + 1 > window ? position + 1 - window : 0;
}
#else
#define KV_HEADS(shape) DIM(num_kv_heads)

template <typename Shape>
DEV u32 first_seen(u32 position, const Shape& shape) {
    return shape.window && position + 1 > shape.window ? position + 1 - shape.window : 0;
}
#endif

// Entries of one row: one if all its packed rows fit one decode tile, else one per q_rows.
DEV u32 entries_of(u32 packed, u32 q_rows) { return packed <= DECODE_ROWS ? 1 : (packed + q_rows - 1) / q_rows; }

// Fills an entry except `before`; returns the length of one of its kv heads.
DEV u32 fill_entry(u32* entry, const u32* row, u32 part, u32 group, const PlanShape& shape) {
    u32 start = FIELD(row, StepRow, start), packed = FIELD(row, StepRow, num_tokens) * group;
    u32 begin = part * shape.q_rows, end = min(begin + shape.q_rows, packed);
    u32 first_position = start + begin / group, last_position = start + (end - 1) / group;
    if (shape.flags & PLAN_NOT_CAUSAL)
        start = first_position = last_position = start + FIELD(row, StepRow, num_tokens) - 1;
    u32 kv_begin = first_seen(first_position, shape);
    u32 tile_begin = kv_begin / shape.kv_tile, tile_end = last_position / shape.kv_tile + 1;
    *(uint4*)entry = make_uint4(FIELD(row, StepRow, first_token), FIELD(row, StepRow, slot), start, begin);
    FIELD(entry, PlanEntry, packed_end) = end;
    FIELD(entry, PlanEntry, tile_begin) = tile_begin;
    FIELD(entry, PlanEntry, tile_end) = tile_end;
    bool decode = end - begin <= DECODE_ROWS && !(shape.flags & PLAN_WHOLE);
    return (tile_end - tile_begin) * (decode ? DECODE_TILE_LENGTH : PREFILL_TILE_LENGTH) +
           (decode ? DECODE_PAIR_LENGTH : PREFILL_PAIR_LENGTH);
}

DEV void write_plan(const Dims& dims, const u32* step, u32* plan, const PlanShape& shape, u32 T_pad,
                    u32* before_row, u32* scratch) {
    u32 R = FIELD(step, StepHeader, num_rows), heads = KV_HEADS(shape), group = DIM(num_heads) / heads, tid = threadIdx.x;
    const u32* rows = rows_of(step);
    u32 *entries = plan + WORDS(PlanHeader) + plan_grid(shape.grid), num_entries, total = 0;
    bool left_out = (shape.flags & PLAN_PROMPT_FOLLOWS) && tid < R && (rows[WORD_AT(StepRow, tid, flags)] & PROMPT_ROW);
    u32 parts = tid < R && !left_out ? entries_of(rows[WORD_AT(StepRow, tid, num_tokens)] * group, shape.q_rows) : 0;
    u32 before = block_prefix_u32(parts, scratch, &num_entries);
    if (tid < MAX_STEP_ROWS) before_row[tid] = before;
    __syncthreads();
    num_entries = min(num_entries, shape.entry_capacity);
    for (u32 base = 0; base < num_entries; base += blockDim.x) {
        u32 e = base + tid, length = 0, sum;
        if (e < num_entries) {
            u32 r = find_row(before_row, R, e);
            const u32* row = rows + WORDS(StepRow) * r;
            length = heads * fill_entry(entries + WORDS(PlanEntry) * e, row, e - before_row[r], group, shape);
        }
        u32 prefix = block_prefix_u32(length, scratch, &sum);
        if (e < num_entries) entries[WORD_AT(PlanEntry, e, before)] = total + prefix;
        total += sum;
    }
    __syncthreads();
    u32 per_cta = max((total + shape.grid - 1) / shape.grid, MIN_LENGTH);
    for (u32 c = tid; c < shape.grid; c += blockDim.x) {
        u32 low = 0, high = max(num_entries, 1u);
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (entries[WORD_AT(PlanEntry, middle, before)] <= c * per_cta) low = middle;
            else high = middle;
        }
        plan[WORDS(PlanHeader) + c] = low;
    }
    if (tid == 0) {
        FIELD(plan, PlanHeader, num_entries) = num_entries;
        FIELD(plan, PlanHeader, total_length) = total;
        FIELD(plan, PlanHeader, length_per_cta) = per_cta;
        FIELD(plan, PlanHeader, flags) = shape.flags | (per_cta < FEW ? PLAN_FEW : 0u);
        FIELD(plan, PlanHeader, num_tokens) = FIELD(step, StepHeader, num_tokens);
        FIELD(plan, PlanHeader, padded_tokens) = T_pad;
        FIELD(plan, PlanHeader, grid) = shape.grid;
    }
}

struct PromptShape {
    u32 window, entry_capacity, q_rows, kv_tile;
#if PLAN_KINDS
    u32 num_kv_heads, chunks;
#endif
};

DEV void write_prompt_plan(const Dims& dims, const u32* step, u32* plan, const PromptShape& shape,
                           u32* before_row, u32* scratch) {
    u32 R = FIELD(step, StepHeader, num_rows), group = DIM(num_heads) / KV_HEADS(shape), tid = threadIdx.x, num_entries;
    const u32* rows = rows_of(step);
    bool prompt = tid < R && (rows[WORD_AT(StepRow, tid, flags)] & PROMPT_ROW);
    u32 parts = prompt ? (rows[WORD_AT(StepRow, tid, num_tokens)] * group + shape.q_rows - 1) / shape.q_rows : 0;
    u32 before = block_prefix_u32(parts, scratch, &num_entries);
    before_row[tid] = before;
    __syncthreads();
    num_entries = min(num_entries, shape.entry_capacity);
    for (u32 e = tid; e < num_entries; e += blockDim.x) {
        u32 r = find_row(before_row, R, e), end_of_row = r + 1 < R ? before_row[r + 1] : num_entries;
        const u32* row = rows + WORDS(StepRow) * r;
        u32 part = end_of_row - 1 - e, start = FIELD(row, StepRow, start);
        u32 packed = FIELD(row, StepRow, num_tokens) * group;
        u32 begin = part * shape.q_rows, end = min(begin + shape.q_rows, packed);
        u32 first = start + begin / group, last = start + (end - 1) / group;
        u32 kv_begin = first_seen(first, shape);
        // A PromptEntry in two stores.
        uint4* entry = (uint4*)(plan + WORDS(PromptHeader) + WORDS(PromptEntry) * e);
        entry[0] = make_uint4(FIELD(row, StepRow, first_token), FIELD(row, StepRow, slot), start, begin);
        entry[1] = make_uint4(end, kv_begin / shape.kv_tile, last / shape.kv_tile + 1,
                              start + FIELD(row, StepRow, num_tokens));
    }
    if (tid == 0) FIELD(plan, PromptHeader, num_entries) = num_entries;
}

ENTRY_U32(step_prepare_tokens)
(Dims dims, const u32* step, const u32* last_token, u32* block_table, u32* token_ids,
 u32* positions, u32* slot_of_token, u32* kv_slot, u32* sample_rows, const u32* windows, u32* plans,
 u32 plan_words, u32 entry_capacity, u32 T_pad, u32 S_pad, u32 attention_grid, u32 q_rows,
 u32 kv_tile, u32 flags, u32 num_plans, u32* prompt_plans, u32 prompt_words, u32* prompt_counters,
 u32 num_layers, u32 prompt_rows, u32 prompt_tile, u32 split, u32 num_groups) {
    __shared__ u32 by_row[MAX_STEP_ROWS], scratch[33];
    grid_trigger();
    grid_wait();
    if (blockIdx.x > num_plans) {
        u32 w = blockIdx.x - 1 - num_plans;
        u32 capacity = (prompt_words - WORDS(PromptHeader)) / WORDS(PromptEntry);
#if PLAN_KINDS
        const u32* kind = windows + WORDS(PlanKind) * w;
        u32 kind_flags = FIELD(kind, PlanKind, flags);
        if (!(kind_flags & KIND_PROMPTS)) return;
        PromptShape shape{FIELD(kind, PlanKind, window), capacity, prompt_rows, FIELD(kind, PlanKind, prompt_tile),
                          FIELD(kind, PlanKind, num_kv_heads), kind_flags & KIND_CHUNKS};
#else
        PromptShape shape{windows[w], capacity, prompt_rows, prompt_tile};
#endif
        write_prompt_plan(dims, step, prompt_plans + (u64)w * prompt_words, shape, by_row, scratch);
        return;
    }
    if (blockIdx.x > 0) {
        u32 w = blockIdx.x - 1;
#if PLAN_KINDS
        const u32* kind = windows + WORDS(PlanKind) * w;
        u32 kind_flags = FIELD(kind, PlanKind, flags);
        u32 all_flags = flags | (split && kind_flags & KIND_PROMPTS ? PLAN_PROMPT_FOLLOWS : 0u);
        PlanShape shape{FIELD(kind, PlanKind, window), entry_capacity, FIELD(kind, PlanKind, grid), q_rows,
                        FIELD(kind, PlanKind, kv_tile), all_flags, FIELD(kind, PlanKind, num_kv_heads),
                        kind_flags & KIND_CHUNKS};
#else
        u32 all_flags = flags | (split ? PLAN_PROMPT_FOLLOWS : 0u);
        PlanShape shape{windows[w], entry_capacity, attention_grid, q_rows, kv_tile, all_flags};
#endif
        write_plan(dims, step, plans + (u64)w * plan_words, shape, T_pad, by_row, scratch);
        return;
    }
    if (split)
        for (u32 i = threadIdx.x; i < num_layers; i += blockDim.x) prompt_counters[i] = 0;
    const u32 *updates = updates_of(step), *samples = samples_of(step);
    for (u32 i = threadIdx.x; i < FIELD(step, StepHeader, num_updates); i += blockDim.x) {
        const u32* update = updates + WORDS(BlockUpdate) * i;
        if (FIELD(update, BlockUpdate, slot) < num_groups * DIM(num_slots) &&
            FIELD(update, BlockUpdate, index) < DIM(max_blocks))
            block_table[(u64)FIELD(update, BlockUpdate, slot) * DIM(max_blocks) + FIELD(update, BlockUpdate, index)] =
                FIELD(update, BlockUpdate, block);
    }
    __threadfence_block();
    __syncthreads();
    write_tokens(dims, step, last_token, block_table, num_groups,
                 {token_ids, positions, slot_of_token, kv_slot}, T_pad, by_row);
    for (u32 s = threadIdx.x; s < S_pad; s += blockDim.x)
        sample_rows[s] =
            s < FIELD(step, StepHeader, num_samples) ? samples[WORD_AT(StepSample, s, token_row)] : 0;
}
